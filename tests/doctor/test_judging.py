"""What doctor makes of what it saw: pure functions, each told of a node that is wrong in one way."""

from __future__ import annotations

import dataclasses
import mmap
from pathlib import Path

import pytest

from warmshelf import doctor
from warmshelf._cgroup import memory_left_bytes
from warmshelf._cli_doctor import status_of
from warmshelf._sizes import show_size
from warmshelf.doctor import Finding, Level, daemon, device, kernel, locking, memory, pages, worker
from warmshelf.types import Capabilities

GIB = 1 << 30
MIB = 1 << 20

GOOD = memory.Memory(
    directory="/mnt/warmshelf",
    type_name="tmpfs",
    options=frozenset({"rw", "huge=within_size"}),
    total_bytes=64 * GIB,
    free_bytes=60 * GIB,
    limit_bytes=None,
    node_bytes=128 * GIB,
    swap_bytes=0,
)
SMALL_PAGES = pages.Pages("tmpfs", mmap.PAGESIZE, "always within_size advise [never] deny force", 2e9, 2e9, 8e9)
HUGE_PAGES = dataclasses.replace(SMALL_PAGES, page_size_bytes=2 * MIB, arena_rate=8e9)
SAID = Capabilities("1.4.0", 8 * GIB, 4096, "none", MIB, ("file",), ("safetensors",), "/mnt/warmshelf", "theirs")
DAEMON = daemon.DaemonSeen("unix:///run/api.sock", SAID, "", "1.4.2")
WORKER = worker.Seen("/arena", identity="theirs", leased_id="org/a")


def levels(memory_seen: memory.Memory, budget_bytes: int) -> dict[str, Level]:
    return {one.check: one.level for one in memory.judge(memory_seen, budget_bytes)}


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1
    return findings[0]


def test_a_budget_that_fits_everywhere_is_fine() -> None:
    assert set(levels(GOOD, 48 * GIB).values()) == {Level.OK}


@pytest.mark.parametrize(
    ("change", "budget_gib", "check", "level", "in_text", "in_advice"),
    [
        ({"type_name": "ext4"}, 8, "arena-memory", Level.PROBLEM, "on ext4, which is no memory", "tmpfs"),
        ({}, 65, "arena-size", Level.PROBLEM, "more than the 64.0 GiB", f"remount,size={65 * GIB}"),
        ({"free_bytes": 7 * GIB}, 8, "arena-size", Level.WARNING, "others left 7.0 GiB", "smaller --budget"),
        ({"total_bytes": 64 * MIB}, 0, "arena-size", Level.WARNING, "only 64.0 MiB", "size=SIZE"),
        ({"limit_bytes": 8 * GIB}, 8, "memory-limit", Level.PROBLEM, "8.5 GiB, this control group", "7.5"),
        ({"node_bytes": 32 * GIB}, 32, "memory-limit", Level.PROBLEM, "the node has 32.0 GiB", "31.5"),
        ({"swap_bytes": GIB}, 8, "swap", Level.NOTE, "1.0 GiB of swap", "noswap"),
    ],
)
def test_what_does_not_fit_is_named_with_its_numbers(
    change: dict[str, object], budget_gib: int, check: str, level: Level, in_text: str, in_advice: str
) -> None:
    found = {one.check: one for one in memory.judge(dataclasses.replace(GOOD, **change), budget_gib * GIB)}[check]
    assert found.level is level
    assert in_text in found.text
    advised = found.advice.replace(str(int(7.5 * GIB)), "7.5").replace(str(int(31.5 * GIB)), "31.5")
    assert in_advice in advised


def test_swap_is_fine_where_the_mount_keeps_out_of_it() -> None:
    safe = dataclasses.replace(GOOD, swap_bytes=GIB, options=frozenset({"noswap"}))
    assert levels(safe, GIB)["swap"] is Level.OK


