"""A segment in another node's memory, read as any source is: over the calls that workers stream with.

Every chunk is checked by its CRC and its place, and must come in time. Whatever goes wrong
is a ``NeighbourFault`` and ends it: nothing is tried again here, for the artifact's own source
is always there. Knows neither which node to ask nor what the bytes mean.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import crc32c
import grpc

from warmshelf._channel import Address, Connection
from warmshelf._security import Security
from warmshelf.errors import (
    ArtifactNotFound,
    ChunkCorrupt,
    DeadlineExceeded,
    DigestMismatch,
    Draining,
    LeaseLost,
    LoadCancelled,
    NotResident,
    SegmentCorrupt,
    SessionLost,
    TooManyLeases,
    TooManySessions,
    TooManyStreams,
    WarmshelfError,
)
from warmshelf.segment import HEADER_BYTES, Section, SegmentHeader, parse_header
from warmshelf.transfer import chunks
from warmshelf.v1 import lease_pb2, transfer_pb2
from warmshelfd.sources.base import OpenSource

_T = TypeVar("_T")

UPLOAD_REASON = "neighbour"
"""The fallback reason that marks a node's reads among those of workers."""

_GAP_BYTES = 256 << 10
"""At a GB/s, what is read while a request makes its way."""

_SESSION_SECONDS_MAX = 24 * 3600.0
"""Longest life of the session on which the lease hangs; no load takes as long."""

_SECTION_BYTES_MAX = 192 << 20
"""Longest layout or manifest that is read: what the limits of formats allow, with room for its encoding."""

_GONE = (ArtifactNotFound, NotResident, DigestMismatch, LeaseLost, SessionLost, Draining, SegmentCorrupt)
_BUSY = (TooManyStreams, TooManySessions, TooManyLeases)


