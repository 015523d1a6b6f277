"""W5, G11: a worker that was taken over tries to change what others read, by every way that there is.

Three users and two ways to see the arena. As root all of it runs; without root only what the daemon's own user can do
in a shared directory does, and the rest says so.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import attacks
from kit.models import write_model
from kit.processes import Daemon, read_all
from kit.scrape import HTTP, pages_of
from warmshelf.errors import SegmentCorrupt
from warmshelf.types import ArtifactState

pytestmark = pytest.mark.e2e

DAEMON_USER, OTHER_USER, GROUP = 47110, 47111, 47112
MIB = 1 << 20
DOCUMENT = Path(__file__).parents[2] / "docs" / "threats.md"
CHANGED = "warmshelf_segments_changed_total"

WAYS = (
    *(("shared", user) for user in ("another user", "the daemon's user", "root")),
    *(("read-only", user) for user in ("another user", "the daemon's user", "root")),
)
REFUSED, SEEN, ONLY_VERIFY, NOT_SEEN = "refused", "seen", "seen by `verify`", "not seen"
_ALL = (REFUSED,) * 6
_BY_OWN = (REFUSED, SEEN, SEEN, REFUSED, REFUSED, REFUSED)

EXPECTED: dict[str, tuple[str, ...]] = {
    "write": _ALL,
    "map_for_writing": _ALL,
    "protect": _ALL,
    "cut_descriptor": _ALL,
    "punch_descriptor": _ALL,
    "remove_mapped": _ALL,
    "seal": _ALL,
    "reopen": _BY_OWN,
    "reopen_of_daemon": (REFUSED, REFUSED, SEEN, REFUSED, REFUSED, REFUSED),
    "cut": _BY_OWN,
    "grow": _BY_OWN,
    "punch": _BY_OWN,
    "remove": _BY_OWN,
    "store_slyly": (REFUSED, SEEN, ONLY_VERIFY, REFUSED, REFUSED, REFUSED),
    "store_and_hold": (REFUSED, SEEN, ONLY_VERIFY, REFUSED, REFUSED, REFUSED),
    "daemon_memory": _ALL,
    "trace": (REFUSED, REFUSED, NOT_SEEN, REFUSED, REFUSED, REFUSED),
    "unlink": _BY_OWN,
    "rename": _BY_OWN,
    "replace": _BY_OWN,
    "link_and_chmod": _BY_OWN,
    "plant_socket": (REFUSED, NOT_SEEN, NOT_SEEN, REFUSED, REFUSED, REFUSED),
}
"""What comes of each, in the order of WAYS."""

TEXTS = {
    "write": "`pwrite` on the descriptor that workers have",
    "map_for_writing": "`mmap` of it for writing, shared",
    "protect": "`mprotect` of the mapping that workers have",
    "cut_descriptor": "`ftruncate` on the descriptor",
    "punch_descriptor": "`fallocate` with `PUNCH_HOLE` on it",
    "remove_mapped": "`madvise` with `MADV_REMOVE` on the mapping",
    "seal": "`fcntl` with `F_ADD_SEALS`",
    "reopen": "open `/proc/self/fd/N` for writing, write",
    "reopen_of_daemon": "the same of the daemon's descriptor",
    "cut": "open for writing, make it shorter",
    "grow": "open for writing, make it longer",
    "punch": "open for writing, `PUNCH_HOLE`",
    "remove": "map for writing, `MADV_REMOVE`",
    "store_slyly": "map for writing, read a page, store into it, let go",
    "store_and_hold": "the same, and keep the mapping",
    "daemon_memory": "write into the daemon's mapping by `/proc/PID/mem`",
    "trace": "`ptrace` the daemon",
    "unlink": "unlink the segment",
    "rename": "rename it",
    "replace": "put another file under its name",
    "link_and_chmod": "a hard link, `chmod`, write",
    "plant_socket": "put another socket in the place of the daemon's",
}


class OwnUser(Daemon):
    """A daemon that runs as a user of its own, as it does in a deployment."""

    def command(self, *options: str) -> list[str]:
        return [*_as(DAEMON_USER, DAEMON_USER), *super().command(*options)]


def _as(user: int, group: int) -> list[str]:
    return ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"]


class Attacker:
    """A worker in other hands."""

    def __init__(self, daemon: Daemon, place: str, user: str) -> None:
        self._daemon = daemon
        command = [sys.executable, "-I", "-S", attacks.__file__]
        if os.geteuid() == 0:
            own = {"root": 0, "the daemon's user": DAEMON_USER, "another user": OTHER_USER}[user]
            # Root has every other capability, which is more than the root of a container.
            command = [*_as(own, GROUP), *(["--bounding-set=-sys_admin"] if not own else []), *command]
        if place == "read-only":
            command = [*_apart(daemon.arena, daemon.socket.parent), *command]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def try_out(self, attack: str) -> str:
        (segment,) = self._daemon.segments()
        path = self._daemon.arena / segment
        target = (path, self._daemon.pid, *_in_daemon(self._daemon.pid, segment), self._daemon.socket)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, (attack, *target))) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        assert re.fullmatch(r"done|refused E[A-Z]+", answer), answer
        return answer

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(20)


def _apart(*directories: Path) -> list[str]:
    """Have processes and mounts of one's own, in which some directories are read-only."""
    mounts = " && ".join(f"mount --bind {d} {d} && mount -o remount,bind,ro {d}" for d in directories)
    return [
        *("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"),
        *("sh", "-c", f'{mounts} && exec "$@"', "sh"),
    ]


