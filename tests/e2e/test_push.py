"""What is pushed: bytes out are bytes in, through eviction, restart and removal."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

import warmshelf
from kit.adapters import CONFIG, WEIGHTS, adapter_files, pair
from kit.models import Tensor, content_digest, filled, pattern, write_shards
from kit.processes import Daemon, eventually, read_all
from kit.pushes import kept, spool_of, unfinished
from kit.shelf_sources import CONFIG_TEXT, TENSORS
from warmshelf import ArtifactKind, ArtifactState, errors

pytestmark = pytest.mark.e2e

ODD: dict[str, Tensor] = {
    **TENSORS,
    "fp4": ("F4", (2, 6), pattern(5, 6)),
    "e5m2": ("F8_E5M2", (5,), pattern(6, 5)),
    "i64": ("I64", (3,), pattern(7, 24)),
    "c64": ("C64", (2,), pattern(8, 16)),
}


def by_name(tensors: dict[str, Tensor]) -> dict[str, bytes]:
    return {name: data for name, (_, _, data) in tensors.items()}


def test_tensors_of_every_kind_come_out_as_they_went_in_also_after_eviction_and_restart(daemon: Daemon) -> None:
    """B20: bits are kept whatever the dtype; B39: an ID survives a restart."""
    daemon.start()
    with daemon.connect() as shelf:
        pushed = shelf.push("a", tensors=ODD, config=CONFIG_TEXT)
        assert (pushed.kind, pushed.state) == (ArtifactKind.BASE, ArtifactState.REGISTERED)
        assert pushed.digest == content_digest(ODD, CONFIG_TEXT)
        with shelf.acquire("a") as lease:
            assert {n: (s.dtype, s.shape, bytes(lease[n])) for n, s in lease.specs.items()} == ODD
            assert lease.config_json == CONFIG_TEXT
        shelf.evict("a")
        assert daemon.segments() == []
        with shelf.acquire("a") as lease:
            assert read_all(lease) == by_name(ODD)
        shelf.evict("a")
    daemon.kill()
    daemon.start()
    with daemon.connect() as shelf, shelf.acquire("a") as lease:
        assert read_all(lease) == by_name(ODD)
        assert lease.generation == 1


def test_a_directory_is_pushed_as_it_would_be_registered(shared: Daemon, models: Path, tmp_path: Path) -> None:
    """The files that count and no others: the index decides, pickles and strangers stay at home."""
    home = tmp_path / "home"
    write_shards(home, [filled(1), {"v": filled(2)["w"]}])
    (home / "config.json").write_bytes(CONFIG_TEXT)
    (home / "consolidated.safetensors").write_bytes(b"not listed")
    (home / "pytorch_model.bin").write_bytes(b"pickle")
    with shared.connect() as shelf:
        artifact = shelf.push("a", path=home)
        (directory,) = kept(shared)
        files = {path.name for path in (spool_of(shared) / "kept" / directory / "files").iterdir()}
        assert files == {path.name for path in home.iterdir()} - {"consolidated.safetensors", "pytorch_model.bin"}
        with shelf.acquire("a") as lease:
            assert read_all(lease) == {"w": filled(1)["w"][2], "v": filled(2)["w"][2]}
        assert artifact.spec.source.uri == f"spool://{directory}"


def test_an_adapter_is_compared_with_its_base_and_keeps_its_config(shared: Daemon, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for name, data in adapter_files(pair("m.q_proj"), future_field=1).items():
        (home / name).write_bytes(data)
    with shared.connect() as shelf:
        shelf.push("base", tensors={"m.q_proj.weight": ("BF16", (8, 8), bytes(128))})
        adapter = shelf.push("a", path=home, base="base")
        assert (adapter.kind, adapter.spec.base_id) == (ArtifactKind.ADAPTER, "base")
        assert adapter.inspection is not None
        assert adapter.inspection.adapter is not None
        assert adapter.inspection.adapter.base_check is warmshelf.BaseCheck.MATCHED
        with shelf.acquire("a") as lease:
            assert lease.config_json == (home / CONFIG).read_bytes()
        (home / WEIGHTS).write_bytes(adapter_files(pair("m.q_proj", columns=16))[WEIGHTS])
        with pytest.raises(errors.BaseMismatch):
            shelf.push("b", path=home, base="base")
        assert [artifact.artifact_id for artifact in shelf.list()] == ["a", "base"]
    assert len(kept(shared)) == 2


def test_the_same_again_keeps_one_copy_and_anything_else_is_refused_unless_it_replaces(shared: Daemon) -> None:
    with shared.connect() as shelf:
        first = shelf.push("a", tensors=filled(1))
        assert shelf.push("a", tensors=filled(1)) == first
        assert len(kept(shared)) == 1
        with shelf.acquire("a") as lease:
            with pytest.raises(errors.SpecMismatch):
                shelf.push("a", tensors=filled(2))
            assert len(kept(shared)) == 1
            assert shelf.push("a", tensors=filled(2), replace=True).generation == 2
            assert bytes(lease["w"]) == filled(1)["w"][2]
        with shelf.acquire("a") as lease:
            assert bytes(lease["w"]) == filled(2)["w"][2]
    assert len(kept(shared)) == 1
    assert unfinished(shared) == []


def test_removing_and_registering_elsewhere_free_the_spool(shared: Daemon, models: Path) -> None:
    (models / "b").mkdir()
    write_shards(models / "b", [filled(3)])
    with shared.connect() as shelf:
        for name in "ab":
            shelf.push(name, tensors=filled(1))
        shelf.remove("a")
        assert len(kept(shared)) == 1
        with pytest.raises(errors.SpecMismatch):
            shelf.register("b", models / "b")
        shelf.register("b", models / "b", replace=True)
        assert kept(shared) == []
        with pytest.raises(errors.SpecMismatch):  # before a byte is sent
            shelf.push("b", tensors=filled(3))


def test_what_was_pushed_is_reached_by_its_id_alone(running: Daemon) -> None:
    with running.connect() as shelf:
        uri = shelf.push("a", tensors=filled(1)).spec.source.uri
        for artifact_id in ("a", "b"):
            with pytest.raises(errors.SourceNotAllowed):
                shelf.register(artifact_id, uri)
        with pytest.raises(errors.SourceNotAllowed):
            shelf.register("c", spool_of(running) / "kept")
        assert [artifact.artifact_id for artifact in shelf.list()] == ["a"]


def test_of_two_clients_at_once_one_wins_or_both_have_pushed_the_same(shared: Daemon) -> None:
    """C3: one ID, one content, however many push it."""
    outcomes: list[str] = []
    gate = threading.Barrier(4)

    def push(artifact_id: str, value: int) -> None:
        with shared.connect() as shelf:
            gate.wait(20)
            try:
                shelf.push(artifact_id, tensors=filled(value, size=1 << 20))
                outcomes.append(f"{artifact_id} {value}")
            except errors.SpecMismatch:
                outcomes.append(f"{artifact_id} refused")

    threads = [threading.Thread(target=push, args=pair) for pair in (("a", 1), ("a", 2), ("b", 3), ("b", 3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(outcomes)[-2:] == ["b 3", "b 3"]
    (winner,) = (int(text[2:]) for text in outcomes if text[0] == "a" and text[2:].isdigit())
    assert "a refused" in outcomes
    with shared.connect() as shelf, shelf.acquire("a") as lease:
        assert bytes(lease["w"][:1]) == bytes([winner])
    assert len(kept(shared)) == 2


def test_what_no_format_reads_is_refused_and_leaves_nothing(shared: Daemon, tmp_path: Path) -> None:
    broken = tmp_path / "model.safetensors"
    broken.write_bytes(b"\xff" * 100)
    (tmp_path / "empty").mkdir()
    with shared.connect() as shelf:
        with pytest.raises(errors.MalformedArtifact):
            shelf.push("a", path=broken)
        with pytest.raises(errors.ConfigMissing):
            shelf.push("a", tensors=filled(1), base="b")
        with pytest.raises(errors.UnsupportedFormat):
            shelf.push("a", path=tmp_path / "empty")
        with pytest.raises(errors.SourceNotFound):
            shelf.push("a", path=tmp_path / "nothing")
        assert shelf.list() == []
    assert kept(shared) + unfinished(shared) == []


def test_a_second_daemon_does_not_share_a_spool(shared: Daemon, tmp_path: Path, arena_dir: Path) -> None:
    (tmp_path / "other").mkdir()
    (arena_dir / "other").mkdir()
    other = Daemon(tmp_path / "other", arena_dir / "other", shared.models)
    other.start("--spool", str(spool_of(shared)), wait=False)
    assert other.wait() != 0
    assert "spool" in other.log.read_text()
    (arena_dir / "other" / "arena.lock").unlink(missing_ok=True)
    (arena_dir / "other").rmdir()


def test_without_a_spool_everything_else_is_served(daemon: Daemon, tmp_path: Path, models: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    daemon.start("--spool", str(tmp_path / "file" / "spool"))
    with daemon.connect() as shelf:
        with pytest.raises(errors.SpoolUnavailable):
            shelf.push("a", tensors=filled(1), timeout=1)
        write_shards(models / "b", [filled(3)])
        shelf.register("b", models / "b")
        shelf.acquire("b").release()
    assert daemon.kill(signal.SIGTERM) == 0


def test_progress_is_told_up_to_the_last_byte(shared: Daemon) -> None:
    told: list[tuple[int, int]] = []
    with shared.connect() as shelf:
        shelf.push("a", tensors=filled(1, size=3 << 20), progress=lambda done, total: told.append((done, total)))
    total = told[-1][1]
    assert total > 3 << 20
    eventually(lambda: told[-1] == (total, total), "all is told")
    assert [done for done, _ in told] == sorted(done for done, _ in told)
