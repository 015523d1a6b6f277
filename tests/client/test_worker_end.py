"""What becomes of a Shelf when the process that has it ends or forks."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

import warmshelf
from kit.models import pattern
from kit.segments import SegmentFile
from kit.standin import StandIn

Put = Callable[[SegmentFile], SegmentFile]


@pytest.fixture
def shelf(stand_in: StandIn, segment: SegmentFile, put: Put) -> Iterator[warmshelf.Shelf]:
    stand_in.add("org/a", put(segment))
    with warmshelf.connect(stand_in.address, timeout=20) as it:
        yield it


# --- the worker's own end ---

FORGETFUL = """
import sys, warmshelf
lease = warmshelf.connect(sys.argv[1]).acquire("org/a")
{ending}
"""


@pytest.mark.parametrize(
    ("ending", "status"),
    [("", 0), ("raise SystemExit(3)", 3), ("1 / 0", 1), ("import os; os.kill(os.getpid(), 9)", -9)],
)
def test_a_worker_that_forgets_everything_holds_nothing(
    shelf: warmshelf.Shelf, stand_in: StandIn, ending: str, status: int
) -> None:
    """B39: however it ends."""
    code = FORGETFUL.format(ending=ending)
    done = subprocess.run([sys.executable, "-c", code, stand_in.address], capture_output=True, check=False, text=True)
    assert done.returncode == status, done.stderr
    assert done.stderr == "" or "ZeroDivisionError" in done.stderr
    assert stand_in.wait_sessions(0)
    assert stand_in.leases == {}


def test_a_shelf_that_is_forgotten_ends_its_session(stand_in: StandIn, segment: SegmentFile, put: Put) -> None:
    stand_in.add("org/a", put(segment))
    lease = warmshelf.connect(stand_in.address).acquire("org/a")
    gc.collect()
    assert len(stand_in.leases) == 1  # the lease still stands on it
    view = lease["a.weight"]
    del lease
    gc.collect()
    assert stand_in.wait_sessions(0)
    assert view == pattern(1, 600_000)


FORK = """
import os, sys, time, warmshelf
shelf = warmshelf.connect(sys.argv[1], timeout=20)
lease = shelf.acquire("org/a")
child = os.fork()
if child == 0:
    start = time.monotonic()
    try:
        own = shelf.acquire("org/a", timeout=10)
        print("child has", own.transport, bytes(own["a.weight"][:4]) == bytes(lease["a.weight"][:4]))
    except warmshelf.errors.DaemonUnreachable as error:
        print("child refused", "forked" in error.message)
    lease.release()
    print("in time", time.monotonic() - start < 12, flush=True)
    {ending}
os.waitpid(child, 0)
print("parent's leases", len(shelf.leases()))
print("parent's bytes", len(bytes(lease["a.weight"])))
lease.release()
print("then", len(shelf.leases()))
"""


@pytest.mark.parametrize("ending", ["os._exit(0)", "sys.exit(0)"])
def test_a_forked_child_is_refused_at_once_and_ends_nothing_of_the_parents(
    shelf: warmshelf.Shelf, stand_in: StandIn, ending: str
) -> None:
    """B51."""
    done = subprocess.run(
        [sys.executable, "-c", FORK.format(ending=ending), stand_in.address],
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "child refused True"
    assert lines[1] == "in time True"
    assert lines[-3:] == ["parent's leases 1", "parent's bytes 600000", "then 0"], done.stdout + done.stderr


def test_a_shelf_that_was_not_used_before_a_fork_works_in_the_child_anyhow(
    shelf: warmshelf.Shelf, stand_in: StandIn
) -> None:
    """B51."""
    code = """
import os, sys, warmshelf
shelf = warmshelf.connect(sys.argv[1], timeout=20)
if os.fork() == 0:
    print(len(shelf.acquire("org/a")), flush=True)
    os._exit(0)
os.wait()
print(len(shelf.acquire("org/a")))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, stand_in.address],
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
        env={**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"},
    )
    assert done.stdout.split() == ["4", "4"]
