"""Adapters through the daemon: registered, compared with their base, refused where served wrongly otherwise."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import warmshelf
from kit.adapters import CONFIG, adapter_files, pair
from kit.models import safetensors_bytes
from kit.processes import Daemon, eventually, read_all
from warmshelf import errors

LAYERS = ["model.layers.0.q_proj", "model.layers.1.q_proj"]


def write(directory: Path, files: dict[str, bytes]) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return f"file://{directory}"


def base_file(path: Path, modules: list[str], hidden: int = 8) -> str:
    shape = (hidden, hidden)
    data = bytes(2 * hidden * hidden)
    path.write_bytes(safetensors_bytes({f"{m}.weight": ("BF16", shape, data) for m in modules}))
    return f"file://{path}"


def lora(modules: list[str], **sizes: int) -> dict[str, tuple[int, ...]]:
    return {name: shape for module in modules for name, shape in pair(module, **sizes).items()}


def test_an_adapter_is_registered_once_and_acquired_by_its_id_with_its_config(running: Daemon, models: Path) -> None:
    files = adapter_files(lora(LAYERS), future_field={"x": 1}, base_model_name_or_path=None)
    source = write(models / "a", files)
    with running.connect() as shelf:
        shelf.register("base", base_file(models / "b.safetensors", LAYERS))
        artifact = shelf.register("acme/a", source, base="base")
        assert artifact.kind is warmshelf.ArtifactKind.ADAPTER
        adapter = artifact.inspection.adapter  # type: ignore[union-attr]
        assert adapter is not None
        assert (adapter.rank_max, adapter.base_check.value, adapter.module_names) == (4, "matched", tuple(LAYERS))
        assert "unknown_field:future_field" in adapter.features
        assert adapter.config_json == files[CONFIG]
        for _ in range(2):
            with shelf.acquire("acme/a", timeout=20) as lease:
                assert lease.config_json == files[CONFIG]
                assert lease.config["future_field"] == {"x": 1}
                assert len(read_all(lease)) == 4
            assert shelf.get("acme/a").digest.startswith("blake3:")
            shelf.evict("acme/a")
        assert [a.artifact_id for a in shelf.list(base="base")] == ["acme/a"]


def test_numbers_are_unique_positive_and_the_same_after_a_restart(daemon: Daemon, models: Path) -> None:
    """B03: the daemon hands out the integers that engines want."""
    source = write(models / "a", adapter_files(lora(LAYERS)))

    def numbers(shelf: warmshelf.Shelf) -> dict[str, int]:
        found = {a.artifact_id: shelf.get(a.artifact_id).inspection.adapter for a in shelf.list()}  # type: ignore[union-attr]
        return {name: adapter.adapter_number for name, adapter in found.items() if adapter}

    daemon.start()
    with daemon.connect() as shelf:
        for i in range(20):
            shelf.register(f"a{i}", source)
        before = numbers(shelf)
        assert len(set(before.values())) == 20
        assert all(0 < number < 2**31 for number in before.values())
    daemon.kill()
    daemon.start()
    with daemon.connect() as shelf:
        assert numbers(shelf) == before
        shelf.register("new", source)
        assert numbers(shelf)["new"] not in before.values()


def test_adapters_that_are_registered_at_once_never_share_a_number(shared: Daemon, models: Path) -> None:
    """B03: from eight threads, over IDs whose short hashes would meet; and a number is not given again while known."""
    source = write(models / "a", adapter_files(lora(LAYERS)))
    ids = [f"tenant-{i % 8}/lora-{i}" for i in range(240)]

    def number(artifact: warmshelf.Artifact) -> int:
        adapter = artifact.inspection.adapter  # type: ignore[union-attr]
        assert adapter is not None
        return adapter.adapter_number

    with shared.connect() as shelf, ThreadPoolExecutor(8) as threads:
        numbers = list(threads.map(lambda name: number(shelf.register(name, source)), ids))
        assert len(set(numbers)) == len(ids)
        assert all(0 < each < 2**31 for each in numbers)
        for name in ids[:10]:
            shelf.remove(name)
        again = list(threads.map(lambda name: number(shelf.register(name, source)), ids[:10]))
        assert not {*again} & {*numbers[10:]}
        assert [number(shelf.get(name)) for name in ids[10:]] == numbers[10:]


def test_an_adapter_for_another_base_is_refused_naming_module_expected_and_got(running: Daemon, models: Path) -> None:
    """B17: a hidden-16 adapter on a hidden-8 base; the base's name in the config is only a hint."""
    with running.connect() as shelf:
        shelf.register("base", base_file(models / "b.safetensors", LAYERS, hidden=8))
        for i, name in enumerate((None, "/home/trainer/base", "org/right-name")):
            files = adapter_files(lora(LAYERS, columns=16, rows=16), base_model_name_or_path=name)
            with pytest.raises(errors.BaseMismatch) as caught:
                shelf.register(f"a{i}", write(models / f"a{i}", files), base="base")
            text = str(caught.value)
            assert LAYERS[0] in text
            assert "16" in text
            assert "8" in text
        assert [a.artifact_id for a in shelf.list()] == ["base"]


