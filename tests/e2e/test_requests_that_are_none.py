"""Bytes that are no request, and requests that are too long: answered with a type, told in a line."""

from __future__ import annotations

import json
import logging

import grpc
import pytest
from grpc._cython import cygrpc

from kit.plain import refused
from kit.processes import Daemon, eventually
from warmshelf.errors import InvalidRequest
from warmshelfd.listening import _GRPC_LOGGER, _is_news

GARBAGE = b"\xff" * 9
CALLS = {
    "LeaseService/AcquireLease": "unary_unary",
    "LeaseService/OpenSession": "unary_stream",
    "CatalogService/LoadArtifact": "unary_stream",
    "TransferService/ReadSegment": "unary_stream",
}
OTHERS = {
    "grpc.health.v1.Health/Check": "unary_unary",
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": "stream_stream",
}


def call(daemon: Daemon, method: str, kind: str, data: bytes) -> None:
    with grpc.insecure_channel(daemon.address) as channel:
        request = iter([data]) if kind.startswith("stream") else data
        answer = getattr(channel, kind)(f"/{method}")(request, timeout=20)
        if kind.endswith("stream"):
            list(answer)


def lines_of(daemon: Daemon) -> list[dict[str, object]]:
    return [json.loads(line) for line in daemon.log.read_text().splitlines()]


@pytest.mark.parametrize("method", CALLS)
def test_bytes_that_are_no_request_are_an_invalid_argument_and_one_line(shared: Daemon, method: str) -> None:
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"):
        call(shared, f"warmshelf.v1.{method}", CALLS[method], GARBAGE)

    def lines() -> list[dict[str, object]]:
        return [line for line in lines_of(shared) if line.get("method") == f"warmshelf.v1.{method}"]

    eventually(lambda: any(line.get("reason") == "INVALID_REQUEST" for line in lines()), "it is in the log")
    assert "Traceback" not in shared.log.read_text()


@pytest.mark.parametrize("method", OTHERS)
def test_to_grpcs_own_services_they_are_one_line_without_a_traceback(shared: Daemon, method: str) -> None:
    with pytest.raises(grpc.RpcError):
        call(shared, method, OTHERS[method], GARBAGE)
    assert ["exception" in line for line in lines_of(shared) if f"/{method}]" in str(line)] == [False]


def test_of_what_grpc_logs_only_callers_that_have_gone_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger(_GRPC_LOGGER)
    log.addFilter(_is_news)
    try:
        for error in (cygrpc.ExecuteBatchError("Failed"), ValueError("a bug")):
            try:
                raise error
            except Exception:
                log.exception("Unexpected")
        log.error("without an error")
    finally:
        log.removeFilter(_is_news)
    assert [record.exc_info[1] if record.exc_info else None for record in caplog.records] == [error, None]


def test_a_request_that_is_too_long_is_told_with_the_limit(shared: Daemon) -> None:
    with shared.connect() as shelf, pytest.raises(InvalidRequest, match="message_bytes_max") as caught:
        shelf.register("x", "file:///" + "x" * (2 << 20))
    assert caught.value.details["request_bytes_max"] == 1 << 20
    assert int(caught.value.details["request_bytes"]) > 2 << 20
