"""The limits of time: what is just quicker is served, what is slower is ended, and a tenfold wait is not waited for.

Of sources, of readers that stall, and of TCP peers that say nothing.
"""

from __future__ import annotations

import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import grpc
import pytest

import warmshelf
from kit import web_faults as faults
from kit.models import filled, safetensors_bytes, write_model
from kit.plain import Plain, refused
from kit.processes import Daemon, Worker, eventually
from kit.scrape import HTTP, pages_of
from kit.web import Asked, Handler, Web, serving
from warmshelf import errors
from warmshelf.v1 import transfer_pb2, transfer_pb2_grpc

pytestmark = pytest.mark.e2e

MIB = 1 << 20
TIMES = 10
SHORT = 0.3
"""Of a limit: far enough below it for a machine that does other things."""

ANSWER_SECONDS, STALL_SECONDS, CONNECT_SECONDS, BYTES_PER_SECOND = 1.5, 1.5, 1.0, 256 << 10
TRIES, FAILURES = 3, 2
MODEL = safetensors_bytes(filled(1, size=64 << 10))
LOOKS = 2
"""Requests for a file before it is loaded."""

LIMITS = f"""
source_connect_seconds = {CONNECT_SECONDS}
source_answer_seconds = {ANSWER_SECONDS}
source_stall_seconds = {STALL_SECONDS}
source_bytes_per_second_min = {BYTES_PER_SECOND}
"""
PATIENT = "source_attempts_max = 1\nsource_failures_max = 1000\n"
STUBBORN = f"source_attempts_max = {TRIES}\nsource_failures_max = {FAILURES}\nsource_pause_seconds = 600\n"


@dataclass
class Pauses(faults.FaultOf):
    """Says nothing for a while before the second half of a body."""

    seconds: float = 0.0

    def answer(self, handler: Handler, asked: Asked) -> bool:
        data, first, last = self.data(handler, asked)
        half = (first + last) // 2
        range_ = {"Content-Range": f"bytes {first}-{last}/{len(data)}", "Content-Length": str(last + 1 - first)}
        handler.head(206, {**range_, **handler.validators(data)})
        for begin, end, pause in ((first, half, 0.0), (half, last + 1, self.seconds)):
            handler.web.stopping.wait(pause)
            handler.wfile.write(data[begin:end])
            handler.wfile.flush()
        return True


