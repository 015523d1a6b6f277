"""Errors whose fault is the source's, or the file's in it; ``errors`` has all of them."""

from __future__ import annotations

from warmshelf._error import Code, Fault, WarmshelfError


class _SourceError(WarmshelfError):
    fault = Fault.SOURCE
    code = Code.INVALID_ARGUMENT


class MalformedArtifact(_SourceError):
    """A file of the source is not what its format says it must be."""


class UnsupportedFormat(_SourceError):
    """The source's files are in no format that the daemon reads."""


class UnsupportedDtype(_SourceError):
    """A tensor has a dtype that is not known."""


class ConfigMissing(_SourceError):
    """The source lacks the config file that its kind needs."""


class SourceNotFound(_SourceError):
    """The source, or a file that it promises, does not exist."""

    code = Code.NOT_FOUND


class SourceTruncated(_SourceError):
    """A file is shorter than its own header says."""

    code = Code.DATA_LOSS


class SourceChanged(_SourceError):
    """The source holds other bytes than those the ID was pinned to."""

    code = Code.FAILED_PRECONDITION


class SourceChangedDuringLoad(_SourceError):
    """The source changed while it was being read."""

    code = Code.ABORTED
    retryable = True


class SourceUnavailable(_SourceError):
    """The source cannot be read just now."""

    code = Code.UNAVAILABLE
    retryable = True


class DigestMismatch(_SourceError):
    """The content has another digest than expected."""

    code = Code.DATA_LOSS


class KeyMissing(_SourceError):
    """The source is encrypted, and the daemon has no key for it."""

    code = Code.FAILED_PRECONDITION


class DecryptionFailed(_SourceError):
    """The source's bytes are not what the key was used on: another key, or bytes that were changed."""

    code = Code.DATA_LOSS
