"""Every way a call can fail: one class per reason, one table for both sides.

The daemon raises these, sends them as ``google.rpc.ErrorInfo`` and the client
finds the class again by its reason, never by text. This module knows neither
gRPC nor protobuf.

A class's reason is its name in UPPER_SNAKE (``ArenaFull`` is ``ARENA_FULL``).
"""

from __future__ import annotations

from collections.abc import Mapping

from warmshelf._error import Code as Code
from warmshelf._error import Detail as Detail
from warmshelf._error import Fault as Fault
from warmshelf._error import WarmshelfError as WarmshelfError
from warmshelf._error import decode_detail
from warmshelf._source_errors import ConfigMissing as ConfigMissing
from warmshelf._source_errors import DecryptionFailed as DecryptionFailed
from warmshelf._source_errors import DigestMismatch as DigestMismatch
from warmshelf._source_errors import KeyMissing as KeyMissing
from warmshelf._source_errors import MalformedArtifact as MalformedArtifact
from warmshelf._source_errors import SourceChanged as SourceChanged
from warmshelf._source_errors import SourceChangedDuringLoad as SourceChangedDuringLoad
from warmshelf._source_errors import SourceNotFound as SourceNotFound
from warmshelf._source_errors import SourceTruncated as SourceTruncated
from warmshelf._source_errors import SourceUnavailable as SourceUnavailable
from warmshelf._source_errors import UnsupportedDtype as UnsupportedDtype
from warmshelf._source_errors import UnsupportedFormat as UnsupportedFormat

DOMAIN = "warmshelf.v1"
"""The ``domain`` of every ``google.rpc.ErrorInfo`` sent by the daemon."""


# --- the caller's -----------------------------------------------------------


class _CallerError(WarmshelfError):
    fault = Fault.CALLER
    code = Code.INVALID_ARGUMENT


class InvalidId(_CallerError):
    """The artifact ID breaks the grammar of IDs."""


class InvalidSpec(_CallerError):
    """The registration contradicts itself or what the source shows."""


class InvalidRequest(_CallerError):
    """A field of the request has a value it cannot have."""


class InvalidPageToken(_CallerError):
    """The page token was not made by this listing."""


class BaseMismatch(_CallerError):
    """The adapter's modules or shapes do not fit its base."""


class ArtifactNotFound(_CallerError):
    """No artifact is known under this ID."""

    code = Code.NOT_FOUND


class SegmentNotFound(_CallerError):
    """The leased layout has no such segment."""

    code = Code.NOT_FOUND


class PushNotFound(_CallerError):
    """No push of this number is under way: it was finished, dropped, or never begun. Begin anew."""

    code = Code.NOT_FOUND


class SpecMismatch(_CallerError):
    """The ID is known with another spec."""

    code = Code.ALREADY_EXISTS


class AliasMoved(_CallerError):
    """The alias means another artifact than the caller expected. Look at it, then decide."""

    code = Code.FAILED_PRECONDITION


class SourceNotAllowed(_CallerError):
    """The source is outside the allowed prefixes. Says nothing of what is there."""

    code = Code.PERMISSION_DENIED


class Unauthenticated(_CallerError):
    """The caller does not say who it is, or its token is nobody's."""

    code = Code.UNAUTHENTICATED


class PermissionDenied(_CallerError):
    """The caller is known and has not the role that the call takes."""

    code = Code.PERMISSION_DENIED


class Leased(_CallerError):
    """Somebody holds a lease on the artifact."""

    code = Code.FAILED_PRECONDITION
    retryable = True


class NotResident(_CallerError):
    """The artifact has no bytes in the arena, and the call asked not to load."""

    code = Code.FAILED_PRECONDITION


class SessionLost(_CallerError):
    """The session is not known to this daemon: it ended, or the daemon restarted."""

    code = Code.FAILED_PRECONDITION
    retryable = True


class LeaseLost(_CallerError):
    """The lease is not known to this daemon, or hangs on another session."""

    code = Code.FAILED_PRECONDITION
    retryable = True


class FeatureUnsupported(_CallerError):
    """The adapter needs a feature that the worker does not honour."""

    code = Code.FAILED_PRECONDITION


class RankTooLarge(_CallerError):
    """The adapter's rank is above what the worker takes."""

    code = Code.FAILED_PRECONDITION


class OffsetOutOfRange(_CallerError):
    """The range asked for reaches outside the segment."""

    code = Code.OUT_OF_RANGE


class SequenceCompacted(_CallerError):
    """The changes after this sequence number are gone: watch from 0 again."""

    code = Code.OUT_OF_RANGE


class Cancelled(_CallerError):
    """The caller cancelled the call."""

    code = Code.CANCELLED


class DeadlineExceeded(_CallerError):
    """The call's deadline passed before it could finish."""

    code = Code.DEADLINE_EXCEEDED
    retryable = True


class OutOfMemory(_CallerError):
    """The calling process cannot have the memory that the bytes take. Raised by the client alone."""

    code = Code.RESOURCE_EXHAUSTED
    retryable = True