@dataclass
class Trickles(faults.FaultOf):
    """Takes so long for a body, of which there is always a little more."""

    seconds: float = 0.0
    parts = 40

    def answer(self, handler: Handler, asked: Asked) -> bool:
        data, first, last = self.data(handler, asked)
        size = last + 1 - first
        range_ = {"Content-Range": f"bytes {first}-{last}/{len(data)}", "Content-Length": str(size)}
        handler.head(206, {**range_, **handler.validators(data)})
        for part in range(self.parts):
            handler.web.stopping.wait(self.seconds / self.parts)
            handler.wfile.write(data[first + size * part // self.parts : first + size * (part + 1) // self.parts])
            handler.wfile.flush()
        return True


@pytest.fixture
def web() -> Iterator[Web]:
    with serving() as it:
        it.put("/m", {"model.safetensors": MODEL})
        yield it


def started(daemon: Daemon, url: str, limits: str) -> Daemon:
    config = daemon.root / "daemon.toml"
    config.write_text(f'{LIMITS}{limits}\n[[source]]\nprefix = "{url}"\nallow_private = true\n')
    return daemon.start("--config", str(config), "--budget", "64MiB", "--allow-source", url)


WHOLE_SECONDS = CONNECT_SECONDS + ANSWER_SECONDS + len(MODEL) / BYTES_PER_SECOND
SLOW: dict[str, tuple[Callable[[float], faults.FaultOf], float]] = {
    "source_answer_seconds": (lambda seconds: faults.Slow(after=LOOKS, seconds=seconds), ANSWER_SECONDS),
    "source_stall_seconds": (lambda seconds: Pauses(after=LOOKS, seconds=seconds), STALL_SECONDS),
    "source_bytes_per_second_min": (lambda seconds: Trickles(after=LOOKS, seconds=seconds), WHOLE_SECONDS),
}


@pytest.mark.parametrize("name", SLOW)
def test_a_source_takes_its_time_up_to_the_limit(daemon: Daemon, web: Web, name: str) -> None:
    slow, limit = SLOW[name]
    started(daemon, web.url, PATIENT)
    with daemon.connect() as shelf:
        for number, seconds in enumerate((SHORT * limit, 2 * limit, TIMES * limit)):
            web.faults[:] = [slow(seconds)]
            shelf.register(f"m{number}", f"{web.url}/m/model.safetensors")
            begun = time.monotonic()
            if seconds < limit:
                shelf.acquire(f"m{number}", timeout=60).release()
                shelf.evict(f"m{number}")
                continue
            with pytest.raises(errors.SourceUnavailable):
                shelf.acquire(f"m{number}", timeout=60)
            assert 0.9 * limit < time.monotonic() - begun < TIMES * limit / 2


def test_a_server_may_take_its_time_to_accept_up_to_the_limit(daemon: Daemon) -> None:
    with ExitStack() as held:
        full = held.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # what the kernel takes without being asked; then it takes no word of anybody
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        url = "http://{}:{}".format(*full.getsockname())
        started(daemon, url, PATIENT)
        with daemon.connect() as shelf:
            begun = time.monotonic()
            with pytest.raises(errors.SourceUnavailable):
                shelf.register("m", f"{url}/m.safetensors")
            assert 0.9 * CONNECT_SECONDS < time.monotonic() - begun < TIMES * CONNECT_SECONDS


def test_a_source_is_tried_up_to_the_limit_and_a_server_that_fails_is_left_alone_behind_it(
    daemon: Daemon, web: Web
) -> None:
    started(daemon, web.url, STUBBORN)

    def asked_by(shelf: warmshelf.Shelf, count: int) -> int:
        """Say how often the server is asked, of which it fails so often."""
        before = len(web.asked)
        web.faults[:] = [faults.Status(times=count, status=503)]
        shelf.register(f"m{len(web.asked)}", f"{web.url}/m/model.safetensors")
        return len(web.asked) - before

    with daemon.connect() as shelf:
        assert asked_by(shelf, 0) + TRIES - 1 == asked_by(shelf, TRIES - 1)
        for count in (TRIES, TIMES * TRIES):
            before = len(web.asked)
            with pytest.raises(errors.SourceUnavailable):
                asked_by(shelf, count)
            assert len(web.asked) - before == TRIES
        with pytest.raises(errors.SourceUnavailable):  # twice in a row is the limit
            asked_by(shelf, 0)
        assert len(web.asked) - before == TRIES


# --- who takes nothing, and who says nothing -------------------------------------------

SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]
"""As our client has it: else gRPC takes some MiB more, and then nothing for as long as its reader needs for them."""


def test_who_takes_something_in_time_is_served_and_who_does_not_is_ended(daemon: Daemon) -> None:
    write_model(daemon.models / "a.safetensors", 1, 48 * MIB)
    daemon.start("--budget", "64MiB", *HTTP, env={"WARMSHELF_STALL_SECONDS": str(STALL_SECONDS)})
    with Plain(daemon.tcp_address) as plain, grpc.insecure_channel(daemon.tcp_address, SMALL_WINDOW) as channel:
        plain.register("a", daemon.models / "a.safetensors")
        lease_id = plain.acquire("a").lease.lease_id
        request = transfer_pb2.ReadSegmentRequest(lease_id=lease_id, session_id=plain.session_id)
        stream = transfer_pb2_grpc.TransferServiceStub(channel).ReadSegment(request, timeout=60)
        begun = time.monotonic()
        taken = begun
        while time.monotonic() - begun < 2 * STALL_SECONDS:
            taken = time.monotonic()
            assert next(stream).data
            _pass(SHORT * STALL_SECONDS)
        pages = pages_of(daemon)
        assert pages.scrape()["warmshelf_streams"] == 1
        eventually(lambda: pages.scrape()["warmshelf_streams"] == 0, "the stream is ended", TIMES * STALL_SECONDS)
        assert time.monotonic() - taken > (1 - SHORT) * STALL_SECONDS
        _pass(2.0)  # for longer than the daemon tries to say so: that is no bug either
        with refused(grpc.StatusCode.ABORTED, "STREAM_STALLED"):
            list(stream)


KEEPALIVE_SECONDS = 2.0
"""Both how long a peer may be silent and how long it may take to answer."""
HOLDER = """
import sys, warmshelf
shelf = warmshelf.connect(sys.argv[1], holder=sys.argv[2])
lease = shelf.acquire("a", timeout=20)
print("held", flush=True)
sys.stdin.readline()
"""


def test_a_tcp_peer_may_be_silent_up_to_the_limit_and_one_at_the_socket_for_ever(
    daemon: Daemon, start_worker: Callable[..., Worker]
) -> None:
    write_model(daemon.models / "a.safetensors", 1, MIB)
    names = ("keepalive_seconds", "keepalive_timeout_seconds")
    daemon.start("--budget", "16MiB", env={f"WARMSHELF_{name.upper()}": str(KEEPALIVE_SECONDS) for name in names})
    with daemon.connect() as shelf:
        shelf.register("a", daemon.models / "a.safetensors")
        addresses = {"far": daemon.tcp_address, "near": daemon.address}
        workers = [start_worker(HOLDER, address, who) for who, address in addresses.items()]
        assert [worker.line() for worker in workers] == ["held", "held"]

        def holders() -> list[str]:
            return sorted(lease.holder for lease in shelf.leases("a"))

        for worker in workers:
            worker.send(signal.SIGSTOP)
        _pass(SHORT * KEEPALIVE_SECONDS)
        for worker in workers:
            worker.send(signal.SIGCONT)
        _pass(2 * KEEPALIVE_SECONDS)
        assert holders() == ["far", "near"]
        begun = time.monotonic()
        for worker in workers:
            worker.send(signal.SIGSTOP)
        eventually(lambda: holders() == ["near"], "the far one's lease has ended", 2 * TIMES * KEEPALIVE_SECONDS)
        assert time.monotonic() - begun >= (1 - SHORT) * KEEPALIVE_SECONDS


def _pass(seconds: float) -> None:
    """Let time pass, which is what this is about."""
    select.select([], [], [], seconds)