def test_an_adapter_that_matches_nothing_or_half_is_told_apart(running: Daemon, models: Path) -> None:
    """B15: zero matches are refused, partial ones listed, an unknown base is unchecked and never ok."""
    prefixed = [f"language_model.{name}" for name in LAYERS]
    with running.connect() as shelf:
        shelf.register("base", base_file(models / "b.safetensors", prefixed))
        with pytest.raises(errors.BaseMismatch):
            shelf.register("none", write(models / "none", adapter_files(lora(LAYERS))), base="base")
        half = write(models / "half", adapter_files(lora([prefixed[0], LAYERS[1]])))
        adapter = shelf.register("half", half, base="base").inspection.adapter  # type: ignore[union-attr]
        assert adapter is not None
        assert (adapter.base_check.value, adapter.unmatched_module_names) == ("partial", (LAYERS[1],))
        same = write(models / "same", adapter_files(lora(prefixed)))
        for name, base in (("nobody", None), ("later", "not/registered/yet")):
            adapter = shelf.register(name, same, base=base).inspection.adapter  # type: ignore[union-attr]
            assert adapter is not None
            assert adapter.base_check.value == "unchecked"


def test_an_adapter_is_compared_when_its_base_comes(running: Daemon, models: Path) -> None:
    with running.connect() as shelf:
        shelf.register("good", write(models / "good", adapter_files(lora(LAYERS))), base="base")
        bad = write(models / "bad", adapter_files(lora(LAYERS, columns=16, rows=16)))
        shelf.register("bad", bad, base="base")
        shelf.acquire("bad", timeout=20).release()  # nothing is known against it yet
        shelf.register("base", base_file(models / "b.safetensors", LAYERS))
        eventually(lambda: _check(shelf, "good") == "matched", "good was compared")
        eventually(lambda: shelf.get("bad").state is warmshelf.ArtifactState.FAILED, "bad was withdrawn")
        with pytest.raises(errors.BaseMismatch):
            shelf.acquire("bad", timeout=20)
        shelf.acquire("good", timeout=20).release()


def _check(shelf: warmshelf.Shelf, artifact_id: str) -> str:
    adapter = shelf.get(artifact_id).inspection.adapter  # type: ignore[union-attr]
    return adapter.base_check.value if adapter else ""


def test_a_rank_or_feature_that_the_worker_cannot_serve_is_refused_before_a_byte_moves(
    running: Daemon, models: Path
) -> None:
    """B08, B07: both numbers, the feature's name, and nothing is loaded."""
    shapes = lora([LAYERS[0]]) | lora([LAYERS[1]], rank=16)
    files = adapter_files(shapes, rank_pattern={LAYERS[1]: 16}, use_rslora=True)
    with running.connect() as shelf:
        shelf.register("a", write(models / "a", files))
        with pytest.raises(errors.RankTooLarge) as rank:
            shelf.acquire("a", timeout=20, rank_max=8)
        assert (rank.value.details["adapter_rank_max"], rank.value.details["rank_max"]) == (16, 8)
        with pytest.raises(errors.FeatureUnsupported, match="rslora"):
            shelf.acquire("a", timeout=20, features=["rank_pattern"])
        assert running.segments() == []
        shelf.acquire("a", timeout=20, rank_max=16, features=["rank_pattern", "rslora"]).release()


BREAK: dict[str, Callable[[dict[str, bytes]], object]] = {
    "MALFORMED_ARTIFACT": lambda files: files.update({CONFIG: b"{not json"}),
    "SOURCE_NOT_FOUND": lambda files: files.pop("adapter_model.safetensors"),
    "CONFIG_MISSING": lambda files: files.pop(CONFIG),
}


