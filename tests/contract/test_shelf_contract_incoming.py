"""How artifacts come in by pushing and in bulk, with a daemon or without: one suite for all."""

from __future__ import annotations

from pathlib import Path

import pytest

import warmshelf
from kit.adapters import CONFIG, config_bytes, pair
from kit.models import content_digest, filled
from kit.processes import read_all
from kit.shelf_sources import CONFIG_TEXT, TENSORS, write
from warmshelf import ArtifactKind, ArtifactState, NewArtifact, errors

pytestmark = pytest.mark.e2e

ADAPTER = {name: ("BF16", shape, bytes(2 * shape[0] * shape[1])) for name, shape in pair("q_proj").items()}


class TestPush:
    def test_pushed_tensors_are_an_artifact(self, shelf: warmshelf.Shelf) -> None:
        pushed = shelf.push("a", tensors=TENSORS, config=CONFIG_TEXT)
        assert (pushed.kind, pushed.state, pushed.generation) == (ArtifactKind.BASE, ArtifactState.REGISTERED, 0)
        assert pushed.digest == content_digest(TENSORS, CONFIG_TEXT)
        assert pushed.spec.source.uri.startswith("spool://")
        assert shelf.get("a") == pushed
        for _ in range(2):
            with shelf.acquire("a") as lease:
                assert read_all(lease) == {name: data for name, (_, _, data) in TENSORS.items()}
                assert lease.config_json == CONFIG_TEXT
            shelf.evict("a")

    def test_pushed_files_are_an_artifact(self, shelf: warmshelf.Shelf, base: Path, adapter: Path) -> None:
        shelf.push("base", path=base)
        pushed = shelf.push("a", path=adapter)
        assert pushed.kind is ArtifactKind.ADAPTER
        with shelf.acquire("a") as lease:
            assert lease.config_json == (adapter / CONFIG).read_bytes()
        with shelf.acquire("base") as lease:
            assert dict(lease.files) == {"config.json": CONFIG_TEXT, "tokenizer.json": b"{}"}

    def test_a_config_makes_an_adapter(self, shelf: warmshelf.Shelf) -> None:
        assert shelf.push("a", tensors=ADAPTER, config=config_bytes()).kind is ArtifactKind.ADAPTER
        pushed = shelf.push("b", tensors=ADAPTER, config={"peft_type": "LORA", "r": 4, "lora_alpha": 8}, base="x")
        assert (pushed.spec.base_id, pushed.kind) == ("x", ArtifactKind.ADAPTER)
        with pytest.raises(errors.ConfigMissing):
            shelf.push("c", tensors=ADAPTER, base="x")

    def test_one_id_has_one_content(self, shelf: warmshelf.Shelf, base: Path) -> None:
        first = shelf.push("a", tensors=filled(1))
        assert shelf.push("a", tensors=filled(1)).spec == first.spec
        with pytest.raises(errors.SpecMismatch):
            shelf.push("a", tensors=filled(2))
        with shelf.acquire("a") as lease:
            assert shelf.push("a", tensors=filled(2), replace=True, keep=True).generation == 2
            assert bytes(lease["w"]) == filled(1)["w"][2]
        assert shelf.get("a").keep_resident
        shelf.register("b", base)
        with pytest.raises(errors.SpecMismatch):
            shelf.push("b", path=base)
        with pytest.raises(errors.SpecMismatch):
            shelf.register("a", base)

    def test_what_cannot_be_pushed_is_refused(self, shelf: warmshelf.Shelf, base: Path) -> None:
        for wrong in ({}, {"path": base, "tensors": TENSORS}, {"path": base, "config": b"{}"}, {"tensors": {}}):
            with pytest.raises(errors.InvalidRequest):
                shelf.push("a", **wrong)  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidId):
            shelf.push("../a", tensors=TENSORS)
        assert shelf.list() == []


class TestRegisterMany:
    def test_each_is_told_how_it_went(self, shelf: warmshelf.Shelf, base: Path) -> None:
        outcomes = shelf.register_many(
            [NewArtifact("a", str(base)), NewArtifact("b", "/no/where"), NewArtifact("..", "")]
        )
        assert [one.artifact_id for one in outcomes] == ["a", "b", ".."]
        assert [one.error is None for one in outcomes] == [True, False, False]
        assert shelf.get("a").kind is ArtifactKind.BASE

    def test_a_deferred_source_is_looked_at_by_the_first_load(self, shelf: warmshelf.Shelf, models: Path) -> None:
        path = models / "a.safetensors"
        assert shelf.register_many([NewArtifact("a", str(path))], defer=True)[0].error is None
        known = shelf.get("a")
        assert (known.inspection, known.kind, known.size_bytes) == (None, ArtifactKind.UNKNOWN, 0)
        with pytest.raises(errors.SourceNotFound):
            shelf.acquire("a")
        write(path, filled(1))
        assert shelf.register("a", path, defer=True).inspection is None
        with shelf.acquire("a") as lease:
            assert read_all(lease) == {"w": filled(1)["w"][2]}
        assert shelf.get("a").inspection is not None
        assert shelf.register("b", path, base="a", defer=True).kind is ArtifactKind.ADAPTER
        with pytest.raises(errors.InvalidSpec):
            shelf.acquire("b")
