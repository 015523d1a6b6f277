"""Placement against examples, and against all that could be tried by brute force."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmshelf.types import ArtifactKind
from warmshelfd.domain.placement import ArenaView, Fits, Need, Never, Resident, Wait, plan, plan_shrink

BASE, ADAPTER = ArtifactKind.BASE, ArtifactKind.ADAPTER


def resident(name: str, size: int, order: int, kind: ArtifactKind = BASE, *, held: bool = False) -> Resident:
    return Resident(f"segment-{name}", name, kind, size, order, held)


def names(outcome: object) -> list[str]:
    assert isinstance(outcome, Fits)
    return [victim.artifact_id for victim in outcome.victims]


def arena(budget: int, residents: Sequence[Resident], floor: int = 0, unnamed: int = 0) -> ArenaView:
    return ArenaView(budget, budget - unnamed - sum(r.size_bytes for r in residents), unnamed, floor)


def test_what_fits_evicts_nobody() -> None:
    there = [resident("a", 4, 1)]
    assert plan(Need(6, BASE), arena(10, there), there) == Fits()


def test_what_is_exactly_as_large_as_the_arena_fits_once_it_is_empty() -> None:
    """B37: the exact fit fits."""
    there = [resident("a", 4, 2), resident("b", 6, 1)]
    assert names(plan(Need(10, BASE), arena(10, there), there)) == ["b", "a"]


def test_larger_than_the_arena_is_never_and_evicts_nobody() -> None:
    there = [resident("a", 4, 1)]
    assert plan(Need(11, BASE), arena(10, there), there) == Never(size_bytes=11, budget_bytes=10)


def test_the_least_recently_used_leaves_first() -> None:
    there = [resident("new", 3, 9), resident("old", 3, 1), resident("middle", 3, 5)]
    assert names(plan(Need(2, BASE), arena(10, there), there)) == ["old"]


def test_what_is_held_never_leaves() -> None:
    """B35: the least recently used may be in use."""
    there = [resident("old", 5, 1, held=True), resident("new", 5, 9)]
    assert names(plan(Need(5, BASE), arena(10, there), there)) == ["new"]


def test_when_all_that_may_leave_is_too_little_nobody_leaves_and_the_numbers_say_why() -> None:
    """B40: leased bytes make the request wait."""
    there = [resident("a", 4, 1, held=True), resident("b", 2, 2), resident("c", 1, 3, ADAPTER)]
    assert plan(Need(6, BASE), arena(10, there, floor=1, unnamed=2), there) == Wait(
        size_bytes=6, missing_bytes=3, free_bytes=1, evictable_bytes=2, held_bytes=4, floor_bytes=1, unnamed_bytes=2
    )


def test_a_small_victim_stays_if_a_large_one_must_leave_anyway() -> None:
    there = [resident("small", 1, 1), resident("large", 9, 2)]
    assert names(plan(Need(9, BASE), arena(10, there), there)) == ["large"]


def test_an_adapter_may_take_the_place_of_a_base() -> None:
    there = [resident("base", 8, 1), resident("adapter", 2, 2, ADAPTER)]
    assert names(plan(Need(1, ADAPTER), arena(10, there, floor=2), there)) == ["base"]


def test_an_adapter_may_take_the_place_of_an_adapter_below_the_floor() -> None:
    there = [resident("adapter", 2, 1, ADAPTER), resident("base", 8, 2)]
    assert names(plan(Need(1, ADAPTER), arena(10, there, floor=5), there)) == ["adapter"]


def test_a_base_leaves_the_adapters_their_floor() -> None:
    there = [resident(f"adapter-{i}", 1, i, ADAPTER) for i in range(4)] + [resident("base", 6, 9)]
    assert names(plan(Need(2, BASE), arena(10, there, floor=2), there)) == ["adapter-0", "adapter-1"]
    assert names(plan(Need(3, BASE), arena(10, there, floor=2), there)) == ["base"]
    assert isinstance(plan(Need(9, BASE), arena(10, there, floor=2), there), Wait)


def test_adapters_that_cannot_leave_count_toward_the_floor() -> None:
    there = [resident("held", 3, 9, ADAPTER, held=True), resident("idle", 3, 1, ADAPTER), resident("base", 4, 2)]
    assert names(plan(Need(3, BASE), arena(10, there, floor=3), there)) == ["idle"]


def test_the_floor_reserves_nothing_that_adapters_do_not_use() -> None:
    assert plan(Need(10, BASE), arena(10, [], floor=5), []) == Fits()


def test_an_unknown_kind_has_no_more_rights_than_a_base() -> None:
    there = [resident("adapter", 5, 1, ADAPTER), resident("base", 5, 2)]
    assert names(plan(Need(5, ArtifactKind.UNKNOWN), arena(10, there, floor=5), there)) == ["base"]


def test_after_the_budget_was_lowered_a_request_also_makes_up_for_the_excess() -> None:
    there = [resident("a", 4, 1), resident("b", 4, 2), resident("c", 4, 3)]
    assert names(plan(Need(1, BASE), arena(10, there), there)) == ["a"]
    assert names(plan(Need(3, BASE), arena(10, there), there)) == ["a", "b"]


# --- the oracle: every set of residents that may leave, one by one ----------


def permitted(need: Need, view: ArenaView, residents: Sequence[Resident]) -> Iterator[tuple[Resident, ...]]:
    """Every set that may leave together for this need."""
    for count in range(len(residents) + 1):
        for leaving in combinations(residents, count):
            if any(r.held for r in leaving):
                continue
            adapters_leave = [r for r in leaving if r.kind is ADAPTER]
            adapters_stay = [r for r in residents if r.kind is ADAPTER and r not in leaving]
            floor_kept = sum(r.size_bytes for r in adapters_stay) >= view.adapter_floor_bytes
            if need.kind is ADAPTER or not adapters_leave or floor_kept:
                yield leaving


def enough(need: Need, view: ArenaView, leaving: Sequence[Resident]) -> bool:
    return view.free_bytes + sum(r.size_bytes for r in leaving) >= need.size_bytes


@st.composite
def situations(draw: st.DrawFn, adapter_size: int | None = None) -> tuple[Need, ArenaView, list[Resident]]:
    kinds = st.sampled_from([BASE, ADAPTER])
    orders = draw(st.permutations(range(draw(st.integers(0, 7)))))
    residents = []
    for order in orders:
        kind = draw(kinds)
        size = adapter_size if adapter_size is not None and kind is ADAPTER else draw(st.integers(0, 9))
        residents.append(resident(str(order), size, order, kind, held=draw(st.booleans())))
    used = sum(r.size_bytes for r in residents)
    unnamed = draw(st.integers(0, 5))
    budget = draw(st.integers(max(0, used - 5), used + unnamed + 20))
    need = Need(draw(st.integers(1, 40)), draw(st.sampled_from([BASE, ADAPTER, ArtifactKind.UNKNOWN])))
    return need, arena(budget, residents, draw(st.integers(0, 20)), unnamed), residents


@given(situations())
def test_victims_are_a_permitted_set_that_makes_the_room_and_of_which_none_is_needless(
    situation: tuple[Need, ArenaView, list[Resident]],
) -> None:
    need, view, residents = situation
    outcome = plan(need, view, residents)
    if isinstance(outcome, Fits):
        assert set(outcome.victims) in [set(leaving) for leaving in permitted(need, view, residents)]
        assert enough(need, view, outcome.victims)
        for victim in outcome.victims:
            assert not enough(need, view, [other for other in outcome.victims if other is not victim])
        assert list(outcome.victims) == sorted(outcome.victims, key=lambda r: r.last_use_order)


@given(situations())
def test_never_is_said_exactly_of_what_is_larger_than_the_budget(
    situation: tuple[Need, ArenaView, list[Resident]],
) -> None:
    need, view, residents = situation
    assert isinstance(plan(need, view, residents), Never) == (need.size_bytes > view.budget_bytes)


@given(situations())
def test_who_waits_could_not_have_fitted_save_for_one_adapter_at_the_floor(
    situation: tuple[Need, ArenaView, list[Resident]],
) -> None:
    need, view, residents = situation
    outcome = plan(need, view, residents)
    if isinstance(outcome, Wait):
        best = max(sum(r.size_bytes for r in leaving) for leaving in permitted(need, view, residents))
        slack = 0
        if need.kind is not ADAPTER:
            slack = max((r.size_bytes for r in residents if r.kind is ADAPTER), default=0)
        assert 0 <= best - outcome.evictable_bytes <= slack
        assert outcome.missing_bytes == need.size_bytes - view.free_bytes - outcome.evictable_bytes > 0
        parts = outcome.evictable_bytes + outcome.held_bytes + outcome.floor_bytes
        assert parts + outcome.free_bytes + outcome.unnamed_bytes == view.budget_bytes


@pytest.mark.parametrize("adapter_size", [1, 3])
def test_with_adapters_of_one_size_the_choice_is_exact_and_spares_the_most_recently_used(adapter_size: int) -> None:
    @given(situations(adapter_size))
    def prove(situation: tuple[Need, ArenaView, list[Resident]]) -> None:
        need, view, residents = situation
        outcome = plan(need, view, residents)
        possible = [leaving for leaving in permitted(need, view, residents) if enough(need, view, leaving)]
        assert isinstance(outcome, Fits) == (need.size_bytes <= view.budget_bytes and bool(possible))
        if isinstance(outcome, Fits):
            assert newest(outcome.victims) == min(map(newest, possible))

    prove()


def newest(leaving: Sequence[Resident]) -> int:
    """The order of the most recently used one that leaves; the lower, the better the choice."""
    return max((r.last_use_order for r in leaving), default=-1)


def test_a_smaller_budget_takes_what_is_free_first_and_then_the_least_recently_used() -> None:
    there = [resident("new", 3, 9), resident("old", 3, 1), resident("held", 2, 0, held=True)]
    assert plan_shrink(2, arena(10, there), there) == Fits()
    assert names(plan_shrink(3, arena(10, there), there)) == ["old"]
    assert names(plan_shrink(8, arena(10, there), there)) == ["old", "new"]


def test_a_budget_that_what_is_held_does_not_fit_into_makes_nobody_leave() -> None:
    there = [resident("old", 3, 1), resident("held", 5, 0, held=True)]
    assert isinstance(plan_shrink(6, arena(10, there), there), Wait)


def test_a_smaller_budget_spares_adapters_for_bases_but_not_for_its_own_sake() -> None:
    """The floor keeps bases from pushing adapters out; an operator may."""
    there = [resident("adapter", 4, 1, ADAPTER), resident("base", 4, 9)]
    assert names(plan_shrink(4, arena(8, there, floor=2), there)) == ["base"]
    assert names(plan_shrink(7, arena(8, there, floor=2), there)) == ["adapter", "base"]