def _in_daemon(pid: int, segment: str) -> tuple[int, int]:
    """Return the daemon's descriptor of a segment, and where it is mapped."""
    fds = [link for link in Path(f"/proc/{pid}/fd").iterdir() if os.readlink(link).endswith(f"/{segment}")]
    lines = [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if f"/{segment}" in line]
    published = re.search("[0-9a-f]+", lines[0]) if lines else None
    return int(fds[0].name), int(published[0], 16) if published else 0


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    is_root = os.geteuid() == 0
    with (
        tempfile.TemporaryDirectory(prefix="warmshelf-threats-") as root,
        tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm") as arena,
    ):
        models = Path(root, "models")
        models.mkdir()
        if is_root:
            os.chmod(root, 0o755)
            os.chown(root, DAEMON_USER, DAEMON_USER)
            os.chown(arena, DAEMON_USER, GROUP)
            os.chmod(arena, 0o2750)
        it = (OwnUser if is_root else Daemon)(Path(root), Path(arena), models)
        it.start("--budget", "64MiB", *HTTP)
        yield it
        assert it.kill(signal.SIGTERM) == 0


@pytest.fixture(scope="module")
def tensors(daemon: Daemon) -> Iterator[dict[str, bytes]]:
    tensors = write_model(daemon.models / "m.safetensors", 1, MIB)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WARMSHELF_DAEMON_UID", str(DAEMON_USER))
        with daemon.connect() as shelf:
            shelf.register("m", daemon.models / "m.safetensors")
            list(shelf.load("m"))
        yield tensors


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: "-".join(way).replace(" ", "_"))
def way(request: pytest.FixtureRequest) -> tuple[str, str]:
    chosen: tuple[str, str] = request.param
    if os.geteuid() != 0 and chosen != ("shared", "the daemon's user"):
        pytest.skip("only root has other users and mounts: run it with sudo, as CI does")
    return chosen


@pytest.fixture(scope="module")
def attacker(daemon: Daemon, way: tuple[str, str]) -> Iterator[Attacker]:
    it = Attacker(daemon, *way)
    yield it
    it.end()


def _digest(daemon: Daemon) -> list[str]:
    return [hashlib.sha256((daemon.arena / name).read_bytes()).hexdigest() for name in daemon.segments()]


def _what_came_of_it(daemon: Daemon, attacker: Attacker, attack: str, tensors: dict[str, bytes]) -> str:
    """Try an attack, and return what the next worker sees of it; whatever it was, everything is right afterwards."""
    with daemon.connect() as shelf:
        with shelf.acquire("m", timeout=20):
            before, count = _digest(daemon), pages_of(daemon).scrape()[CHANGED]
            answer = attacker.try_out(attack)
        if answer != "done":
            assert _digest(daemon) == before
        served = _served(daemon)
        noticed = pages_of(daemon).scrape()[CHANGED] - count
        if answer != "done":
            assert (served, noticed) == (tensors, 0)
            return REFUSED
        if noticed:
            assert served == tensors
            return SEEN
        if served == tensors:
            return NOT_SEEN
        with pytest.raises(SegmentCorrupt):
            shelf.verify("m")
        assert shelf.get("m").state is ArtifactState.FAILED
        assert _served(daemon) == tensors
        return ONLY_VERIFY


def _served(daemon: Daemon) -> dict[str, bytes]:
    with daemon.connect() as shelf, shelf.acquire("m", timeout=20) as lease:
        assert lease.transport == "mapped"
        return read_all(lease)


def _put_right(daemon: Daemon) -> None:
    """Put the socket back, and take away what attackers left in the arena."""
    away = Path(f"{daemon.socket}.away")
    if away.exists():
        away.rename(daemon.socket)
    for name in daemon.leftovers():
        (daemon.arena / name).unlink()


@pytest.mark.parametrize("attack", EXPECTED)
def test_what_comes_of_an_attack_is_what_the_document_says(
    daemon: Daemon, attacker: Attacker, way: tuple[str, str], attack: str, tensors: dict[str, bytes]
) -> None:
    try:
        if attack == "plant_socket":
            answer = attacker.try_out(attack)
            assert (REFUSED if answer != "done" else NOT_SEEN) == EXPECTED[attack][WAYS.index(way)]
            return
        found = _what_came_of_it(daemon, attacker, attack, tensors)
        assert found == EXPECTED[attack][WAYS.index(way)]
    finally:
        _put_right(daemon)


def test_the_document_has_this_table() -> None:
    rows = [f"| {TEXTS[attack]} | {' | '.join(outcomes)} |" for attack, outcomes in EXPECTED.items()]
    assert "\n".join(rows) in DOCUMENT.read_text()
