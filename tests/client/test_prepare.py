"""A directory for an engine: config and tokenizer, no weights, and a second run knows it as its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import warmshelf
from kit.models import pattern
from kit.segments import SegmentFile, write_segment
from kit.standin import StandIn
from warmshelf import cli
from warmshelf.errors import ConfigMissing, InvalidRequest, InvalidSpec, SegmentCorrupt
from warmshelf.prepare import MARKER_NAME, Marker, prepare_directory, read_marker
from warmshelf.v1 import artifact_pb2

FILES = {
    "config.json": b'\xef\xbb\xbf{"model_type": "tiny"}',
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ x }}",
}


def segment_of(files: dict[str, bytes]) -> SegmentFile:
    return write_segment({"a.weight": ("BF16", (4, 4), pattern(1, 32))}, files=files)


@pytest.fixture
def prepare(stand_in: StandIn, tmp_path: Path) -> Callable[..., Marker]:
    """Puts a base on the shelf and lays out its directory."""

    def run(files: dict[str, bytes], directory: Path | None = None, **options: int) -> Marker:
        stand_in.add("org/base", segment_of(files), **options)
        with warmshelf.connect(stand_in.address) as shelf, shelf.acquire("org/base") as lease:
            return prepare_directory(lease, directory or tmp_path / "model")

    return run


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != MARKER_NAME}


def test_the_files_are_laid_out_byte_for_byte_and_the_marker_says_of_what(
    prepare: Callable[..., Marker], tmp_path: Path
) -> None:
    marker = prepare(FILES)
    assert contents(tmp_path / "model") == FILES
    assert (marker.artifact_id, marker.generation) == ("org/base", 1)
    assert read_marker(tmp_path / "model") == marker


def test_a_second_run_brings_the_directory_up_to_date(prepare: Callable[..., Marker], tmp_path: Path) -> None:
    prepare(FILES)
    newer = {"config.json": b'{"model_type": "other"}', "vocab.txt": b"a\n"}
    (tmp_path / "model" / "mine.txt").write_text("added since")
    prepare(newer)
    assert contents(tmp_path / "model") == {**newer, "mine.txt": b"added since"}


def test_a_run_that_was_cut_short_is_taken_up(prepare: Callable[..., Marker], tmp_path: Path) -> None:
    prepare(FILES)
    (tmp_path / "model" / "tokenizer.json").unlink()
    (tmp_path / "model" / ".warmshelf-0123.partial").write_bytes(b"half")
    prepare(FILES)
    assert contents(tmp_path / "model").items() >= FILES.items()


def test_an_empty_directory_may_be_there(prepare: Callable[..., Marker], tmp_path: Path) -> None:
    inode = (tmp_path / "model").mkdir() or os.stat(tmp_path / "model").st_ino
    prepare(FILES)
    assert os.stat(tmp_path / "model").st_ino == inode  # it could be a mount point


def test_a_directory_with_other_things_is_refused_and_left_alone(
    prepare: Callable[..., Marker], tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "thesis.txt").write_text("precious")
    with pytest.raises(InvalidRequest, match="is not empty and was not made by prepare-model"):
        prepare(FILES)
    assert contents(tmp_path / "model") == {"thesis.txt": b"precious"}


def test_an_adapter_is_refused(prepare: Callable[..., Marker]) -> None:
    with pytest.raises(InvalidSpec, match="is an adapter"):
        prepare(FILES, kind=artifact_pb2.ARTIFACT_KIND_ADAPTER)


def test_a_base_without_a_config_is_refused(prepare: Callable[..., Marker], tmp_path: Path) -> None:
    with pytest.raises(ConfigMissing, match=r"'org/base' came without a config\.json"):
        prepare({"tokenizer.json": b"{}"})
    assert not (tmp_path / "model").exists()


def test_a_name_that_leads_out_of_the_directory_is_refused(prepare: Callable[..., Marker], tmp_path: Path) -> None:
    with pytest.raises(SegmentCorrupt, match="no file's name"):
        prepare({**FILES, "../escaped.json": b"{}"})
    assert list(tmp_path.rglob("escaped*")) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"artifact_id": "a", "generation": "x", "config_sha256": ""}'])
def test_a_marker_that_cannot_be_read_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / MARKER_NAME).write_text(text)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_marker(tmp_path)


def test_a_marker_cannot_make_a_run_remove_what_lies_elsewhere(prepare: Callable[..., Marker], tmp_path: Path) -> None:
    prepare(FILES)
    (tmp_path / "outside.txt").write_text("precious")
    path = tmp_path / "model" / MARKER_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), "file_names": ["../outside.txt"]}))
    with pytest.raises(InvalidRequest, match="cannot be read"):
        prepare(FILES)
    assert (tmp_path / "outside.txt").exists()


def test_what_is_no_prepared_directory_has_no_marker(tmp_path: Path) -> None:
    assert read_marker(tmp_path) is None
    assert read_marker(tmp_path / "nothing") is None
    assert read_marker("org/name-of-a-model") is None


def test_the_command_prints_what_it_laid_out(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in.add("org/base", segment_of(FILES))
    directory = tmp_path / "model"
    for options, shown in (([], f"prepared {directory} for org/base, generation 1: "), (["--output", "json"], "{")):
        monkeypatch.setattr(
            sys,
            "argv",
            ["warmshelf", "prepare-model", "org/base", str(directory), "--address", stand_in.address, *options],
        )
        with pytest.raises(SystemExit) as caught:
            sys.exit(cli.main())
        assert not caught.value.code
        out = capsys.readouterr().out
        assert out.startswith(shown)
        if options:
            assert json.loads(out)["artifact_id"] == "org/base"
            assert json.loads(out)["directory"] == str(directory)