class FormatTooNew(_CallerError):
    """The segment was written in a newer format than this side reads."""

    code = Code.UNIMPLEMENTED


# --- the daemon's -----------------------------------------------------------


class ArenaFull(WarmshelfError):
    """There was no room in the arena before the deadline."""

    code = Code.RESOURCE_EXHAUSTED
    retryable = True


class LargerThanArena(WarmshelfError):
    """The artifact can never fit into the arena. Do not retry."""

    code = Code.RESOURCE_EXHAUSTED


class CatalogFull(WarmshelfError):
    """As many artifacts are registered as the daemon may hold."""

    code = Code.RESOURCE_EXHAUSTED


class TooManySessions(WarmshelfError):
    """As many sessions are open as the daemon may hold."""

    code = Code.RESOURCE_EXHAUSTED
    retryable = True


class TooManyLeases(WarmshelfError):
    """As many leases are held as the daemon allows."""

    code = Code.RESOURCE_EXHAUSTED
    retryable = True


class TooManyStreams(WarmshelfError):
    """As many reads are streaming as the daemon allows."""

    code = Code.RESOURCE_EXHAUSTED
    retryable = True


class TooManyPushes(WarmshelfError):
    """As many pushes are unfinished as the daemon allows."""

    code = Code.RESOURCE_EXHAUSTED
    retryable = True


class SpoolFull(WarmshelfError):
    """There is no room for the push in the spool, or on its disk."""

    code = Code.RESOURCE_EXHAUSTED
    retryable = True


class LargerThanSpool(WarmshelfError):
    """The push can never fit into the spool. Do not retry."""

    code = Code.RESOURCE_EXHAUSTED


class SpoolUnavailable(WarmshelfError):
    """The spool cannot be written or read just now."""

    code = Code.UNAVAILABLE
    retryable = True


class BankFull(WarmshelfError):
    """Every slot of the worker's adapter bank is in use. Wait for one, or give the bank more."""

    code = Code.RESOURCE_EXHAUSTED
    fault = Fault.CALLER
    retryable = True


class PinningFailed(WarmshelfError):
    """Page-locking is required and was refused."""

    code = Code.RESOURCE_EXHAUSTED


class Draining(WarmshelfError):
    """The daemon is about to stop and takes no new work."""

    code = Code.UNAVAILABLE
    retryable = True


class DaemonUnreachable(WarmshelfError):
    """No daemon answers at the address."""

    code = Code.UNAVAILABLE
    retryable = True


class LoadCancelled(WarmshelfError):
    """The load was stopped before it finished, such as by a removal."""

    code = Code.ABORTED
    retryable = True


class StreamStalled(WarmshelfError):
    """The other side took or sent nothing for too long; resume where it stopped."""

    code = Code.ABORTED
    retryable = True


class ChunkCorrupt(WarmshelfError):
    """A chunk arrived with another CRC, or out of place."""

    code = Code.DATA_LOSS
    retryable = True


class SegmentCorrupt(WarmshelfError):
    """Bytes in the arena are not those that were sealed."""

    code = Code.DATA_LOSS
    retryable = True


class RegistryUnavailable(WarmshelfError):
    """The registry cannot keep or tell what is registered just now; nothing was changed in it."""

    code = Code.UNAVAILABLE
    retryable = True


class DaemonInUse(WarmshelfError):
    """Another daemon already serves this address or arena."""

    code = Code.FAILED_PRECONDITION


class InvalidConfig(WarmshelfError):
    """The daemon's configuration cannot be used."""

    code = Code.INVALID_ARGUMENT
    fault = Fault.CALLER


class NotImplementedHere(WarmshelfError):
    """This daemon does not offer the call."""

    code = Code.UNIMPLEMENTED


class Internal(WarmshelfError):
    """A bug in warmshelf; the daemon's log has more."""


def _public_subclasses(root: type[WarmshelfError]) -> list[type[WarmshelfError]]:
    found = []
    for cls in root.__subclasses__():
        if not cls.__name__.startswith("_"):
            found.append(cls)
        found.extend(_public_subclasses(cls))
    return found


TABLE: Mapping[str, type[WarmshelfError]] = {cls.reason: cls for cls in _public_subclasses(WarmshelfError)}
"""Every error by its reason."""


def from_wire(reason: str, message: str, metadata: Mapping[str, str]) -> WarmshelfError:
    """Return the error that the daemon raised; an unknown reason becomes Internal."""
    cls = TABLE.get(reason, Internal)
    details: dict[str, Detail] = {key: decode_detail(key, text) for key, text in metadata.items()}
    if cls is Internal and reason != Internal.reason:
        details["sent_reason"] = reason
    return _build(cls, message, details)


def _build(cls: type[WarmshelfError], message: str, details: Mapping[str, Detail]) -> WarmshelfError:
    error = cls(message)
    error.details.update(details)
    return error
