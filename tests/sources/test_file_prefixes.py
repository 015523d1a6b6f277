"""What the allowed prefixes let through, and what never leaves them."""

from __future__ import annotations

import itertools
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from warmshelf.errors import InvalidSpec, SourceChangedDuringLoad, SourceNotAllowed, SourceNotFound, WarmshelfError
from warmshelfd.sources.file import FileOpener

SECRET = b"secret!!"
INSIDE = b"allowed!"


def read_all(opener: FileOpener, uri: str) -> dict[str, bytes]:
    with opener.open(uri) as source:
        return {name: source.read(name, 0, size) for name, size in source.files().items()}


# --- what is inside ------------------------------------------------------------


def test_without_prefixes_nothing_is_allowed(root: Path) -> None:
    """T18."""
    with pytest.raises(SourceNotAllowed):
        FileOpener([]).open(str(root))


def test_a_prefix_allows_itself_and_what_lies_below(tmp_path: Path) -> None:
    models, lookalike = tmp_path / "models", tmp_path / "models2"
    for directory in (models / "a", lookalike):
        directory.mkdir(parents=True)
    (models / "a" / "x").write_bytes(INSIDE)
    opener = FileOpener([f"file://{models}/"])
    assert read_all(opener, str(models)) == {}
    assert read_all(opener, f"file://{models}/a/x") == {"x": INSIDE}
    for beside in (lookalike, tmp_path, Path("/")):
        with pytest.raises(SourceNotAllowed):
            opener.open(str(beside))


def test_a_prefix_may_be_one_file(root: Path) -> None:
    (root / "x").write_bytes(INSIDE)
    (root / "y").write_bytes(SECRET)
    opener = FileOpener([str(root / "x")])
    assert read_all(opener, str(root / "x")) == {"x": INSIDE}
    with pytest.raises(SourceNotAllowed):
        opener.open(str(root / "y"))
    with pytest.raises(SourceNotFound):
        opener.open(str(root / "x" / "z"))


def test_the_whole_disk_may_be_allowed(root: Path) -> None:
    (root / "x").write_bytes(INSIDE)
    assert read_all(FileOpener(["/"]), str(root / "x")) == {"x": INSIDE}


def test_a_prefix_may_itself_be_a_link(root: Path, tmp_path: Path) -> None:
    (root / "x").write_bytes(INSIDE)
    (tmp_path / "alias").symlink_to(root)
    assert read_all(FileOpener([str(tmp_path / "alias")]), str(tmp_path / "alias" / "x")) == {"x": INSIDE}


def test_a_missing_file_inside_is_named(opener: FileOpener, root: Path) -> None:
    with pytest.raises(SourceNotFound, match=r"file:///.*/allowed/no%20model: No such file"):
        opener.open(str(root / "no model"))


def test_a_name_may_look_like_an_escape(opener: FileOpener, root: Path) -> None:
    (root / "%2e%2e").mkdir()
    (root / "%2e%2e" / "x").write_bytes(INSIDE)
    assert read_all(opener, f"{root}/%2e%2e/x") == {"x": INSIDE}
    assert read_all(opener, f"file://{root}/%252e%252e/x") == {"x": INSIDE}


# --- links that stay inside ----------------------------------------------------


@pytest.mark.parametrize("absolute", [True, False])
def test_a_link_that_stays_inside_works(absolute: bool, opener: FileOpener, root: Path) -> None:
    """B54: at every part of the path."""
    (root / "v1" / "deep").mkdir(parents=True)
    (root / "v1" / "deep" / "x").write_bytes(INSIDE)
    (root / "current").symlink_to(root / "v1" if absolute else "v1")
    (root / "v1" / "again").symlink_to(root / "current" / "deep" if absolute else "../current/./deep/")
    (root / "v1" / "deep" / "link").symlink_to(root / "v1" / "again" / "x" if absolute else "../again/x")
    assert read_all(opener, str(root / "current" / "again" / "link")) == {"link": INSIDE}
    assert read_all(opener, str(root / "current" / "again")) == {"x": INSIDE, "link": INSIDE}


def test_a_hub_snapshot_is_read_through_its_links(opener: FileOpener, root: Path) -> None:
    """A hub cache: the names are relative links into a directory of blobs."""
    snapshot = root / "models--org--name" / "snapshots" / "abc"
    blobs = root / "models--org--name" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "0123").write_bytes(INSIDE)
    (snapshot / "model.safetensors").symlink_to("../../blobs/0123")
    assert read_all(opener, str(snapshot)) == {"model.safetensors": INSIDE}


