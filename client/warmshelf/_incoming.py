"""How artifacts come to a daemon: registered one by one or many at once, or pushed.

The part of a ``Shelf`` that brings something in, and what its arguments mean.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from warmshelf import _wire
from warmshelf._channel import Deadline
from warmshelf._push import PROGRESS, push_files
from warmshelf._push_files import PushFile, files_of_path, files_of_tensors
from warmshelf.digest import check_digest
from warmshelf.errors import InvalidRequest, InvalidSpec
from warmshelf.session import Link
from warmshelf.types import Artifact, ArtifactKind, ArtifactSpec, NewArtifact, Registered, Source, check_id
from warmshelf.v1 import catalog_pb2, push_pb2

CALL_TIMEOUT_SECONDS = 60.0
LOAD_TIMEOUT_SECONDS = 3600.0
"""Of a load, a verification or an export without a timeout; a large base from a remote source takes 20 minutes."""

BATCH_COUNT_MAX, BATCH_BYTES_MAX = 1000, 512 << 10
"""Most registrations of one request, and most bytes of them; a daemon takes messages of 1 MiB."""

_Outcomes = list[Registered]
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class Incoming(ABC):
    """What brings artifacts in."""

    @abstractmethod
    def _current(self) -> Link:
        """Return this process's link to the daemon."""

    @abstractmethod
    def _deadline(self, timeout: float | None = None) -> Deadline:
        """Return when a call must have ended."""

    def register(
        self,
        artifact_id: str,
        source: str | os.PathLike[str],
        *,
        base: str | None = None,
        digest: str | None = None,
        revision: str | None = None,
        replace: bool = False,
        follow: bool = False,
        keep: bool = False,
        defer: bool = False,
    ) -> Artifact:
        """Make an artifact known. Its headers are inspected, nothing is loaded.

        Args:
            artifact_id: the ID to know it by.
            source: a URI, or a path on the daemon's host.
            base: an adapter's base.
            digest: refuse any other content.
            revision: the source's own version.
            replace: if the ID is known with another spec or content, make this a new generation.
            follow: accept other bytes at the source later, each as a new generation.
            keep: never evict it to make room.
            defer: do not look at the source now; the first load will.
        """
        request = catalog_pb2.RegisterArtifactRequest(
            artifact_id=check_id(artifact_id),
            spec=_wire.spec_to_proto(spec_of(source_uri(source), base=base, digest=digest, revision=revision)),
            replace=bool(replace),
            keep_resident=bool(keep),
            follow=bool(follow),
            defer_inspection=bool(defer),
        )
        connection = self._current().connection
        answer = connection.unary(connection.catalog.RegisterArtifact, request, self._deadline())
        return _wire.artifact_from_proto(answer.artifact)

    def register_many(
        self, artifacts: Iterable[NewArtifact], *, replace: bool = False, defer: bool = False
    ) -> _Outcomes:
        """Make many artifacts known; return how each went, in their order. One that is refused stops no other.

        Args:
            artifacts: what to register; not all at once is sent, nor kept.
            replace: for all of them, as in ``register``.
            defer: do not look at any source now; the first load of each will.
        """
        outcomes: list[Registered] = []
        for batch in batches(request_of(new, replace=replace, defer=defer) for new in artifacts):
            request = catalog_pb2.RegisterArtifactsRequest(requests=batch)
            connection = self._current().connection
            deadline = self._deadline(LOAD_TIMEOUT_SECONDS if not defer else None)
            answer = connection.unary(connection.catalog.RegisterArtifacts, request, deadline)
            outcomes += map(_wire.registered_from_proto, answer.results)
        return outcomes

    def push(
        self,
        artifact_id: str,
        *,
        path: str | os.PathLike[str] | None = None,
        tensors: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | bytes | None = None,
        base: str | None = None,
        replace: bool = False,
        keep: bool = False,
        progress: PROGRESS | None = None,
        timeout: float | None = None,
    ) -> Artifact:
        """Send an artifact to the daemon, which keeps it durably; afterwards the ID is enough.

        A broken connection or a restarted daemon does not end it. When it raises, the daemon
        keeps nothing of it.

        Args:
            artifact_id: the ID to know it by.
            path: a directory of this host as ``register`` would take it, or a file of weights.
            tensors: instead of ``path``, tensors by name: of torch, of numpy, or (dtype, shape, bytes).
            config: with ``tensors``: ``adapter_config.json`` of an adapter, ``config.json`` of a base.
            base: an adapter's base.
            replace: if the ID is known with other content, make this a new generation.
            keep: never evict it to make room.
            progress: called with the bytes sent and all there are, now and then, by some thread.
            timeout: seconds for all of it.
        """
        files = what_to_push(path, tensors, config, is_adapter=bool(base))
        request = push_pb2.BeginPushRequest(
            artifact_id=check_id(artifact_id),
            base_artifact_id=check_id(base) if base else "",
            replace=replace,
            keep_resident=keep,
        )
        deadline = Deadline(LOAD_TIMEOUT_SECONDS if timeout is None else timeout)
        return push_files(self._current().connection, request, files, deadline, progress)


