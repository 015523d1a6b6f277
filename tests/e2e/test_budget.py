"""The budget of a running daemon is made larger and smaller, under leases, mappings and loads."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import warmshelf
from kit.models import write_model
from kit.processes import Daemon, eventually, read_all
from kit.scrape import HTTP, pages_of
from warmshelf import ArtifactState, errors

MIB = 1 << 20


@pytest.fixture
def shelf(daemon: Daemon, models: Path) -> warmshelf.Shelf:
    """A daemon with a budget of 64 MiB, and artifacts a to f of 8 MiB each, registered."""
    daemon.start("--budget", "64MiB", "--adapter-floor", "10%", *HTTP)
    shelf = daemon.connect()
    for name in "abcdef":
        write_model(models / f"{name}.safetensors", ord(name), 8 * MIB)
        shelf.register(name, models / f"{name}.safetensors")
    return shelf


def ready(shelf: warmshelf.Shelf) -> str:
    return "".join(a.artifact_id for a in shelf.list() if a.state is ArtifactState.READY)


def test_a_smaller_budget_holds_at_once_on_the_file_system_too(daemon: Daemon, shelf: warmshelf.Shelf) -> None:
    with shelf:
        for name in "abcd":
            shelf.acquire(name, timeout=20).release()
        assert shelf.set_budget(20 * MIB).budget_bytes == 20 * MIB
        assert ready(shelf) == "cd"
        assert daemon.arena_bytes() <= 20 * MIB
        shelf.acquire("e", timeout=20).release()
        assert ready(shelf) == "de"
        assert pages_of(daemon).scrape()["warmshelf_arena_budget_bytes"] == 20 * MIB
        assert shelf.set_budget(64 * MIB).free_bytes == 64 * MIB - shelf.capacity().resident_bytes


def test_a_mapping_is_in_the_way_even_without_a_lease_and_the_budget_follows_when_it_ends(
    daemon: Daemon, shelf: warmshelf.Shelf
) -> None:
    with shelf, ThreadPoolExecutor(1) as pool:
        lease = shelf.acquire("a", timeout=20)
        view = lease[next(iter(lease))]
        lease.release()
        with pytest.raises(errors.ArenaFull) as caught:
            shelf.set_budget(4 * MIB, timeout=0.5)
        assert int(caught.value.details["held_bytes"]) > 8 * MIB
        waiting = pool.submit(shelf.set_budget, 4 * MIB, timeout=20)
        del lease, view
        assert waiting.result().budget_bytes == 4 * MIB
        assert (ready(shelf), daemon.arena_bytes()) == ("", 0)


def test_what_is_kept_stays(shelf: warmshelf.Shelf, models: Path) -> None:
    with shelf:
        shelf.register("kept", models / "a.safetensors", keep=True)
        shelf.acquire("kept", timeout=20).release()
        with pytest.raises(errors.ArenaFull):
            shelf.set_budget(MIB, timeout=0.3)
        assert shelf.get("kept").state is ArtifactState.READY


def test_a_budget_that_the_node_has_not_is_refused_with_the_numbers(daemon: Daemon, shelf: warmshelf.Shelf) -> None:
    with shelf:
        with pytest.raises(errors.InvalidConfig) as caught:
            shelf.set_budget(1 << 60)
        assert int(caught.value.details["budget_bytes"]) == 1 << 60
        assert shelf.capacity().budget_bytes == 64 * MIB


def test_a_larger_budget_lets_in_who_waits_for_room_and_a_restart_has_the_configured_one(
    daemon: Daemon, shelf: warmshelf.Shelf
) -> None:
    with shelf, ThreadPoolExecutor(1) as pool:
        shelf.set_budget(10 * MIB)
        held = shelf.acquire("a", timeout=20)
        waiting = pool.submit(shelf.acquire, "b", timeout=20)
        eventually(lambda: waits(daemon) == 1, "b waits for room")
        command = [sys.executable, "-m", "warmshelf.cli", "--address", daemon.address, "budget", "30MiB"]
        assert "30.0 MiB" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
        waiting.result().release()
        held.release()
    daemon.kill()
    daemon.start("--budget", "64MiB")
    with daemon.connect() as again:
        assert again.capacity().budget_bytes == 64 * MIB


def waits(daemon: Daemon) -> float:
    return pages_of(daemon).scrape()['warmshelf_loads{state="waiting"}']


def test_budgets_and_loads_that_meet_never_hold_more_than_the_budget(daemon: Daemon, shelf: warmshelf.Shelf) -> None:
    """Each thread's own truth: the arena's files, as the file system has them, after each smaller budget."""
    with shelf, ThreadPoolExecutor(3) as pool:
        end = threading.Event()

        def use(names: str) -> None:
            while not end.is_set():
                for name in names:
                    with shelf.acquire(name, timeout=20) as lease:
                        assert set(read_all(lease))

        loops = [pool.submit(use, "abcdef"), pool.submit(use, "fdb")]
        for size in (40, 64, 20, 30, 20, 64, 20):
            shelf.set_budget(size * MIB, timeout=20)
            capacity = shelf.capacity()
            used = capacity.resident_bytes + capacity.reserved_bytes + capacity.unnamed_bytes
            assert used <= capacity.budget_bytes == size * MIB
        assert daemon.arena_bytes() <= 20 * MIB
        end.set()
        for loop in loops:
            loop.result()
