"""One daemon per address and arena, and how a daemon stops: drained, in time, twice asked, or dead."""

from __future__ import annotations

import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

import warmshelf
from kit.models import write_model
from kit.plain import Plain, refused
from kit.processes import Daemon, eventually, read_all
from warmshelf import ArtifactState, errors
from warmshelf.v1 import lease_pb2

MIB = 1 << 20

# --- one daemon per address and per arena ------------------------------------


def other(daemon: Daemon, name: str) -> Daemon:
    """Return a daemon of other places than the first; whatever it is to share is set by the test."""
    root = daemon.root / name
    (root / "arena").mkdir(parents=True)
    return Daemon(root, root / "arena", daemon.models)


def share_arena(second: Daemon, first: Daemon) -> None:
    second.arena = first.arena


def share_socket(second: Daemon, first: Daemon) -> None:
    second.socket = first.socket


def share_port(second: Daemon, first: Daemon) -> None:
    second.tcp_address = first.tcp_address


def share_registry(second: Daemon, first: Daemon) -> None:
    second.registry = first.registry


def share_spool(second: Daemon, first: Daemon) -> None:
    (second.root / "state").mkdir()
    (second.root / "state" / "registry.spool").symlink_to(first.root / "state" / "registry.spool")


WHAT = {
    share_arena: "arena ",
    share_socket: "unix://",
    share_port: "cannot listen on ",
    share_registry: "registry ",
    share_spool: "spool ",
}


def test_a_second_daemon_is_refused_and_says_who_has_it(shared: Daemon, models: Path) -> None:
    """Promise 14: exit status 1 at once; the first does not notice."""
    tensors = write_model(models / "a.safetensors", 1)
    with shared.connect() as shelf:
        shelf.register("a", models / "a.safetensors")
        lease = shelf.acquire("a", timeout=20)
        for share, what in WHAT.items():
            second = other(shared, share.__name__)
            share(second, shared)
            start = time.monotonic()
            second.start("--budget", "16MiB", wait=False)
            assert second.wait() == 1
            assert time.monotonic() - start < 10
            text = second.log.read_text()
            assert f"DAEMON_IN_USE: {what}" in text
            assert f"process {shared.pid} (" in text
            assert "-m warmshelfd)" in text, "how its command begins, and none of its options"
            assert "Traceback" not in text
            with warmshelf.connect(shared.tcp_address) as again, again.acquire("a", timeout=20) as one:
                assert read_all(one) == read_all(lease) == tensors
            assert len(shared.segments()) == 1


@pytest.mark.parametrize(
    ("host", "why"),
    [("no-such-host.invalid", "cannot listen on no-such-host.invalid:0: "), ("192.0.2.1", "assign requested address")],
)
def test_a_host_that_is_none_of_ours_is_told_as_that(daemon: Daemon, host: str, why: str) -> None:
    daemon.tcp_address = f"{host}:0"
    daemon.start("--insecure", wait=False)
    assert daemon.wait() == 2
    text = daemon.log.read_text()
    assert "INVALID_CONFIG" in text
    assert why in text
    assert "Traceback" not in text


