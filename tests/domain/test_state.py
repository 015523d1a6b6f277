"""The table of an artifact's life against the same table written a second time."""

from __future__ import annotations

from itertools import product

import pytest

from warmshelf.types import ArtifactState
from warmshelfd.domain.state import FIRST, GONE, TABLE, Event, IllegalTransition, mermaid, step

STEPS = """
    registered load_started   loading
    registered adopted        ready
    registered removed        gone
    loading    sealed         ready
    loading    load_failed    failed
    loading    load_cancelled registered
    loading    removed        gone
    ready      evicted        registered
    ready      drain_started  evicting
    ready      replaced       registered
    ready      withdrawn      failed
    ready      removed        gone
    evicting   drained        registered
    evicting   removed        gone
    failed     load_started   loading
    failed     replaced       registered
    failed     removed        gone
"""
EXPECTED = {(state, event): after for state, event, after in map(str.split, STEPS.strip().splitlines())}


@pytest.mark.parametrize(("state", "event"), list(product(ArtifactState, Event)))
def test_each_event_leads_where_the_table_says_or_is_refused(state: ArtifactState, event: Event) -> None:
    expected = EXPECTED.get((state.value, event.value))
    if expected is None:
        with pytest.raises(IllegalTransition) as caught:
            step(state, event)
        assert (caught.value.state, caught.value.event) == (state, event)
        assert state.name in str(caught.value)
        assert event.value in str(caught.value)
    else:
        after = step(state, event)
        assert ("gone" if after is GONE else after.value) == expected


def test_a_refused_event_leaves_the_table_as_it_was() -> None:
    before = {state: dict(row) for state, row in TABLE.items()}
    with pytest.raises(IllegalTransition):
        step(ArtifactState.EVICTING, Event.LOAD_STARTED)
    assert {state: dict(row) for state, row in TABLE.items()} == before


def test_every_state_can_be_reached_and_left() -> None:
    reached = {FIRST}
    while more := {after for state in reached for after in TABLE[state].values() if after is not GONE} - reached:
        reached |= more
    assert reached == set(ArtifactState)
    assert all(GONE in row.values() for row in TABLE.values())


def test_the_diagram_shows_every_step_of_the_table_and_nothing_else() -> None:
    head, *lines = mermaid().splitlines()
    drawn = set()
    for line in lines:
        start, _, rest = line.strip().partition(" --> ")
        end, _, events = rest.partition(": ")
        drawn |= {(start, event, end) for event in events.split(", ")}
    expected = {
        (state.upper(), event, "[*]" if after == "gone" else after.upper())
        for (state, event), after in EXPECTED.items()
    }
    assert head == "stateDiagram-v2"
    assert drawn == expected | {("[*]", "registered", "REGISTERED")}
