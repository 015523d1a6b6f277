"""Errors as ``google.rpc.Status``, both ways, for client and daemon.

The reason travels in an ErrorInfo, so a class is found again by it and never by text.
This module knows no gRPC: no channel, call or context.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2

from warmshelf import errors
from warmshelf.errors import Code, Internal, WarmshelfError

STATUS_METADATA_KEY = "grpc-status-details-bin"
"""Trailing metadata that carries the serialized ``google.rpc.Status``."""

MESSAGE_BYTES_MAX = 1024
"""Of an error's text. gRPC drops a call whose trailing metadata exceed 8 KiB, where this
stands twice, once percent-encoded (three bytes for one) and once in base64."""

DETAILS_BYTES_MAX = 2048
"""Of the names and values of an error's details, for the same reason."""

_CUT = "..."  # what a clipped text ends with

RETRY_DELAY_SECONDS = 1
"""What a retryable error that says "not now" tells the caller to wait."""

_CODES_NOT_NOW = (Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE)

_REASON_BY_CODE: dict[str, type[WarmshelfError]] = {
    Code.CANCELLED.value: errors.Cancelled,
    Code.DEADLINE_EXCEEDED.value: errors.DeadlineExceeded,
    Code.UNAVAILABLE.value: errors.DaemonUnreachable,
    Code.UNIMPLEMENTED.value: errors.NotImplementedHere,
    Code.UNAUTHENTICATED.value: errors.Unauthenticated,
    Code.PERMISSION_DENIED.value: errors.PermissionDenied,
}
"""What a status means that did not come from a daemon of ours, but from gRPC or a proxy."""

_TOO_LONG = re.compile(r"(?:SERVER: )?Received message larger than max \((\d+) vs\. (\d+)\)")
"""What gRPC itself says at the daemon to a request beyond its limit, before anything of ours sees it."""


def error_to_status(error: WarmshelfError) -> Any:
    """Return the ``google.rpc.Status`` of an error: its code, its text and an ErrorInfo."""
    info = error_details_pb2.ErrorInfo(
        reason=error.reason, domain=errors.DOMAIN, metadata=_details_to_metadata(error.details)
    )
    status = status_pb2.Status(
        code=code_pb2.Code.Value(error.code.value), message=_clip(error.message, MESSAGE_BYTES_MAX)
    )
    status.details.append(_pack(info))
    if error.retryable and error.code in _CODES_NOT_NOW:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromSeconds(RETRY_DELAY_SECONDS)
        status.details.append(_pack(retry))
    return status


def error_from_status(code: str, message: str, status_bytes: bytes | None) -> WarmshelfError:
    """Return the error behind a failed call.

    Args:
        code: the name of the gRPC status code, such as ``UNAVAILABLE``.
        message: the status text.
        status_bytes: the value of ``STATUS_METADATA_KEY``, if there was one.
    """
    info = _error_info(status_bytes or b"")
    if info is not None:
        return errors.from_wire(info.reason, message, dict(info.metadata))
    if code == Code.RESOURCE_EXHAUSTED.value and (sizes := _TOO_LONG.fullmatch(message)):
        return errors.InvalidRequest(
            f"the request has {sizes[1]} bytes, the daemon takes {sizes[2]} (its message_bytes_max)",
            request_bytes=int(sizes[1]),
            request_bytes_max=int(sizes[2]),
        )
    cls = _REASON_BY_CODE.get(code)
    return cls(message) if cls else Internal(f"{code}: {message}", sent_code=code)


def _error_info(status_bytes: bytes) -> Any | None:
    try:
        status = status_pb2.Status.FromString(status_bytes)
        for detail in status.details:
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info) and info.domain == errors.DOMAIN:
                return info
    except DecodeError:
        pass
    return None


def _details_to_metadata(details: dict[str, errors.Detail]) -> dict[str, str]:
    metadata = {}
    left_bytes = DETAILS_BYTES_MAX
    for key, value in details.items():
        text = _clip(str(value), left_bytes - len(key))
        left_bytes -= len(key) + len(text.encode())
        if left_bytes < 0:
            break
        metadata[key] = text
    return metadata


def _clip(text: str, bytes_max: int) -> str:
    """Return the text in at most that many bytes of UTF-8, which a lone surrogate never is."""
    encoded = text.encode("utf-8", "backslashreplace")
    if len(encoded) <= bytes_max:
        return encoded.decode()
    kept_bytes = bytes_max - len(_CUT)
    return encoded[:kept_bytes].decode("utf-8", "ignore") + _CUT if kept_bytes >= 0 else ""


def _pack(message: Any) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed
