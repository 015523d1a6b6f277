"""What the daemon does by itself: declared artifacts, patterns, preload, following sources."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kit.models import write_model
from kit.processes import Daemon, eventually, read_all
from kit.web import serving
from kit.web_faults import Silent
from warmshelf import ArtifactState, errors


def test_declared_artifacts_are_registered_and_preloaded_and_the_file_is_read_again(
    daemon: Daemon, models: Path, tmp_path: Path
) -> None:
    tensors = {name: write_model(models / f"{name}.safetensors", i) for i, name in enumerate("abc")}
    declaration = tmp_path / "declared.toml"
    declaration.write_text(f'["org/a"]\nsource = "file://{models}/a.safetensors"\nkeep = true\n')
    daemon.start("--declare", str(declaration), "--preload", "org/a", "--preload", "org/nobody")
    with daemon.connect() as shelf:
        eventually(lambda: any(a.state is ArtifactState.READY for a in shelf.list()), "org/a is preloaded")
        assert shelf.get("org/a").keep_resident
        renamed = tmp_path / "new.toml"
        renamed.write_text(declaration.read_text() + f'["org/b"]\nsource = "file://{models}/b.safetensors"\n')
        os.replace(renamed, declaration)
        eventually(lambda: len(list(shelf.list())) == 2, "org/b is registered")
        declaration.write_text("this is no TOML")
        eventually(lambda: "the declaration stays as it was" in daemon.log.read_text(), "the error is told")
        with shelf.acquire("org/b", timeout=20) as lease:
            assert read_all(lease) == tensors["b"]
        declaration.write_text(f'["org/b"]\nsource = "file://{models}/c.safetensors"\n')
        eventually(lambda: shelf.get("org/b").generation == 2, "another source is another generation")
        with shelf.acquire("org/b", timeout=20) as lease:
            assert read_all(lease) == tensors["c"]
        assert shelf.get("org/a").state is ArtifactState.READY


def test_a_source_that_hangs_delays_no_other_declared_or_preloaded_artifact(
    daemon: Daemon, models: Path, tmp_path: Path
) -> None:
    """The first in either order is the one that hangs."""
    for i, name in enumerate("bcd"):
        write_model(models / f"{name}.safetensors", i)
    with serving() as web:
        web.faults.append(Silent("*"))
        declaration = tmp_path / "declared.toml"
        hung = [f'["hung-{i}"]\nsource = "{web.url}/model.safetensors"\n' for i in range(3)]
        there = [f'["{name}"]\nsource = "file://{models}/{name}.safetensors"\n' for name in "bcd"]
        declaration.write_text("".join([*hung, *there]))
        config = tmp_path / "daemon.toml"
        config.write_text(f'[[source]]\nprefix = "{web.url}"\nallow_private = true\n')
        daemon.start(
            *("--config", str(config), "--declare", str(declaration), "--allow-source", web.url),
            *("--preload", "hung-0", "d"),
            wait=False,  # it is ready when the preload has been tried
        )
        daemon.wait_listening()
        with daemon.connect() as shelf:
            states = {"b": ArtifactState.REGISTERED, "c": ArtifactState.REGISTERED, "d": ArtifactState.READY}
            eventually(lambda: {a.artifact_id: a.state for a in shelf.list()} == states, "all others are there", 5)
            assert "hung" not in daemon.log.read_text()  # they are still waited for


def test_what_a_declaration_keeps_and_follows_ends_with_its_entry(daemon: Daemon, models: Path, tmp_path: Path) -> None:
    """The artifacts stay registered, and what a caller asked for stays too."""
    for i, name in enumerate(("a", "b", "own", "acme/c")):
        write_model(models / f"{name}.safetensors", i)
    declaration = tmp_path / "declared.toml"
    both = "keep = true\nfollow = true\n"
    entries = {
        "a": f'["a"]\nsource = "file://{models}/a.safetensors"\n{both}',
        "b": f'["b"]\nsource = "file://{models}/b.safetensors"\n{both}',
        "acme": f'["acme/*"]\nsource = "file://{models}/{{id}}.safetensors"\n{both}',
    }
    declaration.write_text("".join(entries.values()))
    daemon.start("--declare", str(declaration))

    def wishes(artifact_id: str) -> tuple[bool, bool]:
        artifact = shelf.get(artifact_id)
        return artifact.keep_resident, artifact.follow

    with daemon.connect() as shelf:
        shelf.register("own", models / "own.safetensors", keep=True, follow=True)
        shelf.register("acme/own", models / "own.safetensors", keep=True, follow=True)
        shelf.acquire("acme/c", timeout=20).release()
        eventually(lambda: len(shelf.list()) == 5, "all are registered")
        assert {wishes(a.artifact_id) for a in shelf.list()} == {(True, True)}
        declaration.write_text(entries["b"].replace("keep = true\n", ""))
        eventually(lambda: wishes("a") == (False, False), "a is as if it had never been declared")
        eventually(lambda: wishes("acme/c") == (False, False), "so is what a pattern registered")
        eventually(lambda: wishes("b") == (False, True), "b is only followed")
        assert wishes("own") == wishes("acme/own") == (True, True)


def test_a_pattern_registers_an_unknown_id_on_its_first_acquire(daemon: Daemon, models: Path, tmp_path: Path) -> None:
    tensors = write_model(models / "acme" / "a@v1", 5)
    os.rename(models / "acme" / "a@v1", models / "acme" / "a@v1.safetensors")
    declaration = tmp_path / "declared.toml"
    declaration.write_text(f'["acme/*"]\nsource = "file://{models}/{{id}}.safetensors"\n')
    daemon.start("--declare", str(declaration))
    with daemon.connect() as shelf:
        assert list(shelf.list()) == []
        with shelf.acquire("acme/a@v1", timeout=20) as lease:
            assert read_all(lease) == tensors
        with pytest.raises(errors.SourceNotFound):
            shelf.acquire("acme/nothing-there", timeout=5)
        with pytest.raises(errors.ArtifactNotFound):
            shelf.acquire("other/a", timeout=5)
        with pytest.raises(errors.InvalidId):
            shelf.acquire("acme/../../etc", timeout=5)
        assert [a.artifact_id for a in shelf.list()] == ["acme/a@v1"]


def test_a_followed_source_becomes_a_new_generation_by_itself(daemon: Daemon, models: Path) -> None:
    old = write_model(models / "a.safetensors", 1)
    daemon.start(env={"WARMSHELF_FOLLOW_SECONDS": "0.2"})
    with daemon.connect() as shelf:
        shelf.register("a", f"file://{models}/a.safetensors", follow=True)
        lease = shelf.acquire("a", timeout=20)
        eventually(lambda: bool(shelf.get("a").digest), "the digest is known")
        os.utime(models / "a.safetensors", ns=(1, 1))  # touched: other fingerprint, same bytes
        new = write_model(models / "b.safetensors", 2)
        os.replace(models / "b.safetensors", models / "a.safetensors")
        eventually(lambda: shelf.get("a").generation == 2, "a new generation")
        eventually(lambda: shelf.get("a").state is ArtifactState.READY, "it is made resident as the old one was")
        assert read_all(lease) == old
        with shelf.acquire("a", timeout=20) as again:
            assert read_all(again) == new


def test_a_broken_declaration_is_refused_at_start(daemon: Daemon, tmp_path: Path) -> None:
    declaration = tmp_path / "declared.toml"
    declaration.write_text('["a"]\nsauce = "file:///x"\n')
    daemon.start("--declare", str(declaration), wait=False)
    assert daemon.wait() == 2
    assert "did you mean 'source'" in daemon.log.read_text()
