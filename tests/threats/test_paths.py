"""T27: what comes of every place of the corpus of paths, and that no byte from outside comes of any."""

from __future__ import annotations

import json
import os
import socket
import stat
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from warmshelf.errors import InvalidSpec, SourceNotAllowed, SourceNotFound
from warmshelfd.sources.file import FileOpener

CORPUS = Path(__file__).parents[1] / "data" / "paths.txt"
PLACES_MIN = 60
INSIDE, SECRET = b"allowed!", b"secret!!"


@dataclass(frozen=True)
class Tree:
    """An allowed directory and one beside it."""

    root: Path
    outside: Path

    def cases(self) -> list[tuple[str, str]]:
        lines = [line for line in CORPUS.read_text().splitlines() if line and not line.startswith("#")]
        found = [(verdict, json.loads(place)) for verdict, _, place in (line.partition(" ") for line in lines)]
        return [(v, p.replace("{root}", str(self.root)).replace("{outside}", str(self.outside))) for v, p in found]


LINKS = {
    "link-to-file": "w",
    "link-to-directory": "d",
    "absolute-link-to-directory": "{root}/d",
    "link-to-pipe": "pipe",
    "d/up-and-down": "../d/./w",
    "ring": "ring",
    "dangling": "none",
    "out-file": "{outside}/secret",
    "out-file-relative": "../secret/secret",
    "out-directory": "{outside}",
    "out-relative": "../secret",
    "out-parent": "..",
    "d/out-deep": "../../secret/secret",
    "out-by-two": "out-file",
    "out-and-in": "../allowed",
    "out-begins-inside": "{root}/../secret/secret",
    "out-root": "/proc/self/root",
    "out-cwd": "/proc/self/cwd",
    "out-descriptor": "/dev/fd/0",
    "out-dev": "/dev",
    "out-none": "../secret/none",
}


@pytest.fixture(scope="module")
def tree() -> Iterator[Tree]:
    with tempfile.TemporaryDirectory(prefix="w") as base:  # short: the path of a socket has at most 107 bytes
        it = Tree(Path(base, "allowed"), Path(base, "secret"))
        for directory in (it.root, it.outside, it.root / "d", it.root / "%2e%2e"):
            directory.mkdir()
        (it.outside / "secret").write_bytes(SECRET)
        for name in ("w", "d/w", "%2e%2e/w", "caf\u00e9", "cafe\u0301"):
            (it.root / name).write_bytes(INSIDE)
        os.link(it.root / "w", it.root / "hard-link")
        for name, target in LINKS.items():
            (it.root / name).symlink_to(target.format(root=it.root, outside=it.outside))
        with socket.socket(socket.AF_UNIX) as listener:
            _make_odd(it.root, listener)
            yield it


def _make_odd(root: Path, listener: socket.socket) -> None:
    os.mkfifo(root / "pipe")
    listener.bind(str(root / "socket"))
    for name, number in (("zero", 5), ("null", 3)):
        if os.geteuid() == 0:
            os.mknod(root / name, stat.S_IFCHR | 0o666, os.makedev(1, number))
        else:  # only root makes devices; a pipe is as odd
            os.mkfifo(root / name)


def verdict(opener: FileOpener, place: str) -> str:
    """Return what becomes of a place, from its text to its bytes."""
    try:
        with opener.open(place) as source:
            read = {source.read(name, 0, size) for name, size in source.files().items()}
    except SourceNotAllowed:
        return "outside"
    except SourceNotFound:
        return "absent"
    except InvalidSpec as error:
        return "odd" if "neither a regular file" in error.message else "never"
    assert read == {INSIDE}, place
    return "read"


def test_every_place_has_its_verdict(tree: Tree) -> None:
    cases = tree.cases()
    print(f"{len(cases)} places: {dict(Counter(verdict for verdict, _ in cases))}")
    assert len({place for verdict, place in cases if verdict != "read"}) >= PLACES_MIN
    opener = FileOpener([str(tree.root)])
    assert [(expected, place) for expected, place in cases if verdict(opener, place) != expected] == []


def test_without_a_prefix_every_place_is_outside_or_none(tree: Tree) -> None:
    opener = FileOpener([])
    found = {expected: verdict(opener, place) for expected, place in tree.cases()}
    assert found.pop("never") == "never"
    assert set(found.values()) == {"outside"}


def test_what_the_kernel_makes_is_not_read_even_if_the_whole_disk_is_allowed(tree: Tree) -> None:
    opener = FileOpener(["/"])
    made = [p for v, p in tree.cases() if v == "outside" and p.startswith(("/proc", "/dev", "/sys"))]
    made += [p for v, p in tree.cases() if v == "odd"]
    assert len(made) >= 15
    for place in made:
        if place == "/dev/shm" or "/root" in place:  # files like any other, the latter by a way of the kernel's
            continue
        with pytest.raises((InvalidSpec, SourceNotFound)):
            opener.open(place).close()


def test_a_hard_link_cannot_be_told_from_the_file_and_is_said_so(tree: Tree) -> None:
    """Who may write in an allowed directory, and may link a file, decides that it is read."""
    os.link(tree.outside / "secret", tree.root / "d" / "linked")
    try:
        with FileOpener([str(tree.root)]).open(f"{tree.root}/d/linked") as source:
            assert source.read("linked", 0, len(SECRET)) == SECRET
    finally:
        (tree.root / "d" / "linked").unlink()
    assert "hard link" in (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
