"""Addresses are understood or refused, and a failed call says what it means."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

import warmshelf
from kit.segments import SegmentFile
from kit.standin import StandIn
from warmshelf import _channel
from warmshelf._channel import Connection, Deadline, default_address, parse_address
from warmshelf.errors import ArtifactNotFound, DaemonUnreachable, DeadlineExceeded, InvalidRequest
from warmshelf.v1 import catalog_pb2


@pytest.mark.parametrize(
    ("text", "target", "path"),
    [
        ("unix:///run/w/api.sock", "unix:/run/w/api.sock", "/run/w/api.sock"),
        ("unix:/run/w/api.sock", "unix:/run/w/api.sock", "/run/w/api.sock"),
        ("unix:///a b%41#?/ü.sock", "unix:/a%20b%2541%23%3F/%C3%BC.sock", "/a b%41#?/ü.sock"),
        ("localhost:50051", "dns:///localhost:50051", ""),
        ("10.0.0.1:1", "dns:///10.0.0.1:1", ""),
        ("[::1]:65535", "dns:///[::1]:65535", ""),
    ],
)
def test_an_address_is_understood(text: str, target: str, path: str) -> None:
    address = parse_address(text)
    assert (address.text, address.target, address.socket_path) == (text, target, path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost",
        "localhost:0",
        "localhost:65536",
        ":50051",
        "http://localhost:50051",
        "unix:api.sock",
        "unix://api.sock",
        "unix:////api.sock",
        "/run/api.sock",
        "a:1\n",
        "::1:50051",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_address(text)


def test_tls_on_a_unix_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="TLS"):
        warmshelf.connect(f"unix://{tmp_path}/api.sock", tls=grpc.ssl_channel_credentials())


def test_a_socket_path_that_the_kernel_cannot_take_is_refused_with_both_lengths() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_address("unix:///" + "x" * 107)
    assert caught.value.details == {"path_bytes": 108, "path_bytes_max": 107}
    parse_address("unix:///" + "x" * 106)


def test_the_default_address_is_the_environments_then_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WARMSHELF_ADDRESS", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert default_address() == f"unix:///tmp/warmshelf-{os.getuid()}/api.sock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert default_address() == "unix:///run/user/7/warmshelf/api.sock"
    monkeypatch.setenv("WARMSHELF_ADDRESS", "node:1")
    assert default_address() == "node:1"


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e9])
def test_a_timeout_that_ends_nothing_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidRequest):
        Deadline(seconds)


def test_a_deadline_that_has_passed_leaves_nothing_and_grants_no_pause() -> None:
    deadline = Deadline(1e-9)
    with pytest.raises(DeadlineExceeded, match="1e-09 s"):
        deadline.left()
    assert not deadline.pause(0.0)


def test_a_daemon_that_was_never_there_is_unreachable_soon_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_channel, "FIRST_CONTACT_SECONDS", 0.5)
    address = f"unix://{tmp_path}/api.sock"
    start = time.monotonic()
    with warmshelf.connect(address, timeout=60) as shelf, pytest.raises(DaemonUnreachable, match=address):
        shelf.get("a")
    assert time.monotonic() - start < 3


def test_a_short_timeout_ends_the_search_for_a_daemon(tmp_path: Path) -> None:
    start = time.monotonic()
    with (
        warmshelf.connect("127.0.0.1:1", timeout=0.3) as shelf,
        pytest.raises(DaemonUnreachable, match=r"127\.0\.0\.1:1"),
    ):
        shelf.get("a")
    assert time.monotonic() - start < 2


def test_a_daemon_that_comes_within_the_deadline_is_waited_for(tmp_path: Path) -> None:
    stand_in = StandIn(f"unix:{tmp_path}/api.sock")
    timer = threading.Timer(0.3, stand_in.start)
    timer.start()
    with warmshelf.connect(f"unix://{tmp_path}/api.sock") as shelf:
        assert shelf.list() == []
    timer.join()
    stand_in.stop()


def test_a_socket_path_with_signs_of_a_uri_is_reached(tmp_path: Path) -> None:
    directory = tmp_path / "a b%41#ü"
    directory.mkdir()
    stand_in = StandIn(parse_address(f"unix://{directory}/api.sock").target).start()
    with warmshelf.connect(f"unix://{directory}/api.sock") as shelf:
        assert shelf.list() == []
    stand_in.stop()


def test_a_proxy_of_the_environment_is_not_used(tcp_stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    with warmshelf.connect(tcp_stand_in.address) as shelf:
        assert shelf.list() == []


def test_text_in_any_script_arrives_in_an_error(stand_in: StandIn) -> None:
    """B05. The ID is checked at this end, so the question is asked without the Shelf."""
    connection = Connection(parse_address(stand_in.address))
    request = catalog_pb2.GetArtifactRequest(artifact_id="модель")
    with pytest.raises(ArtifactNotFound, match="модель"):
        connection.unary(connection.catalog.GetArtifact, request, Deadline(10))
    connection.close()


def test_a_peer_that_says_nothing_is_over_with_the_deadline(tmp_path: Path) -> None:
    """B49: a socket that accepts and never answers."""
    path = tmp_path / "api.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        start = time.monotonic()
        with (
            warmshelf.connect(f"unix://{path}", timeout=1) as shelf,
            pytest.raises((DeadlineExceeded, DaemonUnreachable), match=r"api\.sock"),
        ):
            shelf.get("a")
        assert time.monotonic() - start < 3


def test_a_peer_that_opens_no_session_cannot_be_reached(tmp_path: Path) -> None:
    """Whoever acquires meanwhile is told the same, and none of them that its own deadline was too short."""
    path = tmp_path / "api.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with warmshelf.connect(f"unix://{path}") as shelf, ThreadPoolExecutor(3) as pool:
            calls = [pool.submit(shelf.acquire, "a", timeout=seconds) for seconds in (0.6, 0.8, 1)]
            assert {type(call.exception(timeout=10)) for call in calls} == {DaemonUnreachable}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a socket to another user")
def test_a_socket_of_another_user_is_not_trusted_unless_named(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(tmp_path / "api.sock", 12345, 12345)
    start = time.monotonic()
    with warmshelf.connect(stand_in.address) as shelf:
        with pytest.raises(DaemonUnreachable, match="12345") as caught:
            shelf.get("a")
        assert caught.value.details["owner_number"] == 12345
        assert time.monotonic() - start < 2  # not retried: patience does not change an owner
        monkeypatch.setenv("WARMSHELF_DAEMON_UID", "12345")
        assert shelf.list() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a directory to another user")
@pytest.mark.parametrize("linked", [False, True])
def test_a_socket_in_another_users_directory_is_not_trusted_either(
    tmp_path: Path, linked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N15. Whoever has the directory can put another socket there, also between two calls."""
    directory = tmp_path / "run"
    directory.mkdir()
    stand_in = StandIn(f"unix:{directory}/api.sock").start()
    address = directory / "api.sock"
    if linked:
        address = tmp_path / "link.sock"
        address.symlink_to(directory / "api.sock")
    with warmshelf.connect(f"unix://{address}") as shelf:
        assert shelf.list() == []
        os.chown(directory, 12345, 12345)
        with pytest.raises(DaemonUnreachable, match=r"directory.*12345"):
            shelf.list()
        monkeypatch.setenv("WARMSHELF_DAEMON_UID", "12345")
        assert shelf.list() == []
    stand_in.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a socket to another user")
