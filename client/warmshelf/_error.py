"""What every error of warmshelf has: reason, code, fault, numbers. The classes are in ``errors``."""

from __future__ import annotations

import re

from warmshelf._str_enum import StrEnum

Detail = str | int | float

_NUMBER_SUFFIXES = ("_bytes", "_count", "_seconds", "_max", "_index", "_number")


class Code(StrEnum):
    """Canonical status codes, named as gRPC names them; each is equal to its name."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    UNAVAILABLE = "UNAVAILABLE"
    DATA_LOSS = "DATA_LOSS"
    ABORTED = "ABORTED"
    OUT_OF_RANGE = "OUT_OF_RANGE"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    CANCELLED = "CANCELLED"
    UNIMPLEMENTED = "UNIMPLEMENTED"
    INTERNAL = "INTERNAL"


class Fault(StrEnum):
    """Whose fault an error is."""

    CALLER = "caller"
    SOURCE = "source"
    DAEMON = "daemon"


class WarmshelfError(Exception):
    """Base of all errors of warmshelf.

    Attributes:
        reason: UPPER_SNAKE name of the error, stable across releases.
        code: the canonical status code it travels under.
        retryable: whether the same call may succeed later, unchanged.
        fault: whose fault it is.
        details: the numbers and names behind the message. Values whose key
            ends in a unit (``_bytes``, ``_count``, ``_seconds`` ...) are
            numbers, all others strings. Carries no secret.
    """

    reason: str = "INTERNAL"
    code: Code = Code.INTERNAL
    retryable: bool = False
    fault: Fault = Fault.DAEMON

    def __init__(self, message: str, **details: Detail) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, Detail] = details

    def __init_subclass__(cls) -> None:
        cls.reason = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).upper()

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.details))


def _rebuild(cls: type[WarmshelfError], message: str, details: dict[str, Detail]) -> WarmshelfError:
    error = cls(message)
    error.details.update(details)
    return error


def decode_detail(key: str, text: str) -> Detail:
    """Return a detail as it was before it became text: a number where its name says so."""
    if not key.endswith(_NUMBER_SUFFIXES):
        return text
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text
