"""Sessions and leases: every claim is counted, and ends exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from warmshelf.errors import Internal, LeaseLost, SessionLost, TooManyLeases, TooManySessions
from warmshelfd.domain.leases import LeaseRecord, LeaseTable

NOW = datetime(2025, 3, 4, 5, 6, 7, tzinfo=timezone.utc)


def table_of(sessions_max: int = 4, leases_max: int = 8, leases_per_session_max: int = 5) -> LeaseTable:
    return LeaseTable(sessions_max=sessions_max, leases_max=leases_max, leases_per_session_max=leases_per_session_max)


@pytest.fixture
def table() -> Iterator[LeaseTable]:
    table = table_of()
    table.open_session("s1", "worker-1")
    table.open_session("s2", "worker-2")
    yield table
    table.check()


def grant(table: LeaseTable, lease_id: str, session_id: str = "s1", artifact_id: str = "a") -> LeaseRecord:
    segment_id = f"segment-of-{artifact_id}"
    return table.grant(lease_id, session_id, artifact_id=artifact_id, generation=1, segment_id=segment_id, now=NOW)


def test_a_lease_carries_what_it_holds_and_who_holds_it(table: LeaseTable) -> None:
    lease = grant(table, "l1", "s2")
    assert table.get("s2", "l1") is lease
    assert (lease.holder, lease.artifact_id, lease.generation, lease.acquire_time) == ("worker-2", "a", 1, NOW)
    assert (table.holders("segment-of-a"), table.of_artifact("a"), len(table)) == (1, [lease], 1)


def test_the_end_of_a_session_ends_its_leases_and_no_others(table: LeaseTable) -> None:
    """B39 (a): a worker that dies leaves no claim behind."""
    mine = [grant(table, "l1"), grant(table, "l2", artifact_id="b")]
    other = grant(table, "l1", "s2")
    assert table.close_session("s1") == mine
    assert table.page(0, 10).leases == (other,)
    assert (table.holders("segment-of-a"), table.holders("segment-of-b")) == (1, 0)
    with pytest.raises(SessionLost):
        table.get("s1", "l1")


def test_a_release_counts_once_however_often_it_comes(table: LeaseTable) -> None:
    """B53: releasing what a new daemon does not know is harmless."""
    lease = grant(table, "l1")
    grant(table, "l2")
    assert table.release("s1", "l1") is lease
    assert table.release("s1", "l1") is None
    assert table.release("unknown", "l1") is None
    assert table.holders("segment-of-a") == 1
    with pytest.raises(LeaseLost):
        table.get("s1", "l1")


def test_a_lease_is_worth_nothing_in_another_session(table: LeaseTable) -> None:
    grant(table, "l1")
    with pytest.raises(LeaseLost):
        table.get("s2", "l1")
    assert table.release("s2", "l1") is None
    assert table.get("s1", "l1")


def test_an_unknown_session_gets_no_lease_and_ends_without_harm(table: LeaseTable) -> None:
    with pytest.raises(SessionLost):
        grant(table, "l1", "unknown")
    assert table.close_session("unknown") == []
    assert len(table) == 0


def test_an_id_that_is_taken_is_not_given_twice(table: LeaseTable) -> None:
    grant(table, "l1")
    with pytest.raises(Internal):
        grant(table, "l1")
    with pytest.raises(Internal):
        table.open_session("s1", "another")
    assert len(table) == 1


def test_too_many_sessions_are_refused_with_the_numbers_until_one_ends() -> None:
    table = table_of(sessions_max=1)
    table.open_session("s1", "")
    with pytest.raises(TooManySessions) as caught:
        table.open_session("s2", "")
    assert caught.value.details == {"session_count": 1, "session_count_max": 1}
    table.close_session("s1")
    table.open_session("s2", "")
    table.check()


@pytest.mark.parametrize(("leases_max", "per_session_max", "count_max"), [(2, 9, 2), (9, 2, 2)])
def test_too_many_leases_are_refused_with_the_numbers_until_one_ends(
    leases_max: int, per_session_max: int, count_max: int
) -> None:
    table = table_of(leases_max=leases_max, leases_per_session_max=per_session_max)
    table.open_session("s1", "")
    grant(table, "l1")
    grant(table, "l2")
    with pytest.raises(TooManyLeases) as caught:
        grant(table, "l3")
    assert caught.value.details == {"lease_count": 2, "lease_count_max": count_max}
    table.release("s1", "l1")
    grant(table, "l3")
    table.check()


def test_one_session_at_its_limit_does_not_hinder_another() -> None:
    table = table_of(leases_per_session_max=1)
    table.open_session("s1", "")
    table.open_session("s2", "")
    grant(table, "l1", "s1")
    assert grant(table, "l1", "s2")
    table.check()


def test_listings_are_oldest_first_and_go_on_when_leases_end_between_pages(table: LeaseTable) -> None:
    for number in range(5):
        grant(table, f"l{number}")
    first = table.page(0, 2)
    table.release("s1", "l1")
    table.release("s1", "l2")
    second = table.page(first.next_after_number, 2)
    assert [lease.lease_id for lease in first.leases + second.leases] == ["l0", "l1", "l3", "l4"]
    assert second.next_after_number == 0


def test_a_listing_of_one_artifact_holds_its_leases_only(table: LeaseTable) -> None:
    for lease_id, artifact_id in [("l1", "a"), ("l2", "b"), ("l3", "a")]:
        grant(table, lease_id, artifact_id=artifact_id)
    page = table.page(0, 1, "a")
    assert [lease.lease_id for lease in page.leases + table.page(page.next_after_number, 5, "a").leases] == ["l1", "l3"]
    assert table.page(0, 5, "c").leases == ()


def test_no_repr_shows_the_secrets_of_a_session(table: LeaseTable) -> None:
    lease = grant(table, "secret-lease")
    assert "secret-lease" not in repr(lease)
    assert "s1" not in repr(lease)
    assert repr(table) == "<LeaseTable 2 sessions, 1 leases on 1 segments>"


def test_the_check_finds_a_count_that_is_off() -> None:
    table = table_of()
    table.open_session("s1", "")
    grant(table, "l1")
    table._holders["segment-of-a"] += 1
    with pytest.raises(Internal, match="holders by segment"):
        table.check()


class LeaseMachine(RuleBasedStateMachine):
    """Random claims against a plain list of (session, lease, artifact)."""

    sessions = st.sampled_from(["s1", "s2", "s3"])
    leases = st.sampled_from(["l1", "l2", "l3"])
    artifacts = st.sampled_from(["a", "b"])

    @initialize()
    def begin(self) -> None:
        self.table = table_of(sessions_max=2, leases_max=3, leases_per_session_max=2)
        self.open: set[str] = set()
        self.held: list[tuple[str, str, str]] = []

    @rule(session_id=sessions)
    def open_session(self, session_id: str) -> None:
        if session_id in self.open:
            return
        if len(self.open) == 2:
            with pytest.raises(TooManySessions):
                self.table.open_session(session_id, session_id)
        else:
            self.table.open_session(session_id, session_id)
            self.open.add(session_id)

    @rule(session_id=sessions)
    def close_session(self, session_id: str) -> None:
        ended = [
            (lease.session_id, lease.lease_id, lease.artifact_id) for lease in self.table.close_session(session_id)
        ]
        assert ended == [held for held in self.held if held[0] == session_id]
        self.held = [held for held in self.held if held[0] != session_id]
        self.open.discard(session_id)

    @rule(session_id=sessions, lease_id=leases, artifact_id=artifacts)
    def grant(self, session_id: str, lease_id: str, artifact_id: str) -> None:
        mine = [held for held in self.held if held[0] == session_id]
        if session_id not in self.open:
            with pytest.raises(SessionLost):
                grant(self.table, lease_id, session_id, artifact_id)
        elif any(held[1] == lease_id for held in mine):
            with pytest.raises(Internal):
                grant(self.table, lease_id, session_id, artifact_id)
        elif len(mine) == 2 or len(self.held) == 3:
            with pytest.raises(TooManyLeases):
                grant(self.table, lease_id, session_id, artifact_id)
        else:
            grant(self.table, lease_id, session_id, artifact_id)
            self.held.append((session_id, lease_id, artifact_id))

    @rule(session_id=sessions, lease_id=leases)
    def release(self, session_id: str, lease_id: str) -> None:
        released = self.table.release(session_id, lease_id)
        ended = [held for held in self.held if held[:2] == (session_id, lease_id)]
        assert [released.artifact_id] * len(ended) == [held[2] for held in ended] if released else not ended
        self.held = [held for held in self.held if held not in ended]

    @invariant()
    def same(self) -> None:
        self.table.check()
        listed = [(lease.session_id, lease.lease_id, lease.artifact_id) for lease in self.table.page(0, 99).leases]
        assert listed == self.held
        for artifact_id in ("a", "b"):
            on_it = [held[:2] for held in self.held if held[2] == artifact_id]
            assert [(lease.session_id, lease.lease_id) for lease in self.table.of_artifact(artifact_id)] == on_it
            assert self.table.holders(f"segment-of-{artifact_id}") == len(on_it)


TestLeaseMachine = LeaseMachine.TestCase
TestLeaseMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
