"""Strangers who speak HTTP/2 frame by frame, as no gRPC client would, or do not speak at all."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import h2.config
import h2.connection
import h2.exceptions
import pytest

import warmshelf
from kit.models import write_model
from kit.often import times
from kit.processes import Daemon, read_all

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]

SECONDS = 10
ATTACKERS = 4
ANSWER_SECONDS_MAX = 3.0
"""Attackers share their interpreter with those who are served, so most of this is theirs."""

CONNECTIONS = 1000
HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/warmshelf.v1.CatalogService/ListArtifacts"),
    (":authority", "x"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]


class Stranger:
    """One connection, and what is done with it until it is cut or told to stop."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), timeout=5)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.h2.initiate_connection()
        self.sock.sendall(self.h2.data_to_send())
        self.sock.setblocking(False)

    def flush(self) -> None:
        """Send what is there, and take what comes without looking at it longer than needed."""
        self.sock.settimeout(5)
        self.sock.sendall(self.h2.data_to_send())
        self.sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            data = self.sock.recv(1 << 16)
            if not data:
                raise ConnectionError("cut")
            self.h2.receive_data(data)


def reset_at_once(stranger: Stranger) -> int:
    """Open streams and reset each in the same breath."""
    for _ in range(100):
        stream = stranger.h2.get_next_available_stream_id()
        stranger.h2.send_headers(stream, HEADERS)
        stranger.h2.reset_stream(stream)
    stranger.flush()
    return 100


def ping(stranger: Stranger) -> int:
    """Send pings, one behind the other."""
    for _ in range(100):
        stranger.h2.ping(b"12345678")
    stranger.flush()
    return 100


def change_settings(stranger: Stranger) -> int:
    """Change the settings all the time, which has to be acknowledged each time."""
    for number in range(100):
        stranger.h2.update_settings({4: 65_535 + number})
    stranger.flush()
    return 100


def flood(address: str, once: Callable[[Stranger], int], until: threading.Event, counts: list[int]) -> None:
    """Do something again and again, with a new connection wherever one is cut."""
    while not until.is_set():
        with contextlib.suppress(OSError, h2.exceptions.ProtocolError):
            stranger = Stranger(address)
            with stranger.sock:
                while not until.is_set():
                    counts.append(once(stranger))


@contextmanager
def flooded(address: str, once: Callable[[Stranger], int]) -> Iterator[list[int]]:
    until, counts = threading.Event(), []  # type: tuple[threading.Event, list[int]]
    threads = [threading.Thread(target=flood, args=(address, once, until, counts)) for _ in range(ATTACKERS)]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        until.set()
        for thread in threads:
            thread.join()


@pytest.fixture
def tensors(daemon: Daemon, models: Path) -> dict[str, bytes]:
    """What artifact ``a`` of a daemon holds."""
    written = write_model(models / "a.safetensors", 1)
    daemon.start("--budget", "64MiB")
    with daemon.connect() as shelf:
        shelf.register("a", models / "a.safetensors")
        shelf.acquire("a").release()
    return written


def serves(daemon: Daemon, tensors: dict[str, bytes], seconds: float) -> float:
    """Use the daemon for so long, at both addresses; return the slowest answer's seconds."""
    slowest, end = 0.0, time.monotonic() + seconds
    with daemon.connect() as shelf, warmshelf.connect(daemon.tcp_address) as other:
        while time.monotonic() < end:
            for one in (shelf, other):
                began = time.monotonic()
                one.get("a")
                slowest = max(slowest, time.monotonic() - began)
                with one.acquire("a", timeout=20) as lease:
                    assert read_all(lease) == tensors
    return slowest


@pytest.mark.parametrize("once", [reset_at_once, ping, change_settings])
def test_who_floods_with_frames_takes_nothing_from_others(
    daemon: Daemon, tensors: dict[str, bytes], once: Callable[[Stranger], int]
) -> None:
    """N5, N9: calls of others are answered meanwhile, and memory stays where the first flood has left it."""
    with flooded(daemon.tcp_address, once):
        serves(daemon, tensors, times(SECONDS, least=2))
    memory = daemon.memory_bytes()
    with flooded(daemon.tcp_address, once) as counts:
        slowest = serves(daemon, tensors, times(SECONDS, least=2))
    print(f"{sum(counts)} frames, slowest answer {slowest:.3f} s")
    assert sum(counts) > 1000
    assert slowest < ANSWER_SECONDS_MAX
    assert daemon.memory_bytes() < memory + (32 << 20)


@pytest.mark.parametrize("said", [b"", b"PRI * HTTP/2.0\r\n", b"\x16\x03\x01"])
def test_connections_that_say_nothing_take_nothing_from_others(
    daemon: Daemon, tensors: dict[str, bytes], said: bytes
) -> None:
    """N10: a thousand that never end their handshake, beside those who are served."""
    serves(daemon, tensors, 1)
    host, _, port = daemon.tcp_address.rpartition(":")
    with contextlib.ExitStack() as stack:
        for _ in range(times(CONNECTIONS, least=100)):
            one = stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
            one.sendall(said)
        slowest = serves(daemon, tensors, times(SECONDS, least=2))
    print(f"slowest answer {slowest:.3f} s")
    assert slowest < ANSWER_SECONDS_MAX