def test_a_port_of_somebody_else_is_refused_naming_the_address(daemon: Daemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        daemon.tcp_address = "{}:{}".format(*taken.getsockname())
        daemon.start(wait=False)
        assert daemon.wait() == 1
        text = daemon.log.read_text()
        assert daemon.tcp_address in text
        assert f"process {os.getpid()} (" in text


def test_leftovers_of_a_killed_daemon_do_not_block_the_next(daemon: Daemon, models: Path) -> None:
    """Promise 14: socket, locks, half a segment and one of nobody are there."""
    tensors = write_model(models / "a.safetensors", 1, 40 * MIB)
    daemon.start(failpoints="load.part=2*kill")
    with Plain(daemon.address) as plain:
        plain.register("a", models / "a.safetensors")
        with pytest.raises(grpc.RpcError):
            plain.acquire("a")
    assert daemon.wait() == -signal.SIGKILL
    assert daemon.socket.exists()
    assert len(daemon.leftovers()) == 1
    daemon.start()
    assert daemon.leftovers() == []
    with daemon.connect() as shelf, shelf.acquire("a", timeout=20) as lease:
        assert read_all(lease) == tensors


def test_a_socket_is_its_owners_alone(shared: Daemon) -> None:
    assert shared.socket.stat().st_mode & 0o077 == 0
    assert shared.socket.parent.stat().st_mode & 0o077 == 0


# --- a stop ------------------------------------------------------------------


def test_sigterm_drains_streams_and_leases_are_served_to_their_end(daemon: Daemon, models: Path) -> None:
    """B57: not serving any more, no new sessions; two streams and the second half of a worker's tensors."""
    tensors = write_model(models / "a.safetensors", 1, 64 * MIB)
    daemon.start("--budget", "128MiB", env={"WARMSHELF_DRAIN_SECONDS": "15"})
    with Plain(daemon.tcp_address) as one, Plain(daemon.address) as two, Plain(daemon.address) as health:
        one.register("a", models / "a.safetensors")
        leases = [client.acquire("a").lease.lease_id for client in (one, two)]
        streams = [client.read(lease) for client, lease in zip((one, two), leases, strict=True)]
        parts = [[next(stream).data] for stream in streams]
        os.kill(daemon.pid, signal.SIGTERM)
        eventually(lambda: health.health_of() == "NOT_SERVING", "health says so")
        assert next(one.session).WhichOneof("event") == "draining"
        with refused(grpc.StatusCode.UNAVAILABLE, "DRAINING"):
            next(health.leases.OpenSession(lease_pb2.OpenSessionRequest(holder="late")))
        with refused(grpc.StatusCode.UNAVAILABLE, "DRAINING"):
            one.register("b", models / "a.safetensors")
        assert len(list(two.read(leases[1], offset=32 * MIB, limit=8 * MIB))) == 8
        for got, stream in zip(parts, streams, strict=True):
            got.extend(chunk.data for chunk in stream)
            whole = b"".join(got)
            assert all(data in whole for data in tensors.values())
    assert daemon.wait() == 0
    assert len(daemon.segments()) == 1


@pytest.mark.parametrize("holding", ["nothing", "a lease"])
def test_sigterm_ends_an_idle_daemon_in_about_a_second(running: Daemon, models: Path, holding: str) -> None:
    """B57: a worker that only holds a mapping does not delay it, and keeps its bytes."""
    tensors = write_model(models / "a.safetensors", 1)
    with running.connect() as shelf:
        shelf.register("a", models / "a.safetensors")
        lease = shelf.acquire("a", timeout=20)
        if holding == "nothing":
            lease.release()
            shelf.close()
        start = time.monotonic()
        assert running.kill(signal.SIGTERM) == 0
        assert time.monotonic() - start < 5
        if holding == "a lease":
            assert read_all(lease) == tensors
            lease.release()
    assert not running.socket.exists()


def test_a_second_sigterm_does_not_wait_for_streams(daemon: Daemon, models: Path) -> None:
    """B57."""
    write_model(models / "a.safetensors", 1, 64 * MIB)
    daemon.start("--budget", "128MiB", env={"WARMSHELF_DRAIN_SECONDS": "60"})
    with Plain(daemon.tcp_address) as plain:
        plain.register("a", models / "a.safetensors")
        stream = plain.read(plain.acquire("a").lease.lease_id)
        next(stream)
        os.kill(daemon.pid, signal.SIGTERM)
        eventually(lambda: plain.health_of() == "NOT_SERVING", "the drain has begun")
        assert daemon.process is not None
        assert daemon.process.poll() is None
        start = time.monotonic()
        assert daemon.kill(signal.SIGTERM) == 0
        assert time.monotonic() - start < 5
        with pytest.raises(grpc.RpcError):
            list(stream)


def test_a_stream_that_takes_longer_than_the_grace_is_cut_and_the_daemon_exits_in_time(
    daemon: Daemon, models: Path
) -> None:
    """B57: a reader that stalls cannot hold the daemon."""
    write_model(models / "a.safetensors", 1, 64 * MIB)
    daemon.start("--budget", "128MiB", env={"WARMSHELF_DRAIN_SECONDS": "1"})
    with Plain(daemon.tcp_address) as plain:
        plain.register("a", models / "a.safetensors")
        stream = plain.read(plain.acquire("a").lease.lease_id)
        next(stream)
        start = time.monotonic()
        assert daemon.kill(signal.SIGTERM) == 0
        assert 0.9 < time.monotonic() - start < 6
        with pytest.raises(grpc.RpcError):
            list(stream)
    daemon.start("--budget", "128MiB")
    with daemon.connect() as shelf:
        shelf.acquire("a", timeout=20, resident_only=True).release()


def test_sigterm_while_loading_finishes_the_load_within_the_grace(daemon: Daemon, models: Path) -> None:
    """B57: who already waits is served."""
    tensors = write_model(models / "a.safetensors", 1, 40 * MIB)
    daemon.start(failpoints="load.part=delay(400)", env={"WARMSHELF_READ_THREADS": "1"})
    with daemon.connect() as shelf, ThreadPoolExecutor(1) as pool:
        shelf.register("a", models / "a.safetensors")
        waiting = pool.submit(shelf.acquire, "a", timeout=20)
        eventually(lambda: shelf.get("a").state is ArtifactState.LOADING, "the load has begun")
        os.kill(daemon.pid, signal.SIGTERM)
        assert read_all(waiting.result()) == tensors
    assert daemon.wait() == 0
    assert len(daemon.segments()) == 1


def test_sigterm_while_loading_for_too_long_stops_the_load_and_leaves_nothing_behind(
    daemon: Daemon, models: Path
) -> None:
    """B57: the next start loads it."""
    tensors = write_model(models / "a.safetensors", 1, 72 * MIB)
    daemon.start(
        failpoints="load.part=delay(900)", env={"WARMSHELF_READ_THREADS": "1", "WARMSHELF_DRAIN_SECONDS": "0.3"}
    )
    with Plain(daemon.address) as plain, daemon.connect() as shelf:
        plain.register("a", models / "a.safetensors")
        waiting = plain.acquire_later("a")
        eventually(lambda: shelf.get("a").state is ArtifactState.LOADING, "the load has begun")
        start = time.monotonic()
        assert daemon.kill(signal.SIGTERM) == 0
        assert time.monotonic() - start < 5
        with pytest.raises(grpc.RpcError) as caught:
            waiting.result()
        assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED, grpc.StatusCode.CANCELLED)
        assert (daemon.segments(), daemon.leftovers()) == ([], [])
        daemon.start()
        with shelf.acquire("a", timeout=20) as lease:
            assert read_all(lease) == tensors


def test_workers_of_a_draining_daemon_go_on_with_the_next_one(daemon: Daemon, models: Path) -> None:
    """B57, B53: an acquire that is refused because of the drain is answered after the restart."""
    tensors = write_model(models / "a.safetensors", 1, 40 * MIB)
    daemon.start("--budget", "128MiB", env={"WARMSHELF_DRAIN_SECONDS": "1"})
    with Plain(daemon.tcp_address) as plain, daemon.connect() as shelf:
        shelf.register("a", models / "a.safetensors")
        stream = plain.read(plain.acquire("a").lease.lease_id)
        next(stream)
        os.kill(daemon.pid, signal.SIGTERM)
        eventually(lambda: plain.health_of() == "NOT_SERVING", "the drain has begun")
        with pytest.raises((errors.Draining, errors.DaemonUnreachable)) as caught:
            shelf.acquire("a", timeout=0.3)
        assert caught.value.retryable
        assert daemon.wait() == 0
        daemon.start("--budget", "128MiB")
        with shelf.acquire("a", timeout=20) as lease:
            assert read_all(lease) == tensors
