"""The limits of pushes: what just reaches one is taken, one more is refused, and so is ten times as much."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from kit.guarded import reason_of
from kit.processes import Daemon, eventually
from kit.pushes import PlainPush, spooled_bytes, unfinished
from warmshelf.v1 import push_pb2

pytestmark = pytest.mark.e2e

LIMITS = {"pushes_max": 5, "push_files_max": 20, "push_chunk_bytes": 64 << 10, "spool_bytes_max": 1 << 20}
IDLE_SECONDS = 2.0
TIMES = 10
NUMBERS = [f"{number:032x}" for number in range(TIMES * LIMITS["pushes_max"])]


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    root = tmp_path_factory.mktemp("pushes")
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm") as arena:
        it = Daemon(root, Path(arena), root)
        it.start("--budget", "16MiB", env={f"WARMSHELF_{name.upper()}": str(n) for name, n in LIMITS.items()})
        yield it
        assert it.kill(15) == 0
        it.check()


@pytest.fixture
def push(bounded: Daemon) -> Iterator[PlainPush]:
    with PlainPush(bounded.address, {}) as it:
        yield it
        for push_id in {*NUMBERS, it.push_id}:
            it.stub.AbandonPush(push_pb2.AbandonPushRequest(push_id=push_id), timeout=20)
    assert unfinished(bounded) == []


def outcome(call: Callable[[], object]) -> str:
    """Return the reason that a call is refused for; "" if it is not."""
    try:
        call()
    except grpc.RpcError as error:
        return reason_of(error)
    return ""


def of_files(count: int, size: int = 0) -> list[push_pb2.PushFile]:
    return [push_pb2.PushFile(name=f"{number}.json", size_bytes=size) for number in range(count)]


def begin(push: PlainPush, push_id: str, files: list[push_pb2.PushFile]) -> str:
    push.push_id = push_id
    return outcome(lambda: push.begin(files=files))


def test_a_push_has_files_up_to_the_limit(push: PlainPush) -> None:
    limit = LIMITS["push_files_max"]
    for count, reason in ((limit + 1, "INVALID_REQUEST"), (TIMES * limit, "INVALID_REQUEST"), (limit, "")):
        assert begin(push, NUMBERS[0], of_files(count)) == reason


def test_pushes_are_under_way_up_to_the_limit(bounded: Daemon, push: PlainPush) -> None:
    limit = LIMITS["pushes_max"]
    answers = [begin(push, push_id, of_files(1, 1)) for push_id in NUMBERS]
    assert answers == [""] * limit + ["TOO_MANY_PUSHES"] * (TIMES - 1) * limit
    assert len(unfinished(bounded)) == limit
    assert begin(push, NUMBERS[0], of_files(1, 1)) == ""  # who has begun may ask how far it is
    push.stub.AbandonPush(push_pb2.AbandonPushRequest(push_id=NUMBERS[0]), timeout=20)
    assert begin(push, NUMBERS[-1], of_files(1, 1)) == ""


def test_the_spool_has_bytes_up_to_the_limit(bounded: Daemon, push: PlainPush) -> None:
    """What is announced counts, not what has come."""
    limit = LIMITS["spool_bytes_max"]
    for size in (limit + 1, TIMES * limit):
        assert begin(push, NUMBERS[0], of_files(1, size)) == "LARGER_THAN_SPOOL"
    assert begin(push, NUMBERS[0], of_files(1, limit - 1000)) == ""
    for size in (1001, limit):
        assert begin(push, NUMBERS[1], of_files(1, size)) == "SPOOL_FULL"
    assert begin(push, NUMBERS[1], of_files(1, 1000)) == ""
    assert begin(push, NUMBERS[2], of_files(1, 1)) == "SPOOL_FULL"
    assert spooled_bytes(bounded) == 0


def test_a_chunk_has_bytes_up_to_the_limit(bounded: Daemon, push: PlainPush) -> None:
    limit = LIMITS["push_chunk_bytes"]
    push.files = {"0.json": bytes(TIMES * limit)}
    assert push.begin() == [0]
    for size in (limit + 1, TIMES * limit):
        assert outcome(lambda size=size: push.write([push.chunk(0, 0, size)])) == "INVALID_REQUEST"
    assert spooled_bytes(bounded) == 0
    assert push.write([push.chunk(0, 0, limit)]) == [limit]


def test_a_push_that_gets_no_byte_is_dropped_and_one_that_gets_some_is_not(daemon: Daemon) -> None:
    daemon.start(env={"WARMSHELF_PUSH_IDLE_SECONDS": str(IDLE_SECONDS)})
    files = {"m.safetensors": bytes(1 << 20)}
    with PlainPush(daemon.address, files, NUMBERS[0]) as idle, PlainPush(daemon.address, files, NUMBERS[1]) as busy:
        begun = time.monotonic()
        idle.begin()
        received = busy.begin()

        def only_the_busy_one_is_left() -> bool:
            received[:] = busy.write([busy.chunk(0, received[0], 64)])
            return unfinished(daemon) == [busy.push_id]

        eventually(only_the_busy_one_is_left, "the idle one is dropped", 5 * IDLE_SECONDS)
        assert time.monotonic() - begun >= IDLE_SECONDS
        assert outcome(lambda: idle.write([idle.chunk(0, 0, 64)])) == "PUSH_NOT_FOUND"
        assert busy.begin() == received
