"""The wall clock of a real daemon jumps while it works; libfaketime makes it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import warmshelf
from kit.models import write_model
from kit.processes import Daemon, eventually, read_all
from warmshelf import errors

ROOT = Path(__file__).resolve().parents[2]
DAY, HOUR = 86_400, 3_600


class Clock:
    """What a daemon takes for the time of day; its other clocks are the machine's."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.jump(0)

    def jump(self, seconds: int) -> None:
        """Set the clock so far off the machine's."""
        fresh = self._path.with_suffix(".new")
        fresh.write_text(f"{seconds:+d}\n")
        os.replace(fresh, self._path)

    @property
    def env(self) -> dict[str, str]:
        library = subprocess.run(
            [ROOT / "scripts" / "faketime"], capture_output=True, text=True, check=True, timeout=60
        )
        return {
            "LD_PRELOAD": library.stdout.strip(),
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path / "clock")


@pytest.fixture
def timed(daemon: Daemon, models: Path, clock: Clock) -> Daemon:
    """A daemon on that clock with room for one of the artifacts ``a`` and ``b``."""
    for tag, name in enumerate("ab", 1):
        write_model(models / f"{name}.safetensors", tag, 4 << 20)
    daemon.start("--budget", "6MiB", "--adapter-floor", "0", env=clock.env)
    with daemon.connect() as shelf:
        for name in "ab":
            shelf.register(name, models / f"{name}.safetensors")
    return daemon


@pytest.mark.e2e
def test_a_clock_that_jumps_ends_no_lease_and_no_wait(timed: Daemon, clock: Clock) -> None:
    """Z1: an hour and a day, ahead and back; and the clock is really another."""
    with timed.connect() as shelf, warmshelf.connect(timed.tcp_address) as other:
        held = shelf.acquire("a")
        first = shelf.leases("a")[0]
        for seconds in (HOUR, -HOUR, DAY, -DAY):
            clock.jump(seconds)
            with other.acquire("a") as lease:
                now = next(one for one in shelf.leases("a") if one.acquire_time != first.acquire_time)
                shift = (now.acquire_time - first.acquire_time).total_seconds()
                assert abs(shift - seconds) < 60
                assert read_all(lease) == read_all(held)
            eventually(lambda: shelf.leases("a") == [first], "the lease that was let go is gone")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(shelf.acquire, "b", timeout=30)
            for seconds in (DAY, -DAY):
                clock.jump(seconds)
                began = time.monotonic()
                with pytest.raises((errors.ArenaFull, errors.DeadlineExceeded)):  # the latter on a busy machine
                    other.acquire("b", timeout=1.5)
                assert time.monotonic() - began > 1.0
            assert not waiting.done()
            held.release()
            waiting.result().release()


@pytest.mark.nightly
def test_after_a_sleep_of_a_day_leases_and_warm_artifacts_are_there(timed: Daemon, clock: Clock) -> None:
    """Z2: as a suspended machine wakes up: nothing ran, CLOCK_MONOTONIC stood still, it is a day later."""
    with timed.connect() as shelf, warmshelf.connect(timed.tcp_address) as other:
        held, also = shelf.acquire("a"), other.acquire("a")
        before = shelf.leases("a")
        timed.process.send_signal(signal.SIGSTOP)  # type: ignore[union-attr]
        clock.jump(DAY)
        threading.Event().wait(2)
        timed.process.send_signal(signal.SIGCONT)  # type: ignore[union-attr]
        assert shelf.leases("a") == before
        assert read_all(held) == read_all(also)
        assert [artifact.state.value for artifact in shelf.list()] == ["ready", "registered"]
