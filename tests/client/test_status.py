"""Errors keep their class, text and numbers across the wire, and always fit through it."""

from __future__ import annotations

import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import code_pb2, error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from warmshelf import errors
from warmshelf._status import error_from_status, error_to_status
from warmshelf.errors import TABLE, ArenaFull, DaemonUnreachable, Internal, InvalidId

TRAILING_BYTES_MAX = 8192  # what gRPC takes of trailing metadata before it drops the call


@pytest.mark.parametrize("reason", sorted(TABLE))
def test_every_error_of_the_table_goes_round(reason: str) -> None:
    """B05: text in any script arrives."""
    error = TABLE[reason]("für «Модель» 模型", need_bytes=7, left_seconds=1.5, name="ünï")
    status = error_to_status(error)
    back = error_from_status("WHATEVER", error.message, status.SerializeToString())
    assert type(back) is type(error)
    assert (back.message, back.details) == (error.message, error.details)
    assert (back.reason, back.retryable, back.code) == (reason, error.retryable, error.code)
    assert code_pb2.Code.Name(status.code) == error.code.value


@pytest.mark.parametrize("reason", sorted(TABLE))
def test_what_may_be_tried_again_later_says_when(reason: str) -> None:
    cls = TABLE[reason]
    status = error_to_status(cls("x"))
    retry = [detail for detail in status.details if detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR)]
    not_now = cls.retryable and cls.code in {errors.Code.RESOURCE_EXHAUSTED, errors.Code.UNAVAILABLE}
    assert len(retry) == not_now


@given(
    st.text(max_size=6000),
    st.dictionaries(st.text("abc_", min_size=1, max_size=40), st.text(max_size=3000) | st.integers(), max_size=30),
)
def test_no_error_is_too_long_to_be_sent(message: str, details: dict[str, str | int]) -> None:
    error = InvalidId(message)
    error.details.update(details)
    status = error_to_status(error)
    raw = status.SerializeToString()
    sent = 4 * (len(raw) // 3 + 1) + 3 * len(status.message.encode())
    assert sent < TRAILING_BYTES_MAX
    assert type(error_from_status("INVALID_ARGUMENT", status.message, raw)) is InvalidId


def test_a_long_text_is_cut_at_a_character_and_says_so() -> None:
    text = error_to_status(Internal("ü" * 2000)).message
    assert text.endswith("ü...")
    assert set(text[:-3]) == {"ü"}


def test_a_lone_surrogate_is_made_visible() -> None:
    status = error_to_status(Internal("a\udc80b", name="\udc81"))
    assert status.message == "a\\udc80b"


def test_a_reason_of_a_newer_daemon_becomes_internal_and_keeps_its_name() -> None:
    info = error_details_pb2.ErrorInfo(reason="FROM_TOMORROW", domain=errors.DOMAIN)
    packed = AnyMessage()
    packed.Pack(info)
    back = error_from_status("ABORTED", "text", status_pb2.Status(details=[packed]).SerializeToString())
    assert type(back) is Internal
    assert back.details["sent_reason"] == "FROM_TOMORROW"


def test_an_error_info_of_another_domain_is_not_ours() -> None:
    info = error_details_pb2.ErrorInfo(reason=ArenaFull.reason, domain="example.com")
    packed = AnyMessage()
    packed.Pack(info)
    back = error_from_status("UNAVAILABLE", "text", status_pb2.Status(details=[packed]).SerializeToString())
    assert type(back) is DaemonUnreachable


@pytest.mark.parametrize("raw", [None, b"", b"\xff\xff\xff"])
@pytest.mark.parametrize(
    ("code", "cls"),
    [
        ("UNAVAILABLE", errors.DaemonUnreachable),
        ("DEADLINE_EXCEEDED", errors.DeadlineExceeded),
        ("CANCELLED", errors.Cancelled),
        ("UNIMPLEMENTED", errors.NotImplementedHere),
        ("RESOURCE_EXHAUSTED", errors.Internal),
    ],
)
def test_a_status_without_our_details_is_read_by_its_code(
    raw: bytes | None, code: str, cls: type[errors.WarmshelfError]
) -> None:
    back = error_from_status(code, "text", raw)
    assert type(back) is cls
    assert "text" in back.message
