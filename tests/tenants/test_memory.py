"""Whose memory it is: shares that nobody can take, what is borrowed and given back, and quotas."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

import warmshelf
from kit.models import write_model
from kit.processes import eventually
from kit.scrape import HTTP, pages_of
from kit.tenants import NODE, TENANTS, Estate
from warmshelf import ArtifactState, errors

MIB = 1 << 20
SIZE = 3 * MIB
"""Of a model; its segment takes a little more."""
BUDGET = "32MiB"
"""Ten of them."""
HALVES = {"red": 'share = "14MiB"', "blue": 'share = "14MiB"'}
"""Four of them are each one's own."""
ALONE = ("--adapter-floor", "0")


def _register(shelf: warmshelf.Shelf, estate: Estate, count: int) -> None:
    for number in range(count):
        path = estate.daemon.models / f"{number}.safetensors"
        if not path.exists():
            write_model(path, number, SIZE)
        shelf.register(f"m{number}", f"file://{path}")


def _fill(shelf: warmshelf.Shelf, estate: Estate, count: int) -> None:
    _register(shelf, estate, count)
    for number in range(count):
        shelf.acquire(f"m{number}", timeout=20).release()


def _resident(shelf: warmshelf.Shelf) -> list[str]:
    return [one.artifact_id for one in shelf.list() if one.state is ArtifactState.READY]


def _bytes(estate: Estate, tenant: str) -> int:
    return sum((estate.arena(tenant) / name).stat().st_size for name in estate.segments(tenant))


def test_what_was_borrowed_goes_to_who_is_owed_it_and_nobodys_own_share_does(estate: Estate) -> None:
    estate.start(*ALONE, budget=BUDGET, tenants=HALVES)
    with estate.connect("red") as red, estate.connect("blue") as blue:
        _fill(red, estate, 12)
        assert _bytes(estate, "red") > 24 * MIB  # it took all that nobody used
        assert _resident(red)[-1] == "m9"
        _fill(blue, estate, 4)
        assert len(_resident(blue)) == 4
        assert _bytes(estate, "red") > 14 * MIB - SIZE - MIB
        kept = _resident(blue)
        for number in range(12):  # red turns over all it may, and blue has what it had
            red.acquire(f"m{number}", timeout=20).release()
        assert _resident(blue) == kept
        assert {"m11", "m10", "m9"} <= set(_resident(red))


def test_what_is_borrowed_and_held_is_waited_for(estate: Estate) -> None:
    estate.start(*ALONE, budget=BUDGET, tenants=HALVES)
    with estate.connect("red") as red, estate.connect("blue") as blue, ExitStack() as held:
        _register(red, estate, 10)
        for number in range(10):
            held.enter_context(red.acquire(f"m{number}", timeout=20))
        _register(blue, estate, 1)
        with pytest.raises(errors.ArenaFull):
            blue.acquire("m0", timeout=1.5)
        assert len(_resident(red)) == 10
        held.close()
        blue.acquire("m0", timeout=20).release()


def test_with_a_quota_no_larger_than_its_share_a_tenant_keeps_nothing_of_others_from_them(estate: Estate) -> None:
    bounded = dict.fromkeys(TENANTS, 'share = "14MiB"\nquota = "14MiB"')
    estate.start(*ALONE, budget=BUDGET, tenants=bounded)
    with estate.connect("red") as red, estate.connect("blue") as blue, ExitStack() as held:
        _register(red, estate, 9)
        for number in range(4):
            held.enter_context(red.acquire(f"m{number}", timeout=20))
        with pytest.raises(errors.ArenaFull) as full:
            red.acquire("m4", timeout=1.5)
        assert full.value.details["budget_bytes"] == 14 * MIB
        _fill(blue, estate, 6)
        assert _bytes(estate, "blue") <= 14 * MIB
        assert len(_resident(blue)) == 4
        assert red.capacity().budget_bytes == 14 * MIB


def test_what_is_larger_than_a_quota_is_refused_at_once_and_evicts_nobody(estate: Estate) -> None:
    estate.start(*ALONE, budget=BUDGET, tenants={"red": 'quota = "8MiB"', "blue": ""})
    path = estate.daemon.models / "large.safetensors"
    write_model(path, 99, 10 * MIB)
    with estate.connect("red") as red, estate.connect("blue") as blue:
        _fill(blue, estate, 9)
        red.register("large", f"file://{path}")
        with pytest.raises(errors.LargerThanArena, match=f"an arena of {8 * MIB} bytes"):
            red.acquire("large", timeout=20)
        assert len(_resident(blue)) == 9


