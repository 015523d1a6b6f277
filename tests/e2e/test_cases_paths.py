"""Sources that try to leave the allowed prefixes: refused, in the same words whether or not anything is there."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

import warmshelf
from kit.models import filled, safetensors_bytes
from kit.plain import Plain
from kit.processes import Daemon, Worker, eventually, read_all
from warmshelf import errors

SECRET, HIDDEN = "secret.safetensors", "hidden.safetensors"
"""Two names outside of the same length: one exists, the other does not."""

INSIDE, OUTSIDE = filled(1), filled(2)


@pytest.fixture
def outside(shared: Daemon) -> Iterator[Path]:
    """A directory beside the allowed one, with a good model in it; its name begins as the allowed one's."""
    allowed = shared.models
    with tempfile.TemporaryDirectory(prefix=f"{allowed.name}-", dir=allowed.parent) as path:
        (Path(path) / SECRET).write_bytes(safetensors_bytes(OUTSIDE))
        yield Path(path)


@pytest.fixture
def plain(shared: Daemon) -> Iterator[Plain]:
    with Plain(shared.address) as it:
        yield it


def outcome(plain: Plain, source: str) -> tuple[str, str]:
    """Return the code and the text with which a source is refused, without what the caller said himself."""
    with pytest.raises(grpc.RpcError) as caught:
        plain.register("x", source)
    text = caught.value.details() or ""
    for name in (SECRET, HIDDEN):
        text = text.replace(name, "NAME")
    return caught.value.code().name, text


SPELLINGS = [
    *("{root}/../{beside}/{name}", "file://{root}/../{beside}/{name}", "file://{outside}/{name}", "{outside}/{name}"),
    *("file://{root}/%2e%2e/{beside}/{name}", "file://{root}/..%2f{beside}/{name}", "file://{root}/%2E%2E/{name}"),
    *("file://{root}/./../{beside}/{name}", "file://{root}//../{beside}/{name}", "file://localhost{outside}/{name}"),
    *("FILE://{outside}/{name}", "file:///proc/self/root{outside}/{name}", "file:{outside}/{name}", "file:///", "/"),
    *("../{beside}/{name}", "./{name}", "{name}", "file://{root}/..", "~/{name}", "$HOME/{name}"),
    "file://{root}/a%00/../../{beside}/{name}",
]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_place_outside_is_refused_in_the_same_words_whether_or_not_it_exists(
    shared: Daemon, plain: Plain, outside: Path, spelling: str
) -> None:
    """B54."""
    places = {"root": shared.models, "outside": outside, "beside": outside.name}
    told = {outcome(plain, spelling.format(name=name, **places)) for name in (SECRET, HIDDEN)}
    ((code, _),) = told
    assert code in {"PERMISSION_DENIED", "INVALID_ARGUMENT"}
    with shared.connect() as shelf:
        assert shelf.list() == []


def link_to_file(directory: Path, target: Path) -> Path:
    (directory / "link.safetensors").symlink_to(target)
    return directory / "link.safetensors"


def relative_link(directory: Path, target: Path) -> Path:
    (directory / "link.safetensors").symlink_to(os.path.relpath(target, directory))
    return directory / "link.safetensors"


def link_to_directory(directory: Path, target: Path) -> Path:
    (directory / "link").symlink_to(target.parent)
    return directory / "link" / target.name


def directory_with_a_link(directory: Path, target: Path) -> Path:
    (directory / "base").mkdir()
    (directory / "base" / "model.safetensors").symlink_to(target)
    return directory / "base"


def link_in_two_steps(directory: Path, target: Path) -> Path:
    (directory / "first").symlink_to(target)
    (directory / "second.safetensors").symlink_to("first")
    return directory / "second.safetensors"


LINKS = [link_to_file, relative_link, link_to_directory, directory_with_a_link, link_in_two_steps]


@pytest.mark.parametrize("make", LINKS)
def test_a_link_that_leads_outside_is_refused_in_the_same_words_whether_or_not_it_leads_to_something(
    shared: Daemon, plain: Plain, models: Path, outside: Path, make: Callable[[Path, Path], Path]
) -> None:
    """B54: nothing outside is read."""
    told = set()
    for name in (SECRET, HIDDEN):
        place = models / "sub"
        place.mkdir()
        told.add(outcome(plain, f"file://{make(place, outside / name)}"))
        shutil.rmtree(place)
    ((code, _),) = told
    assert code == "PERMISSION_DENIED"
    with shared.connect() as shelf:
        assert shelf.list() == []


