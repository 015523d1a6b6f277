"""A daemon of one's own, and what is left when its program is killed."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from examples.daemon import own_daemon
from examples.places import own_directory, remove_abandoned

ROOT = Path(__file__).resolve().parents[2]
END_SECONDS_MAX = 30

PROGRAM = """
import sys
from pathlib import Path
from examples.daemon import own_daemon
place = Path(sys.argv[1])
with own_daemon(sources=place, budget="16MiB", arena_parent=place) as daemon:
    daemon.start()
    print(daemon.pid, flush=True)
    sys.stdin.read()
"""

pytestmark = pytest.mark.e2e


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Where all temporary directories are made."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


@pytest.fixture
def program(place):
    """A program with a daemon of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, place], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield process
        process.kill()


def has_ended(descriptor):
    """Say whether the process of a pidfd ends in time."""
    return bool(select.select([descriptor], [], [], END_SECONDS_MAX)[0])


def test_a_killed_program_takes_its_daemon_along_and_the_next_one_its_directories(program, place):
    daemon = os.pidfd_open(int(program.stdout.readline()))
    try:
        remove_abandoned(place)
        assert len(list(place.iterdir())) == 2  # home and arena, in use
        program.send_signal(signal.SIGKILL)
        assert has_ended(daemon)
    finally:
        os.close(daemon)
    assert len(list(place.iterdir())) == 2
    remove_abandoned(place)
    assert list(place.iterdir()) == []


def test_a_daemon_that_is_stopped_leaves_nothing(place):
    with own_daemon(sources=place, budget="16MiB", arena_parent=place) as daemon:
        assert daemon.start() > 0
        assert len(list(place.iterdir())) == 2
    assert list(place.iterdir()) == []


def test_a_place_that_cannot_be_made_leaves_the_other_neither(place):
    with pytest.raises(FileNotFoundError), own_daemon(sources=place, budget="1MiB", arena_parent=place / "nowhere"):
        pass
    assert list(place.iterdir()) == []


def test_only_directories_with_the_prefix_are_removed(place):
    others = [place / "warmshelf-0", place / "warmshelf-demo"]
    for other in others:
        other.mkdir()
    (place / "warmshelf-own-link").symlink_to(others[0])
    (place / "warmshelf-own-file").touch()
    abandoned = place / "warmshelf-own-abandoned"
    abandoned.mkdir()
    with own_directory(place) as own:
        assert not abandoned.exists()
        assert own.is_dir()
    assert sorted(path.name for path in place.iterdir()) == [
        "warmshelf-0",
        "warmshelf-demo",
        "warmshelf-own-file",
        "warmshelf-own-link",
    ]