def test_small_pages_are_a_warning_with_the_gain_that_was_measured() -> None:
    found, tables = pages.judge(SMALL_PAGES, 64 * GIB)
    assert found.level is Level.WARNING
    assert "huge pages fill 4.0 times as fast" in found.text
    assert found.numbers["gain_ratio"] == 4.0
    assert found.advice == "mount the arena's tmpfs with huge=within_size"
    assert (tables.level, tables.numbers["page_table_bytes"]) == (Level.OK, 128 * MIB)


def test_huge_pages_in_force_are_fine_and_cost_no_page_tables() -> None:
    found, tables = pages.judge(HUGE_PAGES, 64 * GIB)
    assert (found.level, tables.numbers["page_table_bytes"]) == (Level.OK, 256 << 10)


@pytest.mark.parametrize(
    ("change", "level", "said"),
    [
        ({"huge_rate": 2.1e9}, Level.NOTE, "1.1 times as fast"),
        ({"huge_rate": None}, Level.NOTE, "this kernel gives no huge ones"),
        ({"huge_rate": None, "small_rate": None}, Level.NOTE, "too little memory is left to measure"),
        ({"shmem_switch": "always [deny] force"}, Level.WARNING, "the kernel forbids them"),
        ({"arena_rate": None}, Level.WARNING, "huge=within_size"),
    ],
)
def test_huge_pages_are_advised_only_where_they_gain(change: dict[str, object], level: Level, said: str) -> None:
    found, _ = pages.judge(dataclasses.replace(SMALL_PAGES, **change), GIB)
    assert found.level is level
    assert said in found.text + found.advice


def test_page_tables_of_a_large_budget_on_small_pages_are_a_warning() -> None:
    *_, tables = pages.judge(SMALL_PAGES, 1024 * GIB)
    assert (tables.level, tables.numbers["page_table_bytes"]) == (Level.WARNING, 2 * GIB)


@pytest.mark.parametrize(
    ("limit_bytes", "refusal", "pinning", "level", "said"),
    [
        (None, "", "", Level.OK, "8.0 GiB can be locked (no limit)"),
        (8 * MIB, "ENOMEM", "", Level.WARNING, "cannot be locked: ENOMEM, with a limit of 8.0 MiB"),
        (8 * MIB, "ENOMEM", "mlock", Level.OK, "the daemon locks pages: mlock"),
        (8 * MIB, "ENOMEM", "none", Level.WARNING, "cannot be locked"),
        (None, "", "none", Level.NOTE, "the daemon does not"),
        (None, "", "hugetlb", Level.OK, "hugetlb"),
    ],
)
def test_what_the_daemon_locks_counts_more_than_what_this_process_may(
    limit_bytes: int | None, refusal: str, pinning: str, level: Level, said: str
) -> None:
    found = locking.judge(locking.Locking(limit_bytes, refusal), 8 * GIB, pinning)
    assert found.level is level
    assert said in found.text


def test_each_ability_that_a_kernel_lacks_is_named_with_what_is_so_without_it() -> None:
    lacking = kernel.Kernel("5.4.0-generic", dict.fromkeys(kernel.ABILITIES, "EOPNOTSUPP"), "2")
    found = {one.check: one for one in kernel.judge(lacking)}
    assert found["kernel-release"].level is Level.PROBLEM
    assert found["kernel-fallocate"].level is Level.PROBLEM
    assert found["kernel-F_SETLEASE"].level is Level.WARNING
    assert found["kernel-RWF_DONTCACHE"].level is found["kernel-MADV_POPULATE_WRITE"].level is Level.NOTE
    assert found["kernel-overcommit"].level is Level.WARNING
    assert all("EOPNOTSUPP" in found[f"kernel-{name}"].text for name in kernel.ABILITIES)
    whole = kernel.Kernel("6.18.44", dict.fromkeys(kernel.ABILITIES, ""), "0")
    assert {one.level for one in kernel.judge(whole)} == {Level.OK}


