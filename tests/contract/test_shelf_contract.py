"""What every Shelf does with artifacts, loads and leases, with a daemon or without: one suite for all."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import warmshelf
from kit.adapters import CONFIG
from kit.models import content_digest, filled, safetensors_bytes, write_shards
from kit.processes import eventually, read_all
from kit.shelf_sources import CONFIG_TEXT, MIB, TENSORS, sized, write
from warmshelf import ArtifactKind, ArtifactState, LoadPhase, errors

pytestmark = pytest.mark.e2e


class TestCatalog:
    def test_a_registered_base_is_known_and_not_loaded(self, shelf: warmshelf.Shelf, base: Path) -> None:
        artifact = shelf.register("org/base", base)
        assert (artifact.artifact_id, artifact.kind, artifact.state) == (
            "org/base",
            ArtifactKind.BASE,
            ArtifactState.REGISTERED,
        )
        assert artifact.generation == 0
        assert artifact.inspection is not None
        assert artifact.inspection.tensor_count == len(TENSORS)
        assert artifact.inspection.tensor_bytes == sum(len(data) for _, _, data in TENSORS.values())
        assert artifact.inspection.file_names == ("model.safetensors",)
        assert artifact.inspection.format_name == "safetensors"
        assert artifact.spec.source.uri == f"file://{base}"
        assert artifact.register_time is not None
        assert shelf.get("org/base") == artifact
        assert shelf.list() == [artifact]

    def test_an_adapter_is_read_from_its_directory(self, shelf: warmshelf.Shelf, adapter: Path) -> None:
        artifact = shelf.register("a", adapter, base="b")
        assert artifact.kind is ArtifactKind.ADAPTER
        assert artifact.inspection is not None
        found = artifact.inspection.adapter
        assert found is not None
        assert (found.rank_max, found.module_names, found.features) == (8, ("layers.0.q_proj",), ("rslora",))
        assert found.adapter_number > 0
        assert found.config_json == (adapter / CONFIG).read_bytes()
        assert [a.artifact_id for a in shelf.list(base="b")] == ["a"]
        assert shelf.list(base="c") == []
        (listed,) = shelf.list()
        assert listed.inspection is not None
        assert listed.inspection.adapter is not None
        assert listed.inspection.adapter.config_json == b""

    def test_a_base_is_no_adapter(self, shelf: warmshelf.Shelf, base: Path) -> None:
        with pytest.raises(errors.InvalidSpec):
            shelf.register("a", base, base="b")
        assert shelf.list() == []

    def test_shards_are_one_artifact(self, shelf: warmshelf.Shelf, models: Path) -> None:
        write_shards(models / "base", [{"a": filled(1)["w"]}, {"b": filled(2)["w"]}])
        shelf.register("s", models / "base")
        with shelf.acquire("s") as lease:
            assert read_all(lease) == {"a": b"\1" * 256, "b": b"\2" * 256}

    def test_an_equal_registration_changes_nothing(self, shelf: warmshelf.Shelf, base: Path) -> None:
        known = shelf.register("a", base)
        assert shelf.register("a", f"file://{base}") == known

    def test_another_source_is_refused_unless_it_replaces(self, shelf: warmshelf.Shelf, models: Path) -> None:
        one, two = (write(models / f"{n}.safetensors", filled(n)) for n in (1, 2))
        shelf.register("a", one)
        lease = shelf.acquire("a")
        with pytest.raises(errors.SpecMismatch):
            shelf.register("a", two)
        assert shelf.register("a", two, replace=True).generation == 2
        assert not lease.superseded
        with shelf.acquire("a") as new:
            assert (new.generation, new["w"][0]) == (2, 2)
            eventually(lambda: lease.superseded, "the old lease is told")
        assert (lease.generation, lease["w"][0]) == (1, 1)
        lease.release()

    def test_changed_bytes_are_refused_unless_they_are_welcome(self, shelf: warmshelf.Shelf, models: Path) -> None:
        path = write(models / "a.safetensors", filled(1))
        shelf.register("a", path)
        shelf.acquire("a").release()
        shelf.evict("a")
        write(path, filled(2, size=512))
        with pytest.raises(errors.SourceChanged):
            shelf.register("a", path)
        with pytest.raises(errors.SourceChanged):
            shelf.acquire("a")
        assert shelf.register("a", path, replace=True).generation == 2
        write(path, filled(3, size=1024))
        assert shelf.register("a", path, follow=True).generation == 3
        shelf.acquire("a").release()
        write(path, filled(4, size=2048))
        *_, last = shelf.load("a")
        assert last.artifact is not None
        assert (last.artifact.generation, last.artifact.follow) == (4, True)

    def test_what_is_not_there_is_not_found(self, shelf: warmshelf.Shelf, models: Path) -> None:
        calls = (shelf.get, shelf.acquire, shelf.evict, shelf.remove, shelf.verify, shelf.capacity)
        for call in (*calls, lambda artifact_id: next(shelf.load(artifact_id))):
            with pytest.raises(errors.ArtifactNotFound):
                call("nobody")
        with pytest.raises(errors.SourceNotFound):
            shelf.register("a", models / "nothing.safetensors")
        assert shelf.leases("nobody") == []

    def test_an_id_outside_the_grammar_is_refused(self, shelf: warmshelf.Shelf, base: Path) -> None:
        for call in (shelf.get, shelf.acquire, shelf.load, shelf.evict, shelf.remove, shelf.verify, shelf.leases):
            with pytest.raises(errors.InvalidId):
                call("../a")
        with pytest.raises(errors.InvalidId):
            shelf.register("a/", base)

    @pytest.mark.parametrize(
        ("damage", "error"),
        [
            (lambda data: data[:-1], errors.SourceTruncated),
            (lambda data: b"\x10" + bytes(7) + b"nonsense" * 9, errors.MalformedArtifact),
            (lambda data: data.replace(b'"U8"', b'"U9"'), errors.UnsupportedDtype),
        ],
        ids=["cut", "nonsense", "unknown dtype"],
    )
    def test_a_bad_file_is_refused_at_registration(
        self, shelf: warmshelf.Shelf, models: Path, damage: Callable[[bytes], bytes], error: type[errors.WarmshelfError]
    ) -> None:
        path = models / "a.safetensors"
        path.write_bytes(damage(safetensors_bytes(filled(1))))
        with pytest.raises(error):
            shelf.register("a", path)
        assert shelf.list() == []

    def test_a_removed_artifact_is_unknown_and_its_holder_keeps_the_bytes(
        self, shelf: warmshelf.Shelf, base: Path
    ) -> None:
        shelf.register("a", base)
        lease = shelf.acquire("a")
        shelf.remove("a")
        with pytest.raises(errors.ArtifactNotFound):
            shelf.get("a")
        assert lease["a.weight"] == TENSORS["a.weight"][2]
        lease.release()


class TestLoad:
    def test_a_load_ends_with_the_artifact_ready(self, shelf: warmshelf.Shelf, base: Path) -> None:
        shelf.register("a", base)
        steps = shelf.load("a")
        assert shelf.get("a").state is ArtifactState.REGISTERED  # nothing before the first item
        *before, last = steps
        assert all(step.artifact is None for step in before)
        assert last.phase is LoadPhase.SEAL
        assert last.artifact is not None
        assert (last.artifact.state, last.artifact.generation) == (ArtifactState.READY, 1)
        assert last.done_bytes == last.total_bytes == last.artifact.size_bytes
        shelf.acquire("a", resident_only=True).release()

    def test_a_detached_load_goes_on_by_itself(self, shelf: warmshelf.Shelf, base: Path) -> None:
        shelf.register("a", base)
        (only,) = shelf.load("a", detach=True)
        assert only.artifact is not None
        assert only.artifact.artifact_id == "a"
        eventually(lambda: shelf.get("a").state is ArtifactState.READY, "it is loaded")
        (again,) = shelf.load("a", detach=True)
        assert again.artifact is not None
        assert again.artifact.state is ArtifactState.READY

    def test_a_load_that_fails_says_so_and_is_tried_again(self, shelf: warmshelf.Shelf, models: Path) -> None:
        path = write(models / "a.safetensors", filled(1))
        shelf.register("a", path)
        shelf.acquire("a").release()
        eventually(lambda: shelf.get("a").digest != "", "its digest is known")
        shelf.evict("a")
        path.rename(models / "elsewhere")
        with pytest.raises(errors.SourceNotFound):
            list(shelf.load("a"))
        artifact = shelf.get("a")
        assert artifact.state is ArtifactState.FAILED
        assert artifact.failure is not None
        assert artifact.failure.reason == "SOURCE_NOT_FOUND"
        (models / "elsewhere").rename(path)
        with shelf.acquire("a") as lease:
            assert lease.generation == 1
        assert shelf.get("a").failure is None

    def test_what_is_larger_than_the_arena_is_refused_for_good(self, shelf: warmshelf.Shelf, models: Path) -> None:
        shelf.register("a", sized(models, "a", 17 * MIB))
        with pytest.raises(errors.LargerThanArena) as caught:
            shelf.acquire("a")
        assert not caught.value.retryable

    def test_without_room_an_acquire_waits_and_then_says_so(self, shelf: warmshelf.Shelf, models: Path) -> None:
        for name in "ab":
            shelf.register(name, sized(models, name, 10 * MIB))
        lease = shelf.acquire("a")
        with pytest.raises(errors.ArenaFull) as caught:
            shelf.acquire("b", timeout=0.5)
        assert caught.value.retryable
        assert shelf.get("a").state is ArtifactState.READY
        timer = threading.Timer(0.2, lease.release)
        timer.start()
        with shelf.acquire("b", timeout=20):
            assert shelf.get("a").state is ArtifactState.REGISTERED  # it was evicted
        timer.join()

    def test_what_is_kept_is_not_evicted(self, shelf: warmshelf.Shelf, models: Path) -> None:
        shelf.register("kept", sized(models, "kept", 10 * MIB), keep=True)
        shelf.register("b", sized(models, "b", 10 * MIB))
        shelf.acquire("kept").release()
        assert shelf.capacity().held_bytes > 10 * MIB
        with pytest.raises(errors.ArenaFull):
            shelf.acquire("b", timeout=0.5)


class TestLeases:
    def test_bytes_out_are_bytes_in(self, shelf: warmshelf.Shelf, base: Path) -> None:
        shelf.register("a", base)
        with shelf.acquire("a") as lease:
            assert {n: (s.dtype, s.shape, bytes(lease[n])) for n, s in lease.specs.items()} == TENSORS
            assert (len(lease), set(lease)) == (len(TENSORS), set(TENSORS))
            assert lease.config_json == CONFIG_TEXT
            assert lease.config == {"model_type": "tiny", "new": 1}
            assert dict(lease.files) == {"config.json": CONFIG_TEXT, "tokenizer.json": b"{}"}
            assert lease.layout.generation == lease.generation == 1
            assert lease.artifact.state is ArtifactState.READY
            assert lease.transport in {"mapped", "streamed"}
            with pytest.raises(KeyError):
                lease["nothing"]

    def test_an_adapter_has_its_config(self, shelf: warmshelf.Shelf, adapter: Path) -> None:
        shelf.register("a", adapter)
        with shelf.acquire("a") as lease:
            assert lease.config_json == (adapter / CONFIG).read_bytes()
            assert lease.config["use_rslora"] is True
            assert sorted(lease.files) == [CONFIG]

    def test_arrays_are_made_of_it(self, shelf: warmshelf.Shelf, base: Path) -> None:
        numpy = importlib.import_module("warmshelf.numpy")
        shelf.register("a", base)
        with shelf.acquire("a") as lease:
            arrays = numpy.arrays(lease)
            assert arrays["a.weight"].shape == (100, 30)
            assert arrays["a.weight"].tobytes() == TENSORS["a.weight"][2]

    def test_what_a_lease_writes_is_its_own(self, shelf: warmshelf.Shelf, base: Path) -> None:
        shelf.register("a", base)
        with shelf.acquire("a") as one, shelf.acquire("a") as other:
            one["a.weight"][0] ^= 255
            assert other["a.weight"] == TENSORS["a.weight"][2]

    def test_a_view_outlives_its_lease_and_the_lease_gives_no_more(self, shelf: warmshelf.Shelf, base: Path) -> None:
        shelf.register("a", base)
        lease = shelf.acquire("a")
        view = lease["a.weight"]
        lease.release()
        lease.release()
        shelf.evict("a")
        assert view == TENSORS["a.weight"][2]
        with pytest.raises(errors.LeaseLost):
            lease["a.weight"]

    def test_nothing_is_loaded_where_only_the_resident_is_wanted(self, shelf: warmshelf.Shelf, base: Path) -> None:
        shelf.register("a", base)
        with pytest.raises(errors.NotResident):
            shelf.acquire("a", resident_only=True)
        assert shelf.get("a").state is ArtifactState.REGISTERED

    def test_a_digest_is_expected_and_compared(self, shelf: warmshelf.Shelf, base: Path) -> None:
        shelf.register("a", base)
        digest = content_digest(TENSORS, CONFIG_TEXT)
        shelf.acquire("a", expected_digest=digest).release()
        assert shelf.get("a").digest == digest
        with pytest.raises(errors.DigestMismatch):
            shelf.acquire("a", expected_digest="blake3:" + "0" * 64)
        with pytest.raises(errors.InvalidSpec):
            shelf.acquire("a", expected_digest="md5:0")
        assert shelf.leases() == []

    def test_a_digest_of_registration_is_compared_at_the_load(self, shelf: warmshelf.Shelf, base: Path) -> None:
        shelf.register("right", base, digest=content_digest(TENSORS, CONFIG_TEXT))
        shelf.acquire("right").release()
        shelf.register("wrong", base, digest="blake3:" + "0" * 64)
        with pytest.raises(errors.DigestMismatch):
            shelf.acquire("wrong")
        assert shelf.get("wrong").state is ArtifactState.FAILED

    def test_a_worker_gets_no_adapter_that_it_would_serve_wrongly(self, shelf: warmshelf.Shelf, adapter: Path) -> None:
        """B07."""
        shelf.register("a", adapter)
        shelf.acquire("a", rank_max=8, features=["rslora"]).release()
        shelf.acquire("a").release()
        with pytest.raises(errors.RankTooLarge):
            shelf.acquire("a", rank_max=4)
        with pytest.raises(errors.FeatureUnsupported, match="rslora"):
            shelf.acquire("a", features=["dora"])
        with pytest.raises(errors.FeatureUnsupported):
            shelf.acquire("a", features=[])

    def test_leases_are_listed_with_their_holders(self, shelf: warmshelf.Shelf, base: Path) -> None:
        for name in "ab":
            shelf.register(name, base)
        with shelf.acquire("a"), shelf.acquire("b"), shelf.acquire("a"):
            listed = shelf.leases()
            assert [(row.artifact_id, row.generation) for row in listed] == [("a", 1), ("b", 1), ("a", 1)]
            assert {(row.holder, row.lease_id) for row in listed} == {("a worker", "")}
            assert all(row.acquire_time is not None for row in listed)
            assert len(shelf.leases("a")) == 2
        assert shelf.leases() == []

    def test_an_eviction_waits_for_no_lease_unless_it_drains(self, shelf: warmshelf.Shelf, base: Path) -> None:
        shelf.register("a", base)
        lease = shelf.acquire("a")
        with pytest.raises(errors.Leased) as caught:
            shelf.evict("a")
        assert caught.value.details["lease_count"] == 1
        assert shelf.evict("a", drain=True).state is ArtifactState.EVICTING
        with pytest.raises(errors.DeadlineExceeded):
            shelf.acquire("a", timeout=0.5)
        with pytest.raises(errors.NotResident):
            shelf.acquire("a", resident_only=True)
        lease.release()
        eventually(lambda: shelf.get("a").state is ArtifactState.REGISTERED, "it has drained")
        assert shelf.evict("a").state is ArtifactState.REGISTERED
        with shelf.acquire("a") as again:
            assert again.generation == 1