def test_nothing_is_sent_to_a_socket_that_changed_its_owner_meanwhile(
    stand_in: StandIn, tmp_path: Path, segment: SegmentFile, put: Callable[[SegmentFile], SegmentFile]
) -> None:
    """N15: not on a connection that is open, which gRPC would open anew, nor when a lease is given back."""
    stand_in.add("org/a", put(segment))
    with warmshelf.connect(stand_in.address, timeout=20) as shelf:
        lease = shelf.acquire("org/a")
        os.chown(tmp_path / "api.sock", 12345, 12345)
        with pytest.raises(DaemonUnreachable, match="12345"):
            shelf.acquire("org/a")
        lease.release()
        assert stand_in.leases
        os.chown(tmp_path / "api.sock", 0, 0)
        assert shelf.list()


def test_after_an_import_of_warmshelf_nothing_heavy_is_loaded() -> None:
    code = """
import sys, warmshelf
heavy = {"torch", "numpy", "peft", "transformers", "typer", "rich", "pydantic", "vllm", "blake3", "warmshelfd"}
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"


FUNCTIONS = {"numpy": "arrays", "torch": "tensors", "transformers": "load_model", "peft": "load_adapter"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_makes_use_of_a_lease_is_there_after_an_import_of_warmshelf_alone(name: str) -> None:
    function = FUNCTIONS[name]
    code = f"import warmshelf; print(callable(warmshelf.{name}.{function}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "True"


def test_a_name_that_warmshelf_lacks_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="cupy"):
        _ = warmshelf.cupy


class Ended(grpc.GenericRpcHandler):
    """Every call ends as gRPC ends it in a server that stops: cancelled, with nothing of the daemon's."""

    def service(self, _call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        def end(_request: bytes, context: grpc.ServicerContext) -> bytes:
            context.abort(grpc.StatusCode.CANCELLED, "")
            raise AssertionError

        return grpc.unary_unary_rpc_method_handler(end)


def test_a_call_that_a_stopping_daemon_cancels_is_one_that_nobody_answered(tmp_path: Path) -> None:
    server = grpc.server(ThreadPoolExecutor(1), handlers=(Ended(),))
    server.add_insecure_port(f"unix:{tmp_path}/api.sock")
    server.start()
    connection = Connection(parse_address(f"unix://{tmp_path}/api.sock"))
    request = catalog_pb2.GetArtifactRequest(artifact_id="a")
    try:
        with pytest.raises(DaemonUnreachable, match="ended the call"):
            connection.once(lambda: connection.catalog.GetArtifact(request, timeout=10))
    finally:
        connection.close()
        server.stop(None).wait()