def test_an_absolute_link_may_lead_into_another_prefix(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "two" / "x").write_bytes(INSIDE)
    (tmp_path / "one" / "link").symlink_to(tmp_path / "two" / "x")
    both = FileOpener([str(tmp_path / "one"), str(tmp_path / "two")])
    assert read_all(both, str(tmp_path / "one" / "link")) == {"link": INSIDE}
    with pytest.raises(SourceNotAllowed):
        FileOpener([str(tmp_path / "one")]).open(str(tmp_path / "one" / "link"))


def test_links_may_use_the_outermost_of_nested_prefixes(root: Path) -> None:
    (root / "a").mkdir()
    (root / "b").mkdir()
    (root / "b" / "x").write_bytes(INSIDE)
    (root / "a" / "link").symlink_to("../b/x")
    opener = FileOpener([str(root / "a"), str(root)])
    assert read_all(opener, str(root / "a" / "link")) == {"link": INSIDE}


def test_a_ring_of_links_ends(opener: FileOpener, root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    with pytest.raises(SourceNotFound, match="symbolic links"):
        opener.open(str(root / "a"))


def test_a_chain_of_forty_links_is_followed_and_no_more(opener: FileOpener, root: Path) -> None:
    (root / "0").write_bytes(INSIDE)
    for number in range(1, 42):
        (root / str(number)).symlink_to(str(number - 1))
    assert read_all(opener, str(root / "40")) == {"40": INSIDE}
    with pytest.raises(SourceNotFound, match="symbolic links"):
        opener.open(str(root / "41"))


# --- links that do not ---------------------------------------------------------


def absolute_link(root: Path, outside: Path) -> str:
    (root / "x").symlink_to(outside / "secret")
    return "x"


def relative_link(root: Path, outside: Path) -> str:
    (root / "x").symlink_to("../secret/secret")
    return "x"


def linked_directory(root: Path, outside: Path) -> str:
    (root / "x").symlink_to("../secret")
    return "x/secret"


def linked_parent(root: Path, outside: Path) -> str:
    (root / "x").symlink_to("..")
    return "x/secret/secret"


def link_out_and_in_again(root: Path, outside: Path) -> str:
    (root / "x").symlink_to(f"../{root.name}/../secret/secret")
    return "x"


def absolute_link_that_begins_inside(root: Path, outside: Path) -> str:
    (root / "x").symlink_to(f"{root}/../secret/secret")
    return "x"


def chain_of_links(root: Path, outside: Path) -> str:
    (root / "y").symlink_to("z")
    (root / "z").symlink_to("../secret/secret")
    (root / "x").symlink_to("y")
    return "x"


def magic_link(root: Path, outside: Path) -> str:
    (root / "x").symlink_to("/proc/self/root")
    return f"x{outside}/secret"


def link_beside_the_weights(root: Path, outside: Path) -> str:
    (root / "d").mkdir()
    (root / "d" / "fine").write_bytes(INSIDE)
    (root / "d" / "x").symlink_to(outside / "secret")
    return "d"


@pytest.mark.parametrize(
    "escape",
    [
        absolute_link,
        relative_link,
        linked_directory,
        linked_parent,
        link_out_and_in_again,
        absolute_link_that_begins_inside,
        chain_of_links,
        magic_link,
        link_beside_the_weights,
    ],
    ids=lambda f: f.__name__,
)
def test_a_link_that_leads_outside_is_refused_in_the_same_words_whether_or_not_there_is_something(
    escape: Callable[[Path, Path], str], opener: FileOpener, root: Path, outside: Path
) -> None:
    """B54, T27."""
    uri = str(root / escape(root, outside))
    with pytest.raises(SourceNotAllowed) as absent:
        opener.open(uri)
    (outside / "secret").write_bytes(SECRET)
    with pytest.raises(SourceNotAllowed) as present:
        opener.open(uri)
    assert str(absent.value) == str(present.value)
    assert absent.value.details == present.value.details


@pytest.mark.parametrize("name", ["secret", "sub/secret", ""])
def test_a_place_outside_is_refused_in_the_same_words_whether_or_not_it_exists(
    name: str, opener: FileOpener, outside: Path
) -> None:
    """B54."""
    with pytest.raises(SourceNotAllowed) as absent:
        opener.open(f"{outside}/{name}")
    (outside / "sub").mkdir()
    for path in ("secret", "sub/secret"):
        (outside / path).write_bytes(SECRET)
    with pytest.raises(SourceNotAllowed) as present:
        opener.open(f"{outside}/{name}")
    assert str(absent.value) == str(present.value)


@contextmanager
def swapping(spot: Path, *targets: Path) -> Iterator[None]:
    """Have a thread rename one link after the other over the spot, as fast as it can."""
    stop = threading.Event()
    spares = []
    for number, target in enumerate(targets):
        spare = spot.parent / f".spare{number}"
        spare.symlink_to(target)
        spares.append(spare)

    def swap() -> None:
        for spare in itertools.cycle(spares):
            if stop.is_set():
                return
            copy = spot.parent / ".copy"
            os.link(spare, copy, follow_symlinks=False)
            os.replace(copy, spot)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("below", ["", "/x"])
def test_a_link_swapped_between_check_and_open_never_shows_the_outside(
    below: str, opener: FileOpener, root: Path, outside: Path
) -> None:
    """B54, T27: swapped for the last part of the path, and for one before it."""
    (root / "good").mkdir()
    (root / "good" / "x").write_bytes(INSIDE)
    (outside / "x").write_bytes(SECRET)
    (root / "spot").symlink_to("good")
    seen: set[object] = set()
    with swapping(root / "spot", Path("good"), outside):
        for turn in itertools.count():
            if turn >= 3000 and {INSIDE, SourceNotAllowed} <= seen:
                break
            try:
                seen |= set(read_all(opener, f"{root}/spot{below}").values())
            except (SourceNotAllowed, SourceNotFound, SourceChangedDuringLoad) as error:
                seen.add(type(error))
    assert SECRET not in seen


# --- what is no file -------------------------------------------------------------


def test_a_pipe_is_refused_at_once(opener: FileOpener, root: Path) -> None:
    """S15: a plain open would wait for a writer."""
    os.mkfifo(root / "pipe")
    with pytest.raises(InvalidSpec, match="neither a regular file nor a directory"):
        opener.open(str(root / "pipe"))


def test_a_socket_is_refused(opener: FileOpener, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S15."""
    monkeypatch.chdir(root)  # a socket's path may be no longer than 107 bytes
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        with pytest.raises(InvalidSpec):
            opener.open(str(root / "socket"))


@pytest.mark.parametrize(
    "path",
    ["/dev/zero", "/dev/null", "/proc/self/environ", "/proc/self/maps", "/proc/self", "/proc/version", "/sys/kernel"],
)
def test_what_the_kernel_makes_is_refused_even_if_all_is_allowed(path: str) -> None:
    """S15, T27."""
    with pytest.raises(InvalidSpec, match="neither a regular file nor a directory"):
        FileOpener(["/"]).open(path)


def test_an_open_descriptor_is_no_way_out(opener: FileOpener, root: Path, outside: Path) -> None:
    """T27: a link of /proc that leads to a file without having its name."""
    (outside / "secret").write_bytes(SECRET)
    with (outside / "secret").open() as held:
        (root / "x").symlink_to(f"/proc/self/fd/{held.fileno()}")
        with pytest.raises(SourceNotAllowed):
            opener.open(str(root / "x"))


def test_only_regular_files_of_the_directory_itself_are_listed(opener: FileOpener, root: Path) -> None:
    (root / "x").write_bytes(INSIDE)
    (root / "empty").touch()
    (root / "below").mkdir()
    (root / "below" / "y").write_bytes(INSIDE)
    (root / "linked").symlink_to("below")
    os.mkfifo(root / "pipe")
    (root / "linked-pipe").symlink_to("pipe")
    with opener.open(str(root)) as source:
        assert source.files() == {"x": len(INSIDE), "empty": 0}


def test_a_link_to_nothing_is_named(opener: FileOpener, root: Path) -> None:
    """A shard that is not there yet must not make a model look smaller than it is."""
    (root / "model-2.safetensors").symlink_to("blob")
    with pytest.raises(SourceNotFound, match=r"model-2\.safetensors"):
        opener.open(str(root))


def test_a_directory_with_too_many_entries_is_refused(
    opener: FileOpener, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warmshelfd.sources.file.ENTRIES_MAX", 3)
    for name in "abc":
        (root / name).touch()
    opener.open(str(root)).close()
    (root / "d").touch()
    with pytest.raises(InvalidSpec, match="more than 3 entries"):
        opener.open(str(root))


def test_a_file_name_that_is_not_utf_8_is_refused(opener: FileOpener, root: Path) -> None:
    Path(os.fsdecode(bytes(root) + b"/\xff.safetensors")).touch()
    with pytest.raises(InvalidSpec, match="not UTF-8"):
        opener.open(str(root))


def test_a_revision_is_refused(opener: FileOpener, root: Path) -> None:
    with pytest.raises(InvalidSpec, match="no revisions"):
        opener.open(str(root), "main")


def test_refusals_carry_the_canonical_uri(opener: FileOpener, outside: Path) -> None:
    with pytest.raises(WarmshelfError) as caught:
        opener.open(f"{outside}/a b")
    assert caught.value.details == {"uri": f"file://{outside}/a%20b"}
