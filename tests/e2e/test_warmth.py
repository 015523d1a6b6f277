"""What was in memory comes back after a reboot, and bases that nobody uses leave, by themselves."""

from __future__ import annotations

import signal
import sqlite3
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

import warmshelf
from kit.adapters import adapter_files, pair
from kit.models import write_model
from kit.processes import Daemon, eventually, read_all
from kit.quick_daemon import QuickDaemon
from kit.scrape import HTTP, pages_of
from warmshelf import ArtifactState

DAEMON = QuickDaemon

MIB = 1 << 20


def reboot(daemon: Daemon, number: int = signal.SIGTERM) -> None:
    """End the daemon, and lose what a memory file system loses with the power."""
    daemon.kill(number)
    for path in daemon.arena.iterdir():
        path.unlink()


def write_adapter(directory: Path) -> None:
    directory.mkdir()
    for name, data in adapter_files(pair("layers.0.q_proj")).items():
        (directory / name).write_bytes(data)


def use(shelf: warmshelf.Shelf, names: str) -> None:
    for name in names:
        shelf.acquire(name, timeout=20).release()


def ready(shelf: warmshelf.Shelf) -> str:
    return "".join(a.artifact_id for a in shelf.list() if a.state is ArtifactState.READY)


@pytest.fixture
def tensors(daemon: Daemon, models: Path) -> dict[str, dict[str, bytes]]:
    """Models a to e of 8 MiB at a started daemon, which has registered them."""
    daemon.start("--budget", "64MiB")
    with daemon.connect() as shelf:
        made = {}
        for name in "abcde":
            made[name] = write_model(models / f"{name}.safetensors", ord(name), 8 * MIB)
            shelf.register(name, models / f"{name}.safetensors")
    return made


def test_after_a_reboot_the_last_used_are_loaded_again_as_far_as_they_fit(
    daemon: Daemon, tensors: dict[str, dict[str, bytes]]
) -> None:
    with daemon.connect() as shelf:
        use(shelf, "abcdea")
        shelf.evict("e")
        before = {a.artifact_id: a.last_use_time for a in shelf.list()}
    reboot(daemon)
    daemon.start("--budget", "26MiB")
    with daemon.connect() as shelf:
        eventually(lambda: ready(shelf) == "acd", "three of 8 MiB fit, and e had been evicted")
        assert shelf.get("c").last_use_time == before["c"]
        with shelf.acquire("d", timeout=20) as lease:
            assert read_all(lease) == tensors["d"]
        use(shelf, "e")
        assert ready(shelf) == "ade", "c was used before a, though it was loaded after it"


def test_nothing_is_restored_where_that_is_switched_off_and_a_restart_remembers_still(
    daemon: Daemon, tensors: dict[str, dict[str, bytes]]
) -> None:
    with daemon.connect() as shelf:
        use(shelf, "ab")
    daemon.kill(signal.SIGTERM)
    daemon.start("--budget", "64MiB")  # taken over, and not used any more
    reboot(daemon)
    daemon.start(*HTTP, env={"WARMSHELF_RESTORE": "false"})
    with daemon.connect() as shelf:
        eventually(lambda: pages_of(daemon).status("/readyz") == 200, "the daemon is ready")
        assert ready(shelf) == ""
    reboot(daemon)
    daemon.start()
    with daemon.connect() as shelf:
        assert shelf.get("a").state is ArtifactState.REGISTERED, "the last to run had nothing in memory"


def test_a_stop_before_all_is_back_forgets_nothing_of_it(daemon: Daemon, tensors: dict[str, dict[str, bytes]]) -> None:
    with daemon.connect() as shelf:
        use(shelf, "ab")
    reboot(daemon)
    daemon.start("--budget", "64MiB", failpoints="load.read=delay(3000)", env={"WARMSHELF_DRAIN_SECONDS": "0.1"})
    with daemon.connect() as shelf:
        eventually(lambda: shelf.get("b").state is ArtifactState.LOADING, "the first is on its way")
    reboot(daemon)
    daemon.start("--budget", "64MiB")
    with daemon.connect() as shelf:
        eventually(lambda: ready(shelf) == "ab", "both are back")


