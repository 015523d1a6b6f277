"""Daemons, of a test's own or shared, and workers."""

from __future__ import annotations

import gc
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kit.guarded import Guarded
from kit.processes import Daemon, eventually
from kit.scrape import HTTP, Pages, pages_of

BUDGET = "256MiB"


@pytest.fixture
def by_token(daemon: Daemon) -> Guarded:
    """A daemon that knows callers by tokens; not started yet."""
    return Guarded(daemon, by_certificate=False)


@pytest.fixture
def by_certificate(daemon: Daemon) -> Guarded:
    """A daemon that knows callers by certificates; not started yet."""
    return Guarded(daemon, by_certificate=True)


@pytest.fixture
def running(daemon: Daemon) -> Daemon:
    """A daemon that serves, with a budget of 256 MiB; checked at the end."""
    return daemon.start("--budget", BUDGET)


@pytest.fixture
def served(daemon: Daemon) -> Daemon:
    """A daemon with the operators' pages, and room for three models of 8 MiB."""
    return daemon.start("--budget", "31MiB", "--adapter-floor", "0", *HTTP)


@pytest.fixture
def pages(served: Daemon) -> Pages:
    return pages_of(served)


_Lend = Callable[..., Iterator[Daemon]]


@pytest.fixture(scope="session")
def _lend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Lend]:
    """Lend daemons to one test after another; each kind is started when it is first wanted.

    For tests that do nothing to the daemon itself. Each must leave nothing behind once
    its artifacts are removed: no lease, no byte, no bug in the log.
    """
    daemons: dict[str, Daemon] = {}
    with ExitStack() as arenas:

        def lend(kind: str, budget: str, **settings: Any) -> Iterator[Daemon]:
            if kind not in daemons:
                arena = Path(arenas.enter_context(_arena()))
                it = Daemon(tmp_path_factory.mktemp(kind), arena, tmp_path_factory.getbasetemp())
                daemons[kind] = it.start("--budget", budget, **settings)
            yield daemons[kind]
            _clean(daemons[kind])

        yield lend
        for it in daemons.values():
            assert it.kill(signal.SIGTERM) == 0


def _clean(daemon: Daemon) -> None:
    with daemon.connect() as shelf:
        for artifact in shelf.list():
            shelf.remove(artifact.artifact_id)
        eventually(lambda: not shelf.leases(), "every lease has ended")
    gc.collect()  # a test's frames may be part of a cycle, and with them what it had mapped
    eventually(lambda: daemon.leftovers() == [] and daemon.arena_bytes() == 0, "every byte is given back")
    daemon.check()


@pytest.fixture
def shared(_lend: _Lend) -> Iterator[Daemon]:
    """A daemon that serves, with a budget of 256 MiB, and that tests use one after another."""
    yield from _lend("shared", BUDGET)


@pytest.fixture
def tight(_lend: _Lend) -> Iterator[Daemon]:
    """As ``shared``, with a budget of 30 MiB."""
    yield from _lend("tight", "30MiB")


@pytest.fixture
def bounded(_lend: _Lend) -> Iterator[Daemon]:
    """As ``shared``; at most 32 MiB of large chunks are under way."""
    yield from _lend("bounded", BUDGET, env={"WARMSHELF_FLIGHT_BYTES_MAX": "32MiB"})


@pytest.fixture
def slow(_lend: _Lend) -> Iterator[Daemon]:
    """As ``shared``; its loads read one part of 32 MiB after another, and rest 300 ms before each."""
    yield from _lend("slow", BUDGET, failpoints="load.part=delay(300)", env={"WARMSHELF_READ_THREADS": "1"})


def _arena() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm", ignore_cleanup_errors=True)