def source_uri(source: str | os.PathLike[str]) -> str:
    """Return a URI as it is, and a path as a file:// URI; the daemon takes no relative path.

    Raises:
        InvalidSpec: it is empty, or neither.
    """
    if not isinstance(source, (str, os.PathLike)) or not isinstance(text := os.fspath(source), str):
        raise InvalidSpec(f"a source is a URI or a path, not {type(source).__name__}")
    if not text:
        raise InvalidSpec("the source is empty")
    if text.startswith("file:/") and not text.startswith("file://"):
        raise InvalidSpec("a file URI begins with file:///")
    return text if _URI.match(text) else "file://" + quote(os.fsencode(os.path.abspath(text)))


def spec_of(uri: str, *, base: str | None, digest: str | None, revision: str | None) -> ArtifactSpec:
    """Return the spec that the arguments of ``register`` mean.

    Raises:
        InvalidId, InvalidSpec: one of them is none.
    """
    if revision is not None and not isinstance(revision, str):
        raise InvalidSpec(f"a revision is a string, not {type(revision).__name__}")
    return ArtifactSpec(
        Source(uri, revision or "", check_digest(digest) if digest else ""),
        ArtifactKind.ADAPTER if base else ArtifactKind.UNKNOWN,
        check_id(base) if base else "",
    )


def request_of(new: NewArtifact, *, replace: bool, defer: bool) -> catalog_pb2.RegisterArtifactRequest:
    """Return the request that one of many is. Unchecked: the daemon says of each what is wrong."""
    uri = source_uri(new.source) if new.source else ""
    kind = ArtifactKind.ADAPTER if new.base else ArtifactKind.UNKNOWN
    return catalog_pb2.RegisterArtifactRequest(
        artifact_id=new.artifact_id,
        spec=_wire.spec_to_proto(ArtifactSpec(Source(uri, new.revision, new.digest), kind, new.base)),
        replace=replace,
        keep_resident=new.keep,
        follow=new.follow,
        defer_inspection=defer,
    )


def batches(
    requests: Iterable[catalog_pb2.RegisterArtifactRequest],
) -> Iterator[list[catalog_pb2.RegisterArtifactRequest]]:
    """Return the requests in lists of which each is one message."""
    batch: list[catalog_pb2.RegisterArtifactRequest] = []
    size_bytes = 0
    for request in requests:
        size = request.ByteSize()
        if batch and (len(batch) == BATCH_COUNT_MAX or size_bytes + size > BATCH_BYTES_MAX):
            yield batch
            batch, size_bytes = [], 0
        batch.append(request)
        size_bytes += size
    if batch:
        yield batch


def what_to_push(
    path: str | os.PathLike[str] | None,
    tensors: Mapping[str, Any] | None,
    config: Mapping[str, Any] | bytes | None,
    *,
    is_adapter: bool,
) -> list[PushFile]:
    """Return the files that the arguments of ``push`` mean."""
    if (path is None) == (tensors is None):
        raise InvalidRequest("push either a path or tensors")
    if tensors is not None:
        return files_of_tensors(tensors, config, is_adapter=is_adapter)
    if config is not None or path is None:
        raise InvalidRequest("a config goes with tensors; a directory has its own")
    return files_of_path(path)
