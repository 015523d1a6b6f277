"""The catalog: what is known, in order, and nothing half changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from warmshelf.errors import ArtifactNotFound, CatalogFull, Internal
from warmshelf.types import (
    AdapterInspection,
    ArtifactKind,
    ArtifactSpec,
    ArtifactState,
    Failure,
    Inspection,
    Source,
)
from warmshelfd.domain.catalog import Catalog, Entry, spec_conflict
from warmshelfd.domain.state import TABLE, Event, IllegalTransition

NOW = datetime(2025, 3, 4, 5, 6, 7, tzinfo=timezone.utc)
SPEC = ArtifactSpec(Source("file:///models/a"))
FAILURE = Failure("SOURCE_NOT_FOUND", "gone")


def entry(artifact_id: str, base_id: str = "", number: int = 0) -> Entry:
    inspection = Inspection(adapter=AdapterInspection(adapter_number=number)) if number else None
    return Entry(artifact_id, replace(SPEC, base_id=base_id), NOW, inspection=inspection)


@pytest.fixture
def catalog() -> Iterator[Catalog]:
    catalog = Catalog(artifact_count_max=50)
    yield catalog
    catalog.check()


def make_ready(catalog: Catalog, artifact_id: str) -> Entry:
    catalog.apply(artifact_id, Event.LOAD_STARTED)
    loaded = catalog.get(artifact_id)
    loaded.segment_id, loaded.generation, loaded.size_bytes = "0" * 32, 1, 4096
    return catalog.apply(artifact_id, Event.SEALED)


def test_an_added_artifact_is_found_under_its_id_and_no_other(catalog: Catalog) -> None:
    added = entry("org/a")
    catalog.add(added)
    assert catalog.get("org/a") is added
    assert catalog.find("org/A") is None
    assert "org/a" in catalog
    with pytest.raises(ArtifactNotFound, match="org/b"):
        catalog.get("org/b")


def test_an_id_is_added_once(catalog: Catalog) -> None:
    catalog.add(entry("a"))
    with pytest.raises(Internal):
        catalog.add(entry("a"))
    assert len(catalog) == 1


def test_a_full_catalog_refuses_with_the_numbers_until_one_is_removed() -> None:
    catalog = Catalog(artifact_count_max=2)
    catalog.add(entry("a"))
    catalog.add(entry("b"))
    with pytest.raises(CatalogFull) as caught:
        catalog.add(entry("c"))
    assert caught.value.details == {"artifact_count": 2, "artifact_count_max": 2}
    with pytest.raises(CatalogFull):
        catalog.check_room()
    catalog.apply("a", Event.REMOVED)
    catalog.check_room()
    catalog.add(entry("c"))
    catalog.check()


def test_an_event_moves_the_entry_to_the_next_state(catalog: Catalog) -> None:
    catalog.add(entry("a"))
    assert make_ready(catalog, "a").state is ArtifactState.READY
    assert [e.artifact_id for e in catalog.in_state(ArtifactState.READY)] == ["a"]
    assert catalog.in_state(ArtifactState.REGISTERED) == ()


def test_an_illegal_event_changes_nothing(catalog: Catalog) -> None:
    catalog.add(entry("a"))
    before = replace(catalog.get("a"))
    with pytest.raises(IllegalTransition):
        catalog.apply("a", Event.SEALED)
    assert catalog.get("a") == before
    assert repr(catalog) == "<Catalog 1 of 50: 1 registered>"


def test_removed_is_gone_at_once_and_may_be_added_anew(catalog: Catalog) -> None:
    first = entry("a")
    catalog.add(first)
    assert catalog.apply("a", Event.REMOVED) is first
    with pytest.raises(ArtifactNotFound):
        catalog.apply("a", Event.LOAD_STARTED)
    catalog.add(entry("a"))
    assert catalog.get("a") is not first


def test_a_failure_is_kept_exactly_while_failed(catalog: Catalog) -> None:
    catalog.add(entry("a"))
    catalog.apply("a", Event.LOAD_STARTED)
    assert catalog.apply("a", Event.LOAD_FAILED, FAILURE).failure is FAILURE
    catalog.check()
    assert catalog.apply("a", Event.LOAD_STARTED).failure is None


def test_what_leaves_memory_is_pinned_no_more(catalog: Catalog) -> None:
    catalog.add(entry("a"))
    make_ready(catalog, "a").pinned = True
    assert catalog.apply("a", Event.DRAIN_STARTED).pinned
    assert not catalog.apply("a", Event.DRAINED).pinned


def test_use_is_ordered_even_when_the_clock_steps_back(catalog: Catalog) -> None:
    for name in "abc":
        catalog.add(entry(name))
    catalog.touch(catalog.get("b"), NOW)
    catalog.touch(catalog.get("a"), NOW - timedelta(days=1))
    catalog.touch(catalog.get("b"), NOW - timedelta(days=2))
    assert [e.artifact_id for e in sorted(catalog, key=lambda e: e.last_use_order)] == ["c", "a", "b"]
    assert catalog.get("b").last_use_time == NOW - timedelta(days=2)


def test_pages_go_on_when_the_artifact_they_ended_at_is_removed(catalog: Catalog) -> None:
    for name in "abcd":
        catalog.add(entry(name))
    first = catalog.page("", 2)
    catalog.apply("b", Event.REMOVED)
    second = catalog.page(first.next_after_id, 2)
    assert [e.artifact_id for e in first.entries + second.entries] == ["a", "b", "c", "d"]
    assert second.next_after_id == ""


def test_a_listing_by_base_holds_its_adapters_only(catalog: Catalog) -> None:
    for name, base in [("a", "base/1"), ("b", "base/10"), ("base/1", ""), ("c", "base/1")]:
        catalog.add(entry(name, base))
    assert [e.artifact_id for e in catalog.page("", 10, "base/1").entries] == ["a", "c"]


@given(st.sets(st.text("ab/0", min_size=1, max_size=4), max_size=30), st.integers(1, 7))
def test_pages_of_any_size_join_to_the_sorted_listing_without_an_empty_one(ids: set[str], page_size: int) -> None:
    catalog = Catalog(artifact_count_max=len(ids))
    for artifact_id in ids:
        catalog.add(entry(artifact_id, "base" if "a" in artifact_id else ""))
    for base_id in ("", "base"):
        seen, page = [], catalog.page("", page_size, base_id)
        while True:
            seen += [e.artifact_id for e in page.entries]
            if not page.next_after_id:
                break
            page = catalog.page(page.next_after_id, page_size, base_id)
            assert page.entries
        assert seen == sorted(i for i in ids if not base_id or "a" in i)


def test_the_repr_counts_by_state(catalog: Catalog) -> None:
    assert repr(catalog) == "<Catalog 0 of 50: empty>"
    for name in "abc":
        catalog.add(entry(name))
    make_ready(catalog, "b")
    assert repr(catalog) == "<Catalog 3 of 50: 2 registered, 1 ready>"


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("state", ArtifactState.LOADING, "is LOADING but listed as REGISTERED"),
        ("failure", FAILURE, "failure"),
        ("pinned", True, "pinned"),
        ("artifact_id", "b", "under the ID"),
        ("last_use_order", 3, "was used at no time"),
    ],
)
def test_the_check_finds_an_entry_that_contradicts_itself(field: str, value: object, why: str) -> None:
    catalog = Catalog(artifact_count_max=1)
    catalog.add(entry("a"))
    setattr(catalog.get("a"), field, value)
    with pytest.raises(Internal, match=why):
        catalog.check()


def test_the_check_finds_readiness_without_a_segment_and_numbers_given_twice() -> None:
    catalog = Catalog(artifact_count_max=2)
    catalog.add(entry("a", number=7))
    catalog.apply("a", Event.ADOPTED)
    with pytest.raises(Internal, match="without a segment"):
        catalog.check()
    catalog.apply("a", Event.EVICTED)
    catalog.add(entry("b", number=7))
    with pytest.raises(Internal, match="adapter number"):
        catalog.check()


@pytest.mark.parametrize(
    ("new", "differs"),
    [
        (SPEC, ""),
        (replace(SPEC, source=Source("file:///models/a")), ""),
        (replace(SPEC, source=Source("file:///models/b")), "source.uri"),
        (replace(SPEC, source=Source("file:///models/a", revision="1")), "source.revision"),
        (replace(SPEC, source=Source("file:///models/a", expected_digest="sha256:0")), "source.expected_digest"),
        (replace(SPEC, base_id="base", kind=ArtifactKind.ADAPTER), "base_id"),
        (replace(SPEC, source=Source("file:///models/c"), base_id="base"), "source.uri, base_id"),
    ],
)
def test_a_conflict_names_the_fields_that_differ(new: ArtifactSpec, differs: str) -> None:
    assert spec_conflict(SPEC, new) == differs
    assert spec_conflict(new, SPEC) == differs


def test_a_kind_contradicts_only_another_kind_that_was_said() -> None:
    base, adapter = replace(SPEC, kind=ArtifactKind.BASE), replace(SPEC, kind=ArtifactKind.ADAPTER)
    assert spec_conflict(base, SPEC) == spec_conflict(SPEC, adapter) == ""
    assert spec_conflict(base, adapter) == "kind"


class CatalogMachine(RuleBasedStateMachine):
    """Random lives of a few artifacts, against a dict of their states."""

    ids = st.sampled_from(["a", "b", "c"])

    @initialize()
    def begin(self) -> None:
        self.catalog = Catalog(artifact_count_max=3)
        self.states: dict[str, ArtifactState] = {}

    @rule(artifact_id=ids)
    def add(self, artifact_id: str) -> None:
        if artifact_id not in self.states:
            self.catalog.add(entry(artifact_id))
            self.states[artifact_id] = ArtifactState.REGISTERED

    @rule(artifact_id=ids, event=st.sampled_from(Event))
    def apply(self, artifact_id: str, event: Event) -> None:
        state = self.states.get(artifact_id)
        if state is None:
            with pytest.raises(ArtifactNotFound):
                self.catalog.apply(artifact_id, event)
        elif event not in TABLE[state]:
            with pytest.raises(IllegalTransition):
                self.catalog.apply(artifact_id, event)
        else:
            after = TABLE[state][event]
            known = self.catalog.get(artifact_id)
            known.segment_id, known.generation = "0" * 32, 1
            self.catalog.apply(artifact_id, event, FAILURE if after is ArtifactState.FAILED else None)
            del self.states[artifact_id]
            if after is not None:
                self.states[artifact_id] = after

    @rule(artifact_id=ids)
    def touch(self, artifact_id: str) -> None:
        known = self.catalog.find(artifact_id)
        if known is not None:
            self.catalog.touch(known, NOW)
            assert known.last_use_order == max(e.last_use_order for e in self.catalog)

    @invariant()
    def same(self) -> None:
        self.catalog.check()
        assert {e.artifact_id: e.state for e in self.catalog} == self.states


TestCatalogMachine = CatalogMachine.TestCase
TestCatalogMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
