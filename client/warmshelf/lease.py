"""A lease, and through it the tensors of one generation.

Chooses the way to the bytes: mapped if this process sees the arena, else streamed.
Knows how a lease ends, not how one is asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import TracebackType
from typing import Any, Protocol

from warmshelf._channel import Deadline
from warmshelf._wire import artifact_from_proto, layout_from_proto, lease_from_proto
from warmshelf.errors import DaemonUnreachable, Internal, LeaseLost, MalformedArtifact, SegmentCorrupt, WarmshelfError
from warmshelf.image import Image, SegmentImage
from warmshelf.layout import Layout, SegmentSpec, TensorSpec
from warmshelf.mapping import CannotMap, map_segment
from warmshelf.session import RELEASE_SECONDS, Link, Session
from warmshelf.shard import Shard, layer_of
from warmshelf.sharding import ShardStream, shard_image
from warmshelf.transfer import Seen, read_segment
from warmshelf.types import Artifact, ArtifactKind, LeaseInfo
from warmshelf.v1 import lease_pb2, transfer_pb2

_CONFIG_NAMES = {ArtifactKind.ADAPTER: "adapter_config.json", ArtifactKind.BASE: "config.json"}


class Claim(Protocol):
    """What keeps a generation in memory."""

    @property
    def info(self) -> LeaseInfo:
        """The lease as it was granted."""

    @property
    def superseded(self) -> bool:
        """Whether a newer generation has become READY, as far as this process was told."""

    def release(self) -> None:
        """Let go. Called once; never fails."""


class Lease(Mapping[str, memoryview]):
    """A claim on one generation of an artifact, and its tensors by name.

    A tensor's bytes are a memoryview, not copied. Writing to it changes this lease's own
    copy and nothing else. A view taken before ``release`` stays valid for as long as it is held;
    after it the lease lets go of the memory and gives no more.

    Attributes:
        artifact: the artifact as it was when the lease was granted.
        transport: ``mapped`` or ``streamed``.
        fallback_reason: why the bytes were streamed; "" if they are mapped.
    """

    def __init__(
        self,
        claim: Claim,
        artifact: Artifact,
        layout: Layout,
        image: Image,
        fallback_reason: str = "",
    ) -> None:
        self.artifact = artifact
        self.transport = "streamed" if fallback_reason else "mapped"
        self.fallback_reason = fallback_reason
        self._claim = claim
        self._granted_layout = layout
        self._kept_image: Image | None = image  # None once released; only ever set to that

    @property
    def generation(self) -> int:
        """Which content of the artifact this is."""
        return self._claim.info.generation

    @property
    def superseded(self) -> bool:
        """Whether a newer generation has become READY, as far as this process was told."""
        return self._claim.superseded

    @cached_property
    def layout(self) -> Layout:
        """Where each tensor lies."""
        return replace(self._granted_layout, tensors=tuple(self._image.specs.values()))

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """Dtype, shape and place of every tensor by its name."""
        return self._image.specs

    @property
    def strides(self) -> Mapping[str, tuple[int, ...]]:
        """Distances in elements of those tensors that are not dense: slices of a mapped lease with a shard."""
        return self._image.strides

    @property
    def writable(self) -> bool:
        """Whether the tensors may be written to: not those of a read-only mapping."""
        return not self._image.view.readonly

    @property
    def segment_view(self) -> memoryview:
        """All bytes of the segment, or of the slices of a streamed shard; the layout's offsets point into it."""
        return self._image.view

    @property
    def files(self) -> Mapping[str, bytes]:
        """The source's small files, such as config and tokenizer, byte for byte."""
        return self._image.files

    @cached_property
    def config_json(self) -> bytes:
        """The config file, byte for byte: an adapter's adapter_config.json, a base's config.json; b"" without one."""
        return self.files.get(_CONFIG_NAMES.get(self.artifact.kind, ""), b"")

    @cached_property
    def config(self) -> dict[str, Any]:
        """The config file, parsed; empty without one.

        Raises:
            MalformedArtifact: it is no JSON object.
        """
        try:
            parsed = json.loads(self.config_json.decode("utf-8-sig") or "{}")
        except (ValueError, RecursionError) as error:
            raise MalformedArtifact(f"the config of {self.artifact.artifact_id!r} is not JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise MalformedArtifact(f"the config of {self.artifact.artifact_id!r} is no JSON object")
        return parsed

    def release(self) -> None:
        """End the lease. Idempotent; never fails, also if the daemon has gone or was started anew."""
        held, self._kept_image = self._kept_image is not None, None  # unmapped first: the daemon looks when it hears
        if held:
            self._claim.release()

    def __getitem__(self, name: str) -> memoryview:
        return self._image.tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._image.specs)

    def __len__(self) -> int:
        return len(self._image.specs)

    def __contains__(self, name: object) -> bool:
        return name in self._image.specs

    def __enter__(self) -> Lease:  # noqa: PYI034 - typing.Self is of Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        state = "released" if self._kept_image is None else self.transport
        return f"<Lease {self.artifact.artifact_id!r} generation {self.generation} {state}>"

    __eq__ = object.__eq__  # a claim, not a value: two on the same bytes are two
    __hash__ = object.__hash__

    @property
    def _image(self) -> Image:
        if self._kept_image is None:
            raise LeaseLost(f"the lease on {self.artifact.artifact_id!r} was released; views taken before stay valid")
        return self._kept_image


