"""Under ``python -O`` and with a tripwire in it, the daemon does nothing but its own work, and the same work."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.adapters import adapter_files, pair
from kit.models import pattern, write_model
from kit.processes import Daemon, read_all
from kit.tripwires import Tripwire
from warmshelf import Shelf
from warmshelf.errors import WarmshelfError

pytestmark = pytest.mark.e2e

SECRET = Path("/etc/hostname")
BUDGET = ("--budget", "64MiB")


@pytest.fixture
def tripwire(daemon: Daemon, tmp_path: Path) -> Tripwire:
    (tmp_path / "empty").mkdir()  # where names without a directory lead
    return Tripwire(tmp_path, (daemon.arena, tmp_path))


def _answer(call: object, *arguments: object, **options: object) -> str:
    """What the daemon says to a call that it should refuse."""
    try:
        call(*arguments, **options)  # type: ignore[operator]
    except WarmshelfError as error:
        return error.reason
    return "accepted"


def _sources(models: Path) -> None:
    write_model(models / "a.safetensors", 1, size=3 << 20)
    write_model(models / "b.safetensors", 2, size=3 << 20)
    (models / "lora").mkdir()
    for name, data in adapter_files(pair("q_proj")).items():
        (models / "lora" / name).write_bytes(data)
    (models / "pickled.bin").write_bytes(b"\x80\x04\x95\x15\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system")
    (models / "cut.safetensors").write_bytes((models / "a.safetensors").read_bytes()[: 2 << 20])
    (models / "nonsense.safetensors").write_bytes(pattern(7, 4096))
    (models / "out").symlink_to(SECRET)


def _refusals(shelf: Shelf, models: Path) -> Iterator[str]:
    for name in ("pickled.bin", "cut.safetensors", "nonsense.safetensors", "out", "../../etc/hostname", "none"):
        yield _answer(shelf.register, f"bad/{len(name)}", f"file://{models}/{name}")
    yield _answer(shelf.register, "bad/outside", f"file://{SECRET}")
    yield _answer(shelf.register, "bad/host", "http://127.0.0.1:9/model.safetensors")
    yield _answer(shelf.register, "../a", f"file://{models}/a.safetensors")
    yield _answer(shelf.register, "a", f"file://{models}/b.safetensors")
    yield _answer(shelf.acquire, "a", expected_digest="blake3:" + "0" * 64, timeout=20)
    yield _answer(shelf.acquire, "unknown", timeout=20)


def _life(daemon: Daemon, models: Path) -> list[str]:
    """Register, load, map, stream, evict, push, replace, remove, and what is refused; return all answers."""
    _sources(models)
    answers = []
    with daemon.connect() as shelf, daemon.connect(arena="/nonexistent") as remote:
        for artifact_id, name in (("a", "a.safetensors"), ("b", "b.safetensors"), ("l", "lora")):
            shelf.register(artifact_id, f"file://{models}/{name}")
            with shelf.acquire(artifact_id, timeout=20) as mapped, remote.acquire(artifact_id, timeout=20) as streamed:
                assert read_all(mapped) == read_all(streamed)
                answers += [mapped.transport, streamed.transport]
        answers += _refusals(shelf, models)
        shelf.push("pushed", path=models / "lora", base="none")
        shelf.acquire("pushed", timeout=20).release()
        answers += [str(shelf.verify("b")), shelf.evict("b").state.value]
        shelf.register("b", f"file://{models}/a.safetensors", replace=True)
        with shelf.acquire("b", timeout=20) as lease:
            answers.append(f"generation {lease.generation}")
        shelf.remove("pushed")
        answers += [artifact.artifact_id for artifact in shelf.list()]
    return answers


@pytest.fixture
def answers_without_o(tmp_path: Path, models: Path) -> list[str]:
    """What a daemon says that runs as usual."""
    (tmp_path / "usual").mkdir()
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm") as arena:
        usual = Daemon(tmp_path / "usual", Path(arena), models).start(*BUDGET)
        try:
            answers = _life(usual, models)
        finally:
            usual.kill()
    for path in models.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return answers


def test_a_whole_life_under_python_o_trips_nothing_and_is_the_usual_one(
    answers_without_o: list[str], daemon: Daemon, models: Path, tripwire: Tripwire
) -> None:
    daemon.start(*BUDGET, env=tripwire.environ)
    tripwire.serve()
    answers = _life(daemon, models)
    tensors = write_model(models / "a.safetensors", 1, size=3 << 20)
    daemon.kill()
    for path in models.glob("*.safetensors"):
        path.unlink()
    tripwire.serve(serving=False)
    daemon.start(*BUDGET, env=tripwire.environ)
    tripwire.serve()
    with daemon.connect() as shelf, shelf.acquire("a", timeout=20, resident_only=True) as lease:
        assert read_all(lease) == tensors
    assert daemon.kill(signal.SIGTERM) == 0
    assert tripwire.told() == []
    assert answers == answers_without_o
    assert {"accepted", "INTERNAL"}.isdisjoint(answers)


TRIPS = {
    "pickle.find_class": "import pickle; pickle.loads(b'cos\\ngetpid\\n.')",
    "import pickle": "import pickle",
    "exec": "eval('1')",
    "compile": "compile('1', 'x', 'eval')",
    "subprocess.Popen": "import subprocess; subprocess.run(['true'])",
    "os.system": "import os; os.system('true')",
    "os.fork": "import os; os.fork() or os._exit(0)",
    "socket.connect": "import socket; socket.socket().connect_ex(('127.0.0.1', 9))",
    "socket.getaddrinfo": "import socket; socket.getaddrinfo('127.0.0.1', 9)",
    "ctypes.dlopen": "import ctypes; ctypes.CDLL(None)",
    f"open {SECRET}": f"open('{SECRET}')",
    "open ../x": "open('../x')",
    "os.remove /dev/shm/none": "import os; os.remove('/dev/shm/none')",
}


@pytest.mark.parametrize("event", TRIPS)
def test_the_tripwire_tells_of(event: str, tripwire: Tripwire, tmp_path: Path) -> None:
    (tmp_path / "empty" / "deed.py").write_text(TRIPS[event])
    tripwire.serve()
    environ = {**os.environ, **tripwire.environ}
    subprocess.run([sys.executable, "deed.py"], cwd=tmp_path / "empty", env=environ, check=False, capture_output=True)
    assert [line for line in tripwire.told() if line.startswith(event)]
