"""For the tests of programs that use warmshelf: a Shelf that needs no daemon.

    from warmshelf.testing import FakeShelf

    with FakeShelf() as shelf:
        shelf.add("acme/base", {"w": ("F32", (2,), bytes(8))}, config={"model_type": "tiny"})
        with shelf.acquire("acme/base") as lease:
            assert bytes(lease["w"]) == bytes(8)

A FakeShelf is a ``Shelf`` with the same methods, states and errors, all in this process:
no daemon, socket, thread or file of its own. It also registers local safetensors files,
and takes pushes. Its leases are real ones, so ``warmshelf.torch`` and ``warmshelf.numpy`` work on them.

What it has not: sources but local safetensors, streamed reads, background work, and the
daemon's thoroughness with broken files. Digests are known where the ``blake3`` package is
installed; elsewhere none is, and an expected ``blake3:`` digest is a mismatch.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from warmshelf._channel import Deadline, parse_address
from warmshelf._incoming import CALL_TIMEOUT_SECONDS, LOAD_TIMEOUT_SECONDS, source_uri, spec_of, what_to_push
from warmshelf._push import PROGRESS
from warmshelf._security import PLAIN
from warmshelf.client import Shelf
from warmshelf.digest import check_digest
from warmshelf.errors import InvalidRequest, WarmshelfError
from warmshelf.image import SegmentImage
from warmshelf.layout import Layout, SegmentSpec, TensorSpec
from warmshelf.lease import Lease
from warmshelf.shard import EVERYTHING, Shard, layer_of
from warmshelf.sharding import shard_image
from warmshelf.testing._aliases import FakeAliases
from warmshelf.testing._alone import resident_in
from warmshelf.testing._content import (
    CONFIG_NAMES,
    PAGE_BYTES,
    Content,
    Tensor,
    check_tensors,
    content_of_files,
    read_content,
)
from warmshelf.testing._daemon import FakeClaim, FakeDaemon
from warmshelf.testing._rules import PUSHED, Options, Wanted
from warmshelf.types import (
    Alias,
    Artifact,
    ArtifactKind,
    Capabilities,
    Capacity,
    LeaseInfo,
    LoadPhase,
    NewArtifact,
    Progress,
    Registered,
    ResidencyList,
    check_budget,
    check_id,
)
from warmshelf.watch import Feed

__all__ = ["BUDGET_BYTES", "FakeShelf", "Tensor"]

BUDGET_BYTES = 256 << 20
"""What a FakeShelf holds unless told otherwise: more than tests need, less than a laptop has."""

_ADDRESS = parse_address("unix:///nowhere/fake.sock")  # never opened

_Artifacts = list[Artifact]  # inside FakeShelf, ``list`` is a method
_Leases = list[LeaseInfo]
_Outcomes = list[Registered]


_Aliases = list[Alias]  # inside FakeShelf, ``list`` is a method


class FakeShelf(Shelf):
    """A Shelf without a daemon. May be shared by threads, as a Shelf may."""

    def __init__(
        self, *, budget_bytes: int = BUDGET_BYTES, holder: str = "fake", timeout: float = CALL_TIMEOUT_SECONDS
    ) -> None:
        """Begin with nothing registered.

        Args:
            budget_bytes: all that artifacts may occupy, whole pages of 4096 bytes each.
            holder: who leases.
            timeout: seconds each call may take, unless it is given its own.
        """
        super().__init__(_ADDRESS, "", holder, PLAIN, timeout)
        self._holder_name = holder
        self._daemon = FakeDaemon(budget_bytes)
        self._names = FakeAliases()

    def add(
        self,
        artifact_id: str,
        tensors: Mapping[str, Tensor],
        *,
        config: Mapping[str, Any] | bytes | None = None,
        files: Mapping[str, bytes] | None = None,
        base: str | None = None,
        replace: bool = False,
        keep: bool = False,
    ) -> Artifact:
        """Register an artifact whose source is the tensors themselves.

        Args:
            artifact_id: the ID to know it by.
            tensors: dtype (such as ``BF16``), shape and bytes of each by its name.
            config: ``adapter_config.json`` of an adapter, ``config.json`` of a base; one with a
                ``peft_type`` makes it an adapter.
            files: other small files by name.
            base: an adapter's base; makes it an adapter.
            replace: if the ID is known with other content, make this a new generation.
            keep: never evict it to make room.
        """
        text = config if isinstance(config, bytes) else b"" if config is None else json.dumps(config).encode()
        kind = ArtifactKind.ADAPTER if base or b'"peft_type"' in text else ArtifactKind.BASE
        small = {**(files or {}), **({CONFIG_NAMES[kind]: text} if config is not None else {})}
        check_tensors(tensors, artifact_id)
        content = Content(kind, dict(tensors), small)
        spec = spec_of(f"fake:///{check_id(artifact_id)}", base=base, digest=None, revision=None)
        return self._open().register(artifact_id, spec, lambda: content, Options(replace=replace, keep=keep))

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
        """Make an artifact known: a local safetensors file, or a directory of them."""
        spec = spec_of(source_uri(source), base=base, digest=digest, revision=revision)
        read = partial(read_content, spec.source.uri)
        options = Options(replace=replace, follow=follow, keep=keep, defer=defer)
        return self._open().register(check_id(artifact_id), spec, read, options)

    def register_many(
        self, artifacts: Iterable[NewArtifact], *, replace: bool = False, defer: bool = False
    ) -> _Outcomes:
        """Make many artifacts known; return how each went."""
        return [self._registered(new, replace=replace, defer=defer) for new in artifacts]

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
        """Keep an artifact's bytes in this process."""
        files = what_to_push(path, tensors, config, is_adapter=bool(base))
        Deadline(LOAD_TIMEOUT_SECONDS if timeout is None else timeout)
        spec = spec_of(f"{PUSHED}{secrets.token_hex(16)}", base=base, digest=None, revision=None)
        content = content_of_files(files)
        if progress is not None:
            total = sum(file.size_bytes for file in files)
            progress(total, total)
        options = Options(replace=replace, keep=keep)
        return self._open().register_pushed(check_id(artifact_id), spec, content, options)

    def get(self, artifact_id: str) -> Artifact:
        """Return an artifact as it is now."""
        return self._open().get(check_id(artifact_id))

    def list(self, *, base: str | None = None) -> _Artifacts:
        """Return all artifacts by ID, or a base's adapters."""
        return self._open().artifacts(check_id(base) if base else "")

    def load(self, artifact_id: str, *, timeout: float | None = None, detach: bool = False) -> Iterator[Progress]:
        """Make an artifact resident, in this thread, also with ``detach``."""
        return self._steps(check_id(artifact_id), LOAD_TIMEOUT_SECONDS if timeout is None else timeout, detach)

    def set_alias(self, name: str, artifact_id: str, *, expect: str | None = None) -> Alias:
        """Make an alias mean an artifact. Holders of the old one are not told, as a daemon would."""
        check_id(name)
        self.get(artifact_id)
        return self._names.set(name, artifact_id, expect or "")

    def roll_back_alias(self, name: str) -> Alias:
        """Make an alias mean again what it meant before."""
        artifact_id, expect = self._names.before(check_id(name))
        return self._names.set(name, artifact_id, expect)

    def remove_alias(self, name: str, *, expect: str | None = None) -> None:
        """Forget an alias."""
        self._names.remove(name, expect or "")

    def aliases(self) -> _Aliases:
        """Return all aliases by name."""
        return self._names.all()

    def list_residency(self, artifact_id: str | None = None) -> ResidencyList:
        """Return what is resident here: there is no other node."""
        wanted = self._names.resolve(check_id(artifact_id)) if artifact_id else ""
        return resident_in(self._open().artifacts(""), wanted)

    def evict(self, artifact_id: str, *, drain: bool = False) -> Artifact:
        """Give an artifact's memory back."""
        return self._open().evict(check_id(artifact_id), drain=drain)

    def remove(self, artifact_id: str) -> None:
        """Forget an artifact."""
        self._open().remove(check_id(artifact_id))

    def verify(self, artifact_id: str, *, timeout: float | None = None) -> int:
        """Return how many bytes a daemon would check."""
        Deadline(LOAD_TIMEOUT_SECONDS if timeout is None else timeout)
        return self._open().verify(check_id(artifact_id))

    def leases(self, artifact_id: str | None = None) -> _Leases:
        """Return all live leases, oldest first, or those on one artifact."""
        return self._open().leases(check_id(artifact_id) if artifact_id else "")

    def capabilities(self) -> Capabilities:
        """Return what a FakeShelf can do."""
        budget = self._open().budget_bytes
        return Capabilities("fake", budget, PAGE_BYTES, "none", 1 << 20, ("file",), ("peft", "safetensors"))

    def capacity(self, like: str | None = None) -> Capacity:
        """Return what is held, and how many more artifacts of the size of ``like`` fit."""
        return self._open().capacity(check_id(like) if like else "")

    def set_budget(self, budget_bytes: int, *, timeout: float | None = None) -> Capacity:
        """Make the budget larger or smaller."""
        self._open().set_budget(check_budget(budget_bytes), self._deadline(timeout))
        return self.capacity()

    def acquire(
        self,
        artifact_id: str,
        *,
        timeout: float | None = None,
        resident_only: bool = False,
        expected_digest: str | None = None,
        rank_max: int = 0,
        features: Sequence[str] | None = None,
        shard: Shard | None = None,
        writable: bool = True,
    ) -> Lease:
        """Lease an artifact, loading it if need be."""
        artifact_id = self._names.resolve(artifact_id)
        wanted = Wanted(
            resident_only=resident_only,
            expected_digest=check_digest(expected_digest) if expected_digest else "",
            rank_max=rank_max,
            features=None if features is None else tuple(features),
        )
        claim = self._open().acquire(check_id(artifact_id), self._holder_name, wanted, self._deadline(timeout))
        return _lease(claim, shard, writable=writable)

    def stream_tensors(
        self, artifact_id: str, *, shard: Shard | None = None, timeout: float | None = None, writable: bool = True
    ) -> Iterator[tuple[TensorSpec, memoryview]]:
        """Yield an artifact's tensors layer by layer."""
        shard = shard or EVERYTHING
        with self.acquire(artifact_id, timeout=timeout, shard=shard, writable=writable) as lease:
            for spec in sorted(lease.specs.values(), key=layer_of):
                yield spec, lease[spec.name]

    def close(self) -> None:
        """End all leases. Views, arrays and tensors stay valid."""
        self._closed = True
        self._daemon.close()

    def __enter__(self) -> FakeShelf:  # noqa: PYI034 - typing.Self is of Python 3.11
        return self

    def _registered(self, new: NewArtifact, *, replace: bool, defer: bool) -> Registered:
        more = {name: getattr(new, name) for name in ("base", "digest", "revision", "follow", "keep")}
        try:
            self.register(new.artifact_id, new.source, **more, replace=replace, defer=defer)
        except WarmshelfError as error:
            return Registered(new.artifact_id, error)
        return Registered(new.artifact_id)

    def _open(self) -> FakeDaemon:
        if self._closed:
            raise InvalidRequest("the shelf has been closed")
        return self._daemon

    def _feed(self, after: int) -> Feed:
        return self._open().feed(after)

    def _steps(self, artifact_id: str, timeout: float, detach: bool) -> Iterator[Progress]:
        daemon, deadline = self._open(), Deadline(timeout)
        size = daemon.get(artifact_id).size_bytes
        if not detach:
            yield Progress(LoadPhase.READ, 0, size)
        artifact = daemon.load(artifact_id, deadline)
        yield Progress(LoadPhase.SEAL, artifact.size_bytes, artifact.size_bytes, artifact)


def _lease(claim: FakeClaim, shard: Shard | None, *, writable: bool) -> Lease:
    """Return the lease of a claim, on bytes of its own, as if mapped anew."""
    data = bytearray(claim.segment.data) if writable else bytes(claim.segment.data)
    image = SegmentImage(data, len(data))
    segment = SegmentSpec(0, image.header.segment_id, len(data), image.header.content_size_bytes)
    return Lease(
        claim,
        claim.artifact,
        Layout(claim.info.generation, (segment,), ()),
        shard_image(image, shard) if shard else image,
    )
