"""Memory file systems of a known size, and arenas on them that are checked afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.arenas import Arenas, Mounter
from warmshelfd.memory.arena import Arena


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mounter]:
    """Mounts a file system until the test ends; needs root."""
    mounted: list[Path] = []

    def do(type_name: str = "tmpfs", **options: object) -> Path:
        if os.geteuid() != 0:
            pytest.skip("only root can mount a file system of a known size")
        path = tmp_path / f"mount{len(mounted)}"
        path.mkdir()
        text = ",".join(f"{key}={value}" for key, value in options.items())
        subprocess.run(["mount", "-t", type_name, *(["-o", text] if text else []), "none", str(path)], check=True)
        mounted.append(path)
        return path

    yield do
    for path in mounted:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def shm() -> Iterator[Path]:
    """A directory on the tmpfs that every machine has."""
    path = Path(tempfile.mkdtemp(prefix="warmshelf-test-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def arenas(mount: Mounter, shm: Path) -> Iterator[Arenas]:
    """The file systems are asked for so that they outlive the arenas."""
    it = Arenas()
    yield it
    it.check()


@pytest.fixture
def arena(arenas: Arenas, shm: Path) -> Arena:
    """An arena of 64 MiB."""
    return arenas.open(shm)