@dataclass(frozen=True, slots=True)
class _SessionClaim:
    """A claim that hangs on a session."""

    link: Link
    session: Session
    info: LeaseInfo

    @property
    def superseded(self) -> bool:
        return self.info.lease_id in self.session.superseded

    def release(self) -> None:
        """Tell the daemon once, if it can still matter; whoever does not hear it sees the session end."""
        if self.session.lost or self.link.pid != os.getpid():
            return
        deadline = Deadline(RELEASE_SECONDS)
        request = lease_pb2.ReleaseLeaseRequest(session_id=self.session.session_id, lease_id=self.info.lease_id)
        connection = self.link.connection
        with contextlib.suppress(WarmshelfError):
            connection.once(lambda: connection.lease.ReleaseLease(request, timeout=deadline.left()))


def grant(
    link: Link,
    session: Session,
    answer: lease_pb2.AcquireLeaseResponse,
    arena: str,
    shard: Shard | None,
    deadline: Deadline,
    *,
    writable: bool = True,
) -> Lease:
    """Return the lease that the daemon granted, once its bytes are at hand.

    Args:
        link: the process's link, on which the session was opened.
        session: on which the lease hangs.
        answer: what the daemon said.
        arena: its arena's directory here, if somebody said so; else "".
        shard: what of it this process takes; None: everything.
        deadline: for all of it.
        writable: whether a mapping is this process's own, or read-only and shared.

    Raises:
        WarmshelfError: the bytes could not be had; the lease has been given back.
    """
    claim = _SessionClaim(link, session, lease_from_proto(answer.lease))
    try:
        layout = layout_from_proto(answer.layout)
        image, fallback_reason = _bring(
            link, session, answer, _only_segment(layout), arena, shard, deadline, writable=writable
        )
        return Lease(claim, artifact_from_proto(answer.artifact), layout, image, fallback_reason)
    except BaseException:
        claim.release()
        raise


def arrive(
    link: Link,
    session: Session,
    answer: lease_pb2.AcquireLeaseResponse,
    arena: str,
    shard: Shard,
    deadline: Deadline,
    *,
    writable: bool = True,
) -> Iterator[tuple[TensorSpec, memoryview]]:
    """Yield a rank's tensors layer by layer, each once its bytes are at hand; the lease ends with the iterator."""
    claim = _SessionClaim(link, session, lease_from_proto(answer.lease))
    segment = _only_segment(layout_from_proto(answer.layout))
    try:
        image: Image
        try:
            image = shard_image(_map(link, answer, segment, arena, writable=writable), shard)
            specs: Iterable[TensorSpec] = sorted(image.specs.values(), key=layer_of)
        except CannotMap as error:
            request = _request(session, answer, segment, error.fallback_reason)
            stream = ShardStream(link.connection, request, segment, shard, deadline)
            image, specs = stream.image, stream.arrive()
        with _told_as_lost(session):
            for spec in specs:
                yield spec, image.tensor(spec.name)
    finally:
        claim.release()


def _bring(
    link: Link,
    session: Session,
    answer: lease_pb2.AcquireLeaseResponse,
    segment: SegmentSpec,
    arena: str,
    shard: Shard | None,
    deadline: Deadline,
    *,
    writable: bool,
) -> tuple[Image, str]:
    """Return the segment or the rank's slices, and why they were streamed."""
    try:
        if shard:
            return shard_image(_map(link, answer, segment, arena, writable=writable), shard), ""
        return _map(link, answer, segment, arena, writable=writable), ""
    except CannotMap as error:
        request = _request(session, answer, segment, error.fallback_reason)
    seen: Seen = {}
    with _told_as_lost(session):
        if shard:
            stream = ShardStream(link.connection, request, segment, shard, deadline)
            for _ in stream.arrive():
                pass
            return stream.image, request.fallback_reason
        buffer = read_segment(link.connection, request, segment, deadline, seen)
    image = SegmentImage(buffer, segment.content_size_bytes)
    if image.header.segment_id != segment.segment_id:
        raise SegmentCorrupt(f"streamed segment {image.header.segment_id}, leased {segment.segment_id}")
    image.check_data(seen)  # a chunk of another segment is unharmed and at its place, and would pass until here
    return image, request.fallback_reason


def _map(
    link: Link, answer: lease_pb2.AcquireLeaseResponse, segment: SegmentSpec, arena: str, *, writable: bool
) -> SegmentImage:
    directory = arena or _shared_directory(link, answer)
    return map_segment(directory, segment.segment_id, segment.size_bytes, read_only=not writable)


def _request(
    session: Session, answer: lease_pb2.AcquireLeaseResponse, segment: SegmentSpec, fallback_reason: str
) -> transfer_pb2.ReadSegmentRequest:
    return transfer_pb2.ReadSegmentRequest(
        lease_id=answer.lease.lease_id,
        session_id=session.session_id,
        segment_index=segment.segment_index,
        fallback_reason=fallback_reason,
    )


@contextlib.contextmanager
def _told_as_lost(session: Session) -> Iterator[None]:
    """Tell a daemon that cannot be reached as the loss of the lease, if its session is lost."""
    try:
        yield
    except DaemonUnreachable as error:
        if session.lost:
            raise LeaseLost(f"the daemon went away in mid-stream: {error.message}") from error
        raise


def _shared_directory(link: Link, answer: lease_pb2.AcquireLeaseResponse) -> str:
    """Return the arena as the daemon names it, if that can mean anything here."""
    if not link.connection.address.socket_path:
        raise CannotMap("tcp", "the daemon may be on another host")
    for location in answer.locations:
        if location.WhichOneof("way") == "arena_directory":
            return str(location.arena_directory)
    raise CannotMap("arena_not_visible", "the daemon names no arena")


def _only_segment(layout: Layout) -> SegmentSpec:
    if len(layout.segments) != 1:
        raise Internal(f"the daemon leased {len(layout.segments)} segments, this client takes one")
    return layout.segments[0]
