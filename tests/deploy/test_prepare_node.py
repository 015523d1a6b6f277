"""The script that mounts the arena on a node: run for real, in a mount namespace of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kit.chart import CHART

SCRIPT = CHART / "files" / "prepare-node.sh"
SIZE_BYTES = 64 << 20

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "node"


def run(root: Path, body: str) -> str:
    """Run commands on a node that is ours alone; `$S` is the script, `$R` the node's directory."""
    environ = {**os.environ, "S": f"sh {SCRIPT}", "R": str(root), "SIZE": str(SIZE_BYTES)}
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-euc", body], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


MOUNT = '$S mount "$R" $SIZE 0 0 huge=within_size;'


def test_the_arena_is_a_tmpfs_of_its_size_with_huge_pages(root: Path) -> None:
    options = run(root, f"{MOUNT} grep ' '$R'/memory ' /proc/self/mounts; stat -f -c %b*%S $R/memory")
    assert "tmpfs" in options
    assert "huge=within_size" in options
    blocks, size = options.splitlines()[-1].split("*")
    assert int(blocks) * int(size) == SIZE_BYTES


def test_what_workers_are_offered_is_the_same_and_read_only(root: Path) -> None:
    seen = run(
        root,
        f"{MOUNT} echo weights > $R/memory/shelf/segment; cat $R/workers/shelf/segment;"
        "touch $R/workers/shelf/new 2>/dev/null && echo writable || echo read-only",
    )
    assert seen.split() == ["weights", "read-only"]


def test_a_worker_that_comes_before_the_tmpfs_finds_no_directory(root: Path) -> None:
    assert not (root / "workers" / "shelf").exists()
    run(root, MOUNT)
    assert not (root / "workers" / "shelf").exists(), "outside of the mount there must be none"


def test_again_and_with_another_size_it_keeps_what_is_there(root: Path) -> None:
    seen = run(
        root,
        f"{MOUNT} echo weights > $R/memory/shelf/segment; $S mount $R $((SIZE * 2)) 0 0 huge=within_size;"
        "cat $R/workers/shelf/segment; grep -c $R /proc/self/mounts; stat -f -c %b*%S $R/memory",
    )
    weights, mounts, size = seen.split()
    assert (weights, mounts) == ("weights", "2")
    assert eval(size) == 2 * SIZE_BYTES


def test_a_size_below_what_is_there_changes_nothing_and_is_no_error(root: Path) -> None:
    seen = run(
        root,
        f"{MOUNT} head -c 8388608 /dev/zero > $R/memory/shelf/segment; $S mount $R 4194304 0 0 huge=within_size;"
        "stat -c %s $R/workers/shelf/segment; stat -f -c %b*%S $R/memory",
    )
    size, whole = seen.split()
    assert (int(size), eval(whole)) == (8 << 20, SIZE_BYTES)


def test_an_option_that_the_kernel_does_not_know_is_left_out_if_it_is_noswap(root: Path, tmp_path: Path) -> None:
    old = tmp_path / "bin"
    old.mkdir()
    real = shutil.which("mount")
    (old / "mount").write_text(f'#!/bin/sh\ncase "$*" in *noswap*) exit 32 ;; esac\nexec {real} "$@"\n')
    (old / "mount").chmod(0o755)
    options = run(
        root, f"PATH={old}:$PATH; $S mount $R $SIZE 0 0 huge=within_size,noswap; grep $R/memory /proc/self/mounts"
    )
    assert "huge=within_size" in options


def test_purging_unmounts_and_keeps_or_removes_the_state(root: Path) -> None:
    seen = run(
        root, f"{MOUNT} echo r > $R/state/registry; $S unmount $R keep; grep -c $R /proc/self/mounts || true; ls $R"
    )
    assert seen.split() == ["0", "state"]
    assert run(root, f"{MOUNT} $S unmount $R remove; ls $R").split() == []


def test_purging_what_was_never_mounted_is_fine(root: Path) -> None:
    root.mkdir()
    assert run(root, "$S unmount $R remove; ls $R").split() == []