def test_a_gpu_is_spoken_of_only_where_there_is_one() -> None:
    assert list(device.judge(None)) == []
    good, old = device.Device("H200", True, ""), device.Device("P4", False, "")
    assert only(list(device.judge(good))).level is Level.OK
    assert "a ring of pinned memory" in only(list(device.judge(old))).text
    assert "CUresult 801" in only(list(device.judge(dataclasses.replace(good, refusal="CUresult 801")))).text


def test_releases_of_one_minor_version_agree() -> None:
    assert [one.level for one in daemon.judge(DAEMON)] == [Level.OK, Level.OK]
    other = dataclasses.replace(DAEMON, client_version="1.5.0")
    assert [one.level for one in daemon.judge(other)] == [Level.OK, Level.NOTE]


@pytest.mark.parametrize(
    ("change", "check", "level"),
    [
        ({"refusal": "Permission denied"}, "worker-arena", Level.PROBLEM),
        ({"is_writable": True}, "worker-read-only", Level.NOTE),
        ({}, "worker-read-only", Level.OK),
        ({"identity": "another", "leased_id": ""}, "worker-same-arena", Level.PROBLEM),
        ({"identity": "another"}, "worker-same-arena", Level.OK),  # its files were mapped
        ({"fallback_reason": "map_failed"}, "worker-mapping", Level.PROBLEM),
        ({"leased_id": ""}, "worker-mapping", Level.NOTE),
        ({"lease_refusal": "too many leases", "leased_id": ""}, "worker-mapping", Level.PROBLEM),
        ({}, "worker-mapping", Level.OK),
    ],
)
def test_what_keeps_a_worker_from_mapping_is_named(change: dict[str, object], check: str, level: Level) -> None:
    found = {one.check: one for one in worker.judge(dataclasses.replace(WORKER, **change), DAEMON)}
    assert found[check].level is level
    assert found[check].advice or level is Level.OK


def test_a_daemon_that_does_not_tell_its_directory_is_no_problem() -> None:
    older = dataclasses.replace(DAEMON, capabilities=dataclasses.replace(SAID, arena_identity=""))
    found = {one.check: one for one in worker.judge(WORKER, older)}
    assert found["worker-same-arena"].level is Level.NOTE


@pytest.mark.parametrize(
    ("found", "status"),
    [
        ([], 0),
        ([Finding("swap", Level.WARNING, "")], 0),
        ([Finding(doctor.REACH, Level.PROBLEM, "")], 3),
        ([Finding(doctor.REACH, Level.PROBLEM, ""), Finding("arena-size", Level.PROBLEM, "")], 1),
    ],
)
def test_the_exit_status_says_whether_there_is_a_problem(found: list[Finding], status: int) -> None:
    assert status_of(found) == status


def test_sizes_are_shown_in_the_unit_that_fits() -> None:
    assert [show_size(size) for size in (0, 1023, 1536, 5 << 40)] == ["0 B", "1023 B", "1.5 KiB", "5.0 TiB"]


@pytest.mark.parametrize(
    ("used_bytes", "cached_bytes", "left_bytes"),
    [(300 * MIB, 0, 724 * MIB), (1000 * MIB, 600 * MIB, 624 * MIB), (GIB, 0, 0)],
)
def test_what_a_control_group_has_left_counts_cached_files_as_free(
    tmp_path: Path, used_bytes: int, cached_bytes: int, left_bytes: int
) -> None:
    membership, group = tmp_path / "membership", tmp_path / "root" / "pod" / "shelf"
    group.mkdir(parents=True)
    membership.write_text("0::/pod/shelf\n")
    (group / "memory.max").write_text(f"{GIB}\n")
    (group / "memory.current").write_text(f"{used_bytes}\n")
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {cached_bytes}\n")
    (group.parent / "memory.max").write_text("max\n")
    assert memory_left_bytes(membership, tmp_path / "root") == left_bytes
    (group / "memory.max").write_text("max\n")
    assert memory_left_bytes(membership, tmp_path / "root") is None
