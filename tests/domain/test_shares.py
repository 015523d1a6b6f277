"""Who gives memory back: what is promised to every tenant, whatever the others do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from warmshelf.types import ArtifactKind
from warmshelfd.domain.placement import Resident
from warmshelfd.domain.shares import Holding, Leaving, plan_room, plan_smaller

SIZES = st.integers(1, 40)
HELD = SIZES | st.just(0)


def segment(tenant: str, number: int, size: int) -> Resident:
    return Resident(f"{tenant}-{number}", f"{tenant}/{number}", ArtifactKind.BASE, size, number, held=False)


def holding(tenant: str, share: int, idle: Sequence[int] = (), held: int = 0) -> Holding:
    segments = tuple(segment(tenant, number, size) for number, size in enumerate(idle))
    return Holding(tenant, share, sum(idle) + held, segments)


@dataclass(frozen=True)
class Scene:
    """Tenants whose shares fit into a budget, as does what they have; the first one asks."""

    size: int
    asker: Holding
    most: int
    others: tuple[Holding, ...]
    budget: int

    @property
    def free(self) -> int:
        return self.budget - sum(one.used_bytes for one in (self.asker, *self.others))

    def plan(self) -> tuple[Leaving, ...] | None:
        return plan_room(self.size, self.asker, self.most, self.others, self.free)


@st.composite
def scenes(draw: st.DrawFn, held: st.SearchStrategy[int] = HELD) -> Scene:
    count = draw(st.integers(1, 4))
    tenants = [
        holding(f"t{n}", draw(st.integers(0, 60)), draw(st.lists(SIZES, max_size=5)), draw(held)) for n in range(count)
    ]
    least = max(sum(one.share_bytes for one in tenants), sum(one.used_bytes for one in tenants))
    size = draw(st.integers(1, 80))
    most = max(draw(st.integers(0, 200)), tenants[0].share_bytes, tenants[0].used_bytes, size)
    return Scene(size, tenants[0], most, tuple(tenants[1:]), least + draw(st.integers(0, 40)))


@given(scenes())
def test_there_is_room_afterwards_and_nobody_left_for_nothing(scene: Scene) -> None:
    leaving = scene.plan()
    if leaving is None:
        return
    freed = sum(one.resident.size_bytes for one in leaving)
    own = sum(one.resident.size_bytes for one in leaving if one.tenant == scene.asker.tenant)
    assert scene.free + freed >= scene.size
    assert scene.asker.used_bytes - own + scene.size <= scene.most
    idle = {id(resident) for one in (scene.asker, *scene.others) for resident in one.idle}
    assert len({id(one.resident) for one in leaving}) == len(leaving)
    assert {id(one.resident) for one in leaving} <= idle
    if freed and not own:
        assert all(scene.free + freed - one.resident.size_bytes < scene.size for one in leaving)


@given(scenes())
def test_nobody_at_its_share_gives_and_who_borrows_pushes_nobody_below_it(scene: Scene) -> None:
    leaving = scene.plan() or ()
    own = sum(one.resident.size_bytes for one in leaving if one.tenant == scene.asker.tenant)
    is_within = scene.asker.used_bytes + scene.size - own <= scene.asker.share_bytes
    for other in scene.others:
        given_up = [one.resident.size_bytes for one in leaving if one.tenant == other.tenant]
        if given_up:
            assert other.used_bytes - sum(given_up) + max(given_up) > other.share_bytes
            assert is_within or other.used_bytes - sum(given_up) >= other.share_bytes


@given(scenes(held=st.just(0)))
def test_who_asks_for_what_is_within_its_share_gets_it_unless_others_hold_it(scene: Scene) -> None:
    if scene.asker.used_bytes + scene.size <= scene.asker.share_bytes:
        leaving = scene.plan()
        assert leaving is not None
        assert all(one.tenant != scene.asker.tenant for one in leaving)


@given(scenes())
def test_who_gives_to_a_borrower_was_further_above_its_share_than_that_will_be(scene: Scene) -> None:
    leaving = scene.plan() or ()
    own = sum(one.resident.size_bytes for one in leaving if one.tenant == scene.asker.tenant)
    after = scene.asker.used_bytes - own + scene.size - scene.asker.share_bytes
    givers = {one.tenant for one in leaving} - {scene.asker.tenant}
    for other in scene.others:
        if other.tenant in givers:
            assert other.used_bytes - other.share_bytes > max(after, 0)


@given(scenes(held=st.just(0)), st.integers(0, 200))
def test_a_budget_that_holds_all_shares_can_always_be_had_while_nobody_holds_anything(scene: Scene, more: int) -> None:
    holdings = (scene.asker, *scene.others)
    budget = min(sum(one.share_bytes for one in holdings) + more, scene.budget)
    leaving = plan_smaller(scene.budget - budget, holdings, scene.free)
    assert leaving is not None
    left = sum(one.used_bytes for one in holdings) - sum(one.resident.size_bytes for one in leaving)
    assert left <= budget


def test_a_tenant_that_took_everything_gives_back_what_another_is_owed_and_no_more() -> None:
    greedy = holding("greedy", 40, [20, 20, 20, 20])
    leaving = plan_room(20, holding("late", 40), 80, [greedy], 0)
    assert leaving is not None
    assert [one.resident.segment_id for one in leaving] == ["greedy-0"]


def test_what_is_held_stays_and_is_waited_for() -> None:
    assert plan_room(20, holding("late", 40), 80, [holding("greedy", 40, held=80)], 0) is None


def test_two_that_borrow_alike_take_nothing_from_each_other() -> None:
    leaving = plan_room(10, holding("a", 0, [10, 10]), 100, [holding("b", 0, [10, 10])], 0)
    assert leaving is not None
    assert [one.tenant for one in leaving] == ["a"]


def test_a_most_is_kept_by_ones_own_segments_also_while_there_is_room() -> None:
    leaving = plan_room(10, holding("a", 0, [5, 10, 10]), 25, [], 100)
    assert leaving is not None
    assert [one.resident.segment_id for one in leaving] == ["a-1"]