@pytest.mark.parametrize("reason", sorted(BREAK))
def test_a_broken_adapter_has_its_own_error_and_can_be_registered_again(
    running: Daemon, models: Path, reason: str
) -> None:
    """B21: missing config, missing weights and a config that is none are different errors."""
    files = adapter_files(lora(LAYERS))
    broken = dict(files)
    BREAK[reason](broken)
    with running.connect() as shelf:
        with pytest.raises(errors.WarmshelfError) as caught:
            shelf.register("a", write(models / "a", broken))
        assert caught.value.reason == reason
        assert list(shelf.list()) == []
        shelf.register("a", write(models / "a", files))
        shelf.acquire("a", timeout=20).release()


def test_a_base_said_of_something_else_is_an_invalid_spec(running: Daemon, models: Path) -> None:
    with running.connect() as shelf:
        with pytest.raises(errors.InvalidSpec):
            shelf.register("b", base_file(models / "b.safetensors", LAYERS), base="other")
        shelf.register("a", write(models / "a", adapter_files(lora(LAYERS))))
        with pytest.raises(errors.InvalidSpec, match="is an adapter"):
            shelf.register("a2", write(models / "a2", adapter_files(lora(LAYERS))), base="a")


def test_more_adapters_than_fit_are_all_served_by_their_ids_in_any_order(daemon: Daemon, models: Path) -> None:
    """B37: evicted is not unknown; a vanished source is an error of its own, and the others go on."""
    daemon.start("--budget", "64KiB")
    with daemon.connect() as shelf:
        for i in range(8):
            shapes = lora([f"model.layers.{n}.q_proj" for n in range(i + 1)], rank=8, columns=32, rows=32)
            shelf.register(f"a{i}", write(models / f"a{i}", adapter_files(shapes, r=8)))
        for i in (3, 1, 7, 0, 2, 6, 4, 5, 7, 0, 3, 1):
            with shelf.acquire(f"a{i}", timeout=20) as lease:
                assert len(lease) == 2 * (i + 1)
        for i in range(8):
            shelf.evict(f"a{i}")
        (models / "a3" / "adapter_model.safetensors").unlink()
        with pytest.raises(errors.SourceNotFound):
            shelf.acquire("a3", timeout=20)
        shelf.acquire("a4", timeout=20).release()


def test_an_adapter_whose_base_is_removed_is_unchecked_until_a_base_of_that_name_comes(
    daemon: Daemon, models: Path
) -> None:
    """B15: ``matched`` is said of a base that is known, also over a restart; the adapter is served all the while."""
    daemon.start()
    base = base_file(models / "b.safetensors", LAYERS)
    grown = {"emb.weight": (10, 8), **lora(LAYERS)}
    with daemon.connect() as shelf:
        shelf.register("base", base)
        for name in ("a", "b"):
            shelf.register(name, write(models / name, adapter_files(lora(LAYERS))), base="base")
        shelf.register("half", write(models / "half", adapter_files(grown)), base="base")
        with shelf.acquire("a", timeout=20) as lease:
            shelf.remove("base")
            assert [_check(shelf, name) for name in ("a", "b", "half")] == ["unchecked"] * 3
            assert shelf.get("half").inspection.adapter.unmatched_module_names == ()  # type: ignore[union-attr]
            assert len(read_all(lease)) == 4
        shelf.acquire("b", timeout=20).release()
    daemon.kill()
    daemon.start()
    with daemon.connect() as shelf:
        assert [_check(shelf, name) for name in ("a", "b", "half")] == ["unchecked"] * 3
        shelf.register("base", base)
        eventually(lambda: _check(shelf, "a") == _check(shelf, "b") == "matched", "both were compared again")
        shelf.remove("base")
        shelf.register("base", base_file(models / "c.safetensors", LAYERS, hidden=16))
        eventually(lambda: shelf.get("a").state is warmshelf.ArtifactState.FAILED, "a was withdrawn")
        with pytest.raises(errors.BaseMismatch):
            shelf.acquire("b", timeout=20)


def test_a_daemon_that_dies_while_a_base_is_removed_comes_back_with_unchecked_adapters(
    daemon: Daemon, models: Path
) -> None:
    """B15, B39."""
    daemon.start(failpoints="remove.recorded=kill")
    with daemon.connect() as shelf:
        shelf.register("base", base_file(models / "b.safetensors", LAYERS))
        shelf.register("a", write(models / "a", adapter_files(lora(LAYERS))), base="base")
        assert _check(shelf, "a") == "matched"
    with daemon.connect(timeout=3) as shelf, pytest.raises(errors.WarmshelfError):
        shelf.remove("base")
    daemon.wait()
    daemon.start()
    with daemon.connect() as shelf:
        assert [a.artifact_id for a in shelf.list()] == ["a"]
        assert _check(shelf, "a") == "unchecked"