def test_what_cannot_come_back_keeps_nobody_from_it_and_the_daemon_from_nothing(
    daemon: Daemon, models: Path, tensors: dict[str, dict[str, bytes]]
) -> None:
    """One source is gone, one has changed; an adapter does not wait for either."""
    write_adapter(models / "lora")
    with daemon.connect() as shelf:
        shelf.register("lora", models / "lora")
        use(shelf, "abc")
        shelf.acquire("lora", timeout=20).release()
    (models / "c.safetensors").unlink()
    write_model(models / "b.safetensors", 77, 8 * MIB)
    reboot(daemon)
    daemon.start("--budget", "64MiB")
    with daemon.connect() as shelf:
        eventually(lambda: ready(shelf) == "alora", "what can come back is back")
        eventually(lambda: daemon.log.read_text().count("was in memory before, and is not again") == 2, "both are told")
        assert {shelf.get(name).failure.reason for name in "bc"} == {"SOURCE_CHANGED", "SOURCE_NOT_FOUND"}  # type: ignore[union-attr]


def test_a_smaller_budget_at_start_takes_over_what_was_used_last(
    daemon: Daemon, tensors: dict[str, dict[str, bytes]]
) -> None:
    with daemon.connect() as shelf:
        use(shelf, "abcdea")
    daemon.kill(signal.SIGTERM)
    daemon.start("--budget", "17MiB")
    with daemon.connect() as shelf:
        assert ready(shelf) == "ae"


def test_a_registry_with_uses_that_are_none_is_read_all_the_same(
    daemon: Daemon, tensors: dict[str, dict[str, bytes]]
) -> None:
    with daemon.connect() as shelf:
        use(shelf, "a")
    reboot(daemon)
    with sqlite3.connect(daemon.registry) as file:
        rows = [("b", "yesterday"), ("nobody", datetime.now(timezone.utc).isoformat()), ("c", "2026-01-01T00:00:00")]
        file.executemany("REPLACE INTO uses VALUES (?, ?)", rows)
    file.close()
    daemon.start()
    with daemon.connect() as shelf:
        eventually(lambda: ready(shelf) == "a", "a is back")


def test_a_clock_that_was_set_back_changes_no_order(daemon: Daemon, tensors: dict[str, dict[str, bytes]]) -> None:
    """Times of the future are only times: they go first, and what is used now goes after them all the same."""
    with daemon.connect() as shelf:
        use(shelf, "ab")
    daemon.kill(signal.SIGTERM)
    with sqlite3.connect(daemon.registry) as file:
        future = datetime.now(timezone.utc) + timedelta(days=9)
        file.execute("UPDATE uses SET use_time = ? WHERE artifact_id = 'b'", (future.isoformat(),))
    file.close()
    daemon.start("--budget", "26MiB")
    with daemon.connect() as shelf:
        use(shelf, "acd")
        assert ready(shelf) == "acd"


def test_a_base_that_nobody_uses_leaves_after_its_time_out_and_what_is_held_does_not(
    daemon: Daemon, models: Path
) -> None:
    for name in "abc":
        write_model(models / f"{name}.safetensors", ord(name), MIB)
    write_adapter(models / "lora")
    daemon.start("--budget", "64MiB", *HTTP, env={"WARMSHELF_BASE_IDLE_SECONDS": "1"})
    with daemon.connect() as shelf:
        shelf.register("kept", models / "a.safetensors", keep=True)
        shelf.register("b", models / "b.safetensors")
        shelf.register("c", models / "c.safetensors")
        shelf.register("lora", models / "lora")
        for name in ("kept", "c", "lora"):
            shelf.acquire(name, timeout=20).release()
        lease = shelf.acquire("b", timeout=20)
        view = lease[next(iter(lease))]
        eventually(lambda: shelf.get("c").state is ArtifactState.REGISTERED, "c leaves")
        lease.release()
        assert pages_of(daemon).scrape()['warmshelf_evictions_total{kind="base",reason="idle"}'] == 1
        assert [a.artifact_id for a in shelf.list() if a.state is ArtifactState.READY] == ["b", "kept", "lora"]
        shelf.acquire("c", timeout=20).release()
        eventually(lambda: shelf.get("c").state is ArtifactState.REGISTERED, "c leaves again")
        assert shelf.get("b").state is ArtifactState.READY, "it is mapped, though not leased"
        del lease, view
        eventually(lambda: shelf.get("b").state is ArtifactState.REGISTERED, "its last mapping has ended")