def test_what_belongs_to_no_tenant_takes_what_the_shares_leave_and_no_more(estate: Estate) -> None:
    estate.start(*ALONE, budget=BUDGET, tenants=HALVES)
    with estate.connect(NODE) as node:
        assert node.capacity().budget_bytes == 4 * MIB
        _fill(node, estate, 3)
        assert _resident(node) == ["m2"]


def test_tenants_without_shares_level_out(estate: Estate) -> None:
    estate.start(*ALONE, budget=BUDGET)
    with estate.connect("red") as red, estate.connect("blue") as blue:
        _fill(red, estate, 9)
        _fill(blue, estate, 9)
        assert len(_resident(red)) in (4, 5)
        assert len(_resident(blue)) in (4, 5)


def test_after_a_restart_with_less_memory_each_has_what_its_share_holds(estate: Estate) -> None:
    estate.start(*ALONE, budget="64MiB", tenants=HALVES)
    with estate.connect("red") as red, estate.connect("blue") as blue:
        _fill(red, estate, 10)
        _fill(blue, estate, 4)
    estate.daemon.kill()
    estate.start(*ALONE, budget=BUDGET, tenants=HALVES, more="restore = false")
    with estate.connect("red") as red, estate.connect("blue") as blue:
        assert len(_resident(blue)) == 4
        assert 4 <= len(_resident(red)) < 10


def test_what_was_borrowed_is_taken_over_at_a_restart_as_long_as_nobody_is_owed_it(estate: Estate) -> None:
    estate.start(*ALONE, budget=BUDGET, tenants=HALVES)
    with estate.connect("red") as red, estate.connect("blue") as blue:
        _fill(red, estate, 8)
        _fill(blue, estate, 1)
    before = estate.segments("red")
    estate.daemon.kill()
    estate.start(*ALONE, budget=BUDGET, tenants=HALVES, more="restore = false")
    assert estate.segments("red") == before
    with estate.connect("red") as red, estate.connect("blue") as blue:
        assert len(_resident(red)) == 8
        assert len(_resident(blue)) == 1


def test_shares_beyond_the_budget_are_refused_at_the_start(estate: Estate) -> None:
    estate.start(budget=BUDGET, tenants={"red": 'share = "60%"', "blue": 'share = "50%"'}, wait=False)
    assert estate.daemon.wait() == 2
    assert "the shares of all tenants take" in estate.daemon.log.read_text()


def test_metrics_tell_each_tenants_bytes_and_what_it_gave_back(estate: Estate) -> None:
    estate.start(*ALONE, *HTTP, budget=BUDGET, tenants=HALVES)
    pages = pages_of(estate.daemon)
    with estate.connect("red") as red, estate.connect("blue") as blue:
        _fill(red, estate, 9)
        _fill(blue, estate, 4)
        eventually(lambda: len(estate.segments("blue")) == 4, "all are there")
    seen = pages.scrape()
    assert seen['warmshelf_tenant_share_bytes{tenant="red"}'] == 14 * MIB
    assert seen['warmshelf_tenant_quota_bytes{tenant="red"}'] == 32 * MIB
    assert seen['warmshelf_tenant_bytes{tenant="blue",state="idle"}'] == _bytes(estate, "blue")
    assert seen['warmshelf_tenant_evictions_total{tenant="red",reason="share"}'] == 3
    assert seen['warmshelf_arena_bytes{state="idle"}'] == _bytes(estate, "blue") + _bytes(estate, "red")
    assert seen["warmshelf_arena_budget_bytes"] == 32 * MIB


def test_another_budget_is_one_that_holds_all_shares_and_what_was_borrowed_leaves_for_it(estate: Estate) -> None:
    estate.start(*ALONE, budget="64MiB", tenants=HALVES)
    with estate.connect("red") as red, estate.connect("blue") as blue, estate.connect(NODE) as node:
        _fill(red, estate, 12)
        _fill(blue, estate, 4)
        with pytest.raises(errors.InvalidRequest, match="the shares of all tenants"):
            node.set_budget(20 * MIB, timeout=20)
        node.set_budget(28 * MIB, timeout=20)
        assert len(_resident(blue)) == 4
        assert len(_resident(red)) in (4, 5)
        assert node.capacity().budget_bytes == 0
        node.set_budget(40 * MIB, timeout=20)
        _fill(red, estate, 8)
        assert {f"m{number}" for number in range(8)} <= set(_resident(red))
    for who, tenant in (("red", None), (NODE, "red")):
        with estate.connect(who, tenant=tenant) as shelf, pytest.raises(errors.PermissionDenied):
            shelf.set_budget(40 * MIB, timeout=20)
