"""What every Shelf tells and does for operators, with a daemon or without: one suite for all."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import warmshelf
from kit.adapters import CONFIG, WEIGHTS
from kit.processes import eventually, read_all
from kit.shelf_sources import MIB, TENSORS, sized
from warmshelf import ArtifactKind, ArtifactState, Change, ChangeKind, errors

pytestmark = pytest.mark.e2e


def told(change: Change) -> tuple[str, str]:
    return change.kind.value, change.artifact_id


def until_ready(watch: warmshelf.Watch, artifact_id: str) -> list[Change]:
    seen = []
    for change in watch:
        seen.append(change)
        if change.artifact_id == artifact_id and change.artifact and change.artifact.state is ArtifactState.READY:
            return seen
    pytest.fail("the watch ended")


class TestOperating:
    def test_capacity_counts_what_is_held_and_what_fits(self, shelf: warmshelf.Shelf, models: Path) -> None:
        shelf.register("a", sized(models, "a", 2 * MIB))
        empty = shelf.capacity("a")
        assert (empty.budget_bytes, empty.resident_bytes, empty.fit_free_count) == (16 * MIB, 0, 7)
        lease = shelf.acquire("a")
        size = shelf.get("a").size_bytes
        held = shelf.capacity("a")
        assert (held.resident_bytes, held.held_bytes, held.free_bytes) == (size, size, 16 * MIB - size)
        assert (held.fit_free_count, held.fit_evicting_count) == (6, 6)
        shelf.remove("a")
        gone = shelf.capacity()
        assert (gone.resident_bytes, gone.held_bytes, gone.fit_free_count) == (size, size, 0)
        lease.release()
        del lease
        eventually(lambda: shelf.capacity().free_bytes == 16 * MIB, "the bytes are given back")

    def test_a_smaller_budget_makes_the_least_recently_used_leave_and_never_what_is_leased(
        self, shelf: warmshelf.Shelf, models: Path
    ) -> None:
        for name, size in (("a", 4), ("b", 3), ("c", 2), ("d", 8)):
            shelf.register(name, sized(models, name, size * MIB))
        lease = shelf.acquire("a")
        shelf.acquire("b").release()
        shelf.acquire("c").release()
        for size in (0, -1, 1 << 63):
            with pytest.raises(errors.InvalidRequest):
                shelf.set_budget(size)
        with pytest.raises(errors.ArenaFull) as caught:
            shelf.set_budget(4 * MIB, timeout=0.5)
        assert int(caught.value.details["budget_bytes"]) == shelf.capacity().budget_bytes == 16 * MIB
        assert [a.state.value for a in shelf.list()] == ["ready", "ready", "ready", "registered"], "none left in vain"
        try:
            assert shelf.set_budget(7 * MIB).budget_bytes == shelf.capabilities().arena_size_bytes == 7 * MIB
            assert [a.state.value for a in shelf.list()] == ["ready", "registered", "ready", "registered"]
            with pytest.raises(errors.LargerThanArena):
                shelf.acquire("d")
        finally:
            shelf.set_budget(16 * MIB)
        shelf.acquire("b").release()
        assert shelf.get("c").state is ArtifactState.READY
        lease.release()

    def test_verify_counts_the_bytes_of_what_is_resident(self, shelf: warmshelf.Shelf, models: Path) -> None:
        shelf.register("a", sized(models, "a", MIB))
        with pytest.raises(errors.NotResident):
            shelf.verify("a")
        shelf.acquire("a").release()
        assert MIB <= shelf.verify("a") < 2 * MIB

    def test_it_is_told_where_an_artifact_is_resident(self, shelf: warmshelf.Shelf, models: Path) -> None:
        for artifact_id in ("a", "b", "c"):
            shelf.register(artifact_id, sized(models, artifact_id, MIB), keep=artifact_id == "a")
        assert shelf.where("a") == []
        for artifact_id in ("a", "b"):
            shelf.acquire(artifact_id).release()
        found = shelf.list_residency()
        assert [(one.artifact_id, one.keep_resident) for one in found.residents] == [("a", True), ("b", False)]
        assert ([one.node for one in found.residents], found.partial) == ([found.nodes[0]] * 2, False)
        (only,) = shelf.where("b")
        assert (only.artifact_id, only.size_bytes) == ("b", shelf.get("b").size_bytes)
        with pytest.raises(errors.InvalidId):
            shelf.where("no id")
        with pytest.raises(errors.ArtifactNotFound):
            shelf.where("unknown")

    def test_an_alias_is_forgotten_by_who_knows_what_it_means(self, shelf: warmshelf.Shelf, models: Path) -> None:
        shelf.register("a", sized(models, "a", MIB))
        shelf.set_alias("prod", "a")
        with pytest.raises(errors.AliasMoved):
            shelf.remove_alias("prod", expect="b")
        shelf.remove_alias("prod", expect="a")
        assert shelf.aliases() == []
        with pytest.raises(errors.ArtifactNotFound):
            shelf.remove_alias("prod")
        with pytest.raises(errors.ArtifactNotFound):
            shelf.acquire("prod")
        shelf.set_alias("prod", "a")
        shelf.remove_alias("prod")  # whatever it means

    def test_an_export_is_a_source_with_the_same_content(
        self, shelf: warmshelf.Shelf, base: Path, models: Path
    ) -> None:
        shelf.register("a", base)
        assert shelf.export("a", models / "out").generation == 1
        shelf.register("again", models / "out")
        with shelf.acquire("a") as one, shelf.acquire("again") as other:
            assert read_all(one) == read_all(other)
            assert one.files == other.files
        assert shelf.leases() == []

    def test_an_exported_adapter_is_an_adapter(self, shelf: warmshelf.Shelf, adapter: Path, models: Path) -> None:
        shelf.register("a", adapter)
        shelf.export("a", models / "out")
        assert sorted(path.name for path in (models / "out").iterdir()) == [CONFIG, WEIGHTS]
        assert shelf.register("again", models / "out").kind is ArtifactKind.ADAPTER

    def test_capabilities_say_what_can_be_read(self, shelf: warmshelf.Shelf) -> None:
        found = shelf.capabilities()
        assert found.arena_size_bytes == 16 * MIB
        assert "safetensors" in found.format_names
        assert "file" in found.source_schemes

    def test_a_closed_shelf_holds_nothing_and_refuses(self, shelf: warmshelf.Shelf, base: Path) -> None:
        shelf.register("a", base)
        lease = shelf.acquire("a")
        shelf.close()
        shelf.close()
        assert lease["a.weight"] == TENSORS["a.weight"][2]
        lease.release()
        for call in (shelf.list, shelf.leases, shelf.capacity, lambda: next(shelf.watch())):
            with pytest.raises(errors.InvalidRequest, match="closed"):
                call()


class TestWatch:
    def test_a_watch_begins_with_everything_and_goes_on(self, shelf: warmshelf.Shelf, base: Path) -> None:
        for name in "ba":
            shelf.register(name, base)
        with shelf.watch() as watch:
            first = [next(watch) for _ in range(3)]
            assert [told(change) for change in first] == [("changed", "a"), ("changed", "b"), ("complete", "")]
            assert first[0].artifact == shelf.get("a")
            assert [change.sequence for change in first[:2]] == [0, 0]
            shelf.acquire("a").release()
            seen = until_ready(watch, "a")
            shelf.remove("b")
            seen.append(next(watch))
            while seen[-1].kind is not ChangeKind.REMOVED:  # a digest may have been learnt in between
                seen.append(next(watch))
            assert told(seen[-1]) == ("removed", "b")
        numbers = [change.sequence for change in seen]
        assert numbers == list(range(first[-1].sequence + 1, first[-1].sequence + 1 + len(numbers)))
        with shelf.watch(after=numbers[0]) as again:
            assert [next(again).sequence for _ in numbers[1:]] == numbers[1:]

    def test_a_number_of_nobody_starts_over(self, shelf: warmshelf.Shelf, base: Path) -> None:
        shelf.register("a", base)
        with shelf.watch(after=2**62) as watch:
            seen = [told(next(watch)) for _ in range(3)]
        assert seen == [("started_over", ""), ("changed", "a"), ("complete", "")]

    def test_a_negative_number_is_refused(self, shelf: warmshelf.Shelf) -> None:
        for after in (-1, 2**63):
            with pytest.raises(errors.InvalidRequest):
                shelf.watch(after=after)

    def test_closing_ends_a_watch_that_waits(self, shelf: warmshelf.Shelf) -> None:
        watch = shelf.watch()
        assert next(watch).kind is ChangeKind.COMPLETE
        ended = threading.Thread(target=lambda: list(watch))
        ended.start()
        watch.close()
        watch.close()
        ended.join(10)
        assert not ended.is_alive()
        with pytest.raises(StopIteration):
            next(watch)

    def test_closing_the_shelf_ends_it_too(self, shelf: warmshelf.Shelf) -> None:
        watch = shelf.watch()
        assert next(watch).kind is ChangeKind.COMPLETE
        raised: list[BaseException] = []

        def read() -> None:
            try:
                next(watch)
            except errors.WarmshelfError as error:
                raised.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        shelf.close()
        thread.join(10)
        assert [type(error) for error in raised] == [errors.InvalidRequest]