class NeighbourFault(Exception):  # noqa: N818 - it says what happened; never leaves the daemon
    """The neighbour is of no use; ``outcome`` is one of the metric's words."""

    def __init__(self, outcome: str, text: str) -> None:
        super().__init__(text)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a neighbour may take.

    Attributes:
        stall_seconds: to be connected to and to answer a call, and of silence before a read.
        bytes_per_second_min: what each of its reads must bring on average.
    """

    stall_seconds: float
    bytes_per_second_min: int

    def of_read(self, size_bytes: int) -> float:
        """Return how long a read of so many bytes may take."""
        return self.stall_seconds + size_bytes / self.bytes_per_second_min


class NeighbourSegment(OpenSource):
    """An artifact that is leased on another node; ``close`` ends the lease. For several threads."""

    parallel_reads_min = 4
    gap_bytes = _GAP_BYTES

    def __init__(self, address: str, ip: str, port: int, patience: Patience, security: Security) -> None:
        """Nothing is connected to before ``lease``, and then to this IP address alone: no name is looked up."""
        self.uri = f"{UPLOAD_REASON}://{address}"
        self.small_files: Mapping[str, bytes] = {}
        self.looks = ""
        self._patience = patience
        target = f"ipv6:[{ip}]:{port}" if ":" in ip else f"ipv4:{ip}:{port}"
        self._connection = Connection(Address(address, target), security)
        self._lock = threading.Lock()  # guards the two below
        self._calls: set[Any] = set()
        self._is_stopped = False
        self._session_id = self._lease_id = ""
        self._size_bytes = 0
        self.read_bytes = 0  # only shown: counted by several threads without a lock

    def lease(self, holder: str, artifact_id: str, digest: str) -> None:
        """Lease the artifact, if it is resident there with this content."""
        request = lease_pb2.OpenSessionRequest(holder=holder)
        session = self._begun(lambda: self._connection.lease.OpenSession(request, timeout=_SESSION_SECONDS_MAX))
        self._session_id = self._asked(lambda: self._first(session)).session_id
        self._lease_id = secrets.token_hex(16)
        wanted = lease_pb2.AcquireLeaseRequest(
            session_id=self._session_id,
            artifact_id=artifact_id,
            resident_only=True,
            expected_digest=digest,
            lease_id=self._lease_id,
        )
        seconds = self._patience.stall_seconds
        answer = self._asked(lambda: self._connection.lease.AcquireLease(wanted, timeout=seconds))
        sizes = [segment.content_size_bytes for segment in answer.layout.segments]
        if len(sizes) != 1 or sizes[0] < HEADER_BYTES:
            raise NeighbourFault("lied", "names no segment")
        self._size_bytes = sizes[0]

    def head(self) -> tuple[SegmentHeader, bytes, bytes]:
        """Return the segment's header, its layout and its manifest; the last two only checked by their CRC."""
        try:
            header = parse_header(self._range(0, HEADER_BYTES), self._size_bytes)
        except WarmshelfError as error:
            raise NeighbourFault("lied", error.message) from None
        return header, self._section(header.layout), self._section(header.manifest)

    def _section(self, section: Section) -> bytes:
        if section.size > _SECTION_BYTES_MAX:
            raise NeighbourFault("lied", f"has a section of {section.size} bytes")
        data = self._range(section.offset, section.size)
        if crc32c.crc32c(data) != section.crc:
            raise NeighbourFault("lied", "sent a section with another CRC than its header says")
        return data

    def _range(self, offset: int, size: int) -> bytes:
        data = bytearray(size)
        with memoryview(data) as view:
            self._stream(offset, view)
        return bytes(data)

    # --- as a source --------------------------------------------------------

    def files(self) -> Mapping[str, int]:
        """Return the small files; the rest is read by its place in the segment, whatever file it came from."""
        return {name: len(data) for name, data in self.small_files.items()}

    def read_into(self, name: str, offset: int, view: memoryview) -> None:
        """Fill the view from a small file, or else from the segment."""
        if name in self.small_files:
            view[:] = self.small_files[name][offset : offset + len(view)]
        else:
            self._stream(offset, view)

    def fingerprint(self, names: Sequence[str]) -> str:  # noqa: ARG002 - as it was when it was opened
        """Return how the artifact's own source was known to look: it is not looked at."""
        return self.looks

    def stop(self) -> None:
        """As the interface says."""
        with self._lock:
            self._is_stopped = True
            calls = list(self._calls)
        for call in calls:
            call.cancel()

    def close(self) -> None:
        """As the interface says."""
        self._connection.close()

    # --- calls --------------------------------------------------------------

    def _stream(self, offset: int, view: memoryview) -> None:
        request = transfer_pb2.ReadSegmentRequest(
            lease_id=self._lease_id,
            session_id=self._session_id,
            fallback_reason=UPLOAD_REASON,
            offset_bytes=offset,
            limit_bytes=len(view),
        )
        if not len(view):
            return
        seconds = self._patience.of_read(len(view))
        call = self._begun(lambda: self._connection.read_segment(request, timeout=seconds))
        try:
            done = self._asked(lambda: self._received(call, offset, view))
        finally:
            self._ended(call)
        if done < len(view):
            raise NeighbourFault("lied", f"ended a read of {len(view)} bytes after {done}")

    def _received(self, call: Any, offset: int, view: memoryview) -> int:
        done = 0
        for data in chunks(call, offset, offset + len(view)):
            view[done : done + len(data)] = data
            done += len(data)
            self.read_bytes += len(data)
        return done

    def _first(self, session: Any) -> Any:
        """Return the session's first message; its later ones are never read, so they cost nothing."""
        timer = threading.Timer(self._patience.stall_seconds, session.cancel)
        timer.start()
        try:
            return next(session)
        except StopIteration:
            raise NeighbourFault("lied", "ended a session before it named it") from None
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.CANCELLED and not self._is_stopped:
                raise NeighbourFault("slow", "does not answer") from None
            raise
        finally:
            timer.cancel()

    def _begun(self, begin: Callable[[], Any]) -> Any:
        """Begin a call that ``stop`` cancels."""
        call = self._asked(begin)
        with self._lock:
            self._calls.add(call)
            is_stopped = self._is_stopped
        if is_stopped:
            call.cancel()
        return call

    def _ended(self, call: Any) -> None:
        call.cancel()
        with self._lock:
            self._calls.discard(call)

    def _asked(self, ask: Callable[[], _T]) -> _T:
        """Return what an exchange gives; say in one word what went wrong with it."""
        try:
            return self._connection.once(ask)
        except ChunkCorrupt as error:
            raise NeighbourFault("lied", error.message) from None
        except WarmshelfError as error:
            if self._is_stopped:
                raise LoadCancelled("the read from another node was stopped") from None
            raise NeighbourFault(_outcome(error), error.message) from None


def _outcome(error: WarmshelfError) -> str:
    if isinstance(error, _GONE):
        return "gone"
    if isinstance(error, _BUSY):
        return "busy"
    return "slow" if isinstance(error, DeadlineExceeded) else "dead"