@pytest.mark.parametrize("make", LINKS)
def test_a_link_that_stays_inside_works(
    shared: Daemon, models: Path, outside: Path, make: Callable[[Path, Path], Path]
) -> None:
    """B54: as models are laid out by downloaders."""
    (models / "blobs").mkdir()
    (models / "snapshot").mkdir()
    (models / "blobs" / SECRET).write_bytes(safetensors_bytes(INSIDE))
    with shared.connect() as shelf:
        shelf.register("x", make(models / "snapshot", models / "blobs" / SECRET))
        with shelf.acquire("x", timeout=20) as lease:
            assert read_all(lease) == {"w": INSIDE["w"][2]}


@pytest.mark.parametrize("shard", ["../../../{beside}/{name}", "../secret", "{outside}/{name}", "..", ".", ""])
def test_a_shard_that_an_index_places_elsewhere_is_refused(
    shared: Daemon, plain: Plain, models: Path, outside: Path, shard: str
) -> None:
    """B54."""
    directory = models / "base"
    directory.mkdir()
    told = set()
    for name in (SECRET, HIDDEN):
        weight_map = {"w": shard.format(outside=outside, beside=outside.name, name=name)}
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        told.add(outcome(plain, f"file://{directory}"))
    ((code, text),) = told
    assert code == "INVALID_ARGUMENT"
    assert "model.safetensors.index.json" in text


def test_a_link_that_leads_outside_after_registration_is_refused_at_the_load(
    shared: Daemon, models: Path, outside: Path
) -> None:
    """B54: the check is made at each opening, not once."""
    path = models / "x.safetensors"
    path.write_bytes(safetensors_bytes(INSIDE))
    with shared.connect() as shelf:
        shelf.register("x", path)
        shelf.acquire("x", timeout=20).release()
        eventually(lambda: shelf.get("x").digest != "", "the digest is known")
        shelf.evict("x")
        path.unlink()
        path.symlink_to(outside / SECRET)
        for call in (lambda: shelf.acquire("x", timeout=20), lambda: shelf.register("x", path)):
            with pytest.raises(errors.SourceNotAllowed):
                call()
        assert shared.segments() == []


SWAPPER = """
import os, sys, time
link, *targets = sys.argv[1:]
while True:
    for target in targets:
        os.symlink(target, link + ".next")
        os.replace(link + ".next", link)
        time.sleep(0.002)  # about as long as a registration takes
"""


def test_a_link_swapped_all_the_time_never_shows_the_outside(
    shared: Daemon, models: Path, outside: Path, start_worker: Callable[..., Worker]
) -> None:
    """B54: between check and opening; what is served is what lies inside."""
    good, link = models / "good.safetensors", models / "link.safetensors"
    good.write_bytes(safetensors_bytes(INSIDE))
    link.symlink_to(good)
    start_worker(SWAPPER, str(link), str(outside / SECRET), str(good))
    with shared.connect() as shelf:
        kinds = {serve(shelf, link) for _ in range(150)}
        eventually(lambda: not kinds.update([serve(shelf, link)]) and "inside" in kinds, "the inside was met too")
    assert "outside" not in kinds


def serve(shelf: warmshelf.Shelf, path: Path) -> str:
    """Register, acquire and remove; return what was to be had."""
    try:
        shelf.register("x", path)
    except errors.WarmshelfError as error:
        return error.reason
    try:
        with shelf.acquire("x", timeout=20) as lease:
            return {1: "inside", 2: "outside"}[lease["w"][0]]
    except errors.WarmshelfError as error:
        return error.reason
    finally:
        shelf.remove("x")


def test_without_an_allowed_prefix_nothing_is_read_once_tcp_is_listened_on(daemon: Daemon, models: Path) -> None:
    """Default deny."""
    (models / "x.safetensors").write_bytes(safetensors_bytes(INSIDE))
    daemon.models = daemon.root / "nothing"
    daemon.start()
    with daemon.connect() as shelf, pytest.raises(errors.SourceNotAllowed):
        shelf.register("x", models / "x.safetensors")
