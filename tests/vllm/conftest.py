"""A daemon with a real base and three trained adapters, and what vLLM answers with the same files from disk."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from examples.demo_model import model_directory
from kit.processes import Daemon
from kit.vllm_processes import ADAPTERS, BASE, LORA, ROOT, Answers, EngineProcess, Files, made_adapters

BUDGET = "900MiB"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    cache = ROOT / "build/demo"
    cache.mkdir(parents=True, exist_ok=True)
    base = model_directory(cache)
    (ROOT / "build/vllm").mkdir(exist_ok=True)
    return Files(base, made_adapters(base, ROOT / "build/vllm/adapters"), tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def options(files: Files) -> tuple[str, ...]:
    """What the daemon is started with, each time."""
    return ("--budget", BUDGET, "--allow-source", f"file://{files.mine}")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, files: Files, options: tuple[str, ...]) -> Iterator[Daemon]:
    """A daemon of the module's own, with base and adapters registered and the base resident."""
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm") as arena:
        it = Daemon(tmp_path_factory.mktemp("daemon"), Path(arena), ROOT / "build").start(*options)
        with it.connect() as shelf:
            shelf.register(BASE, files.base)
            for name in ADAPTERS:
                shelf.register(f"ad/{name}", files.adapters / name, base=BASE)
            for _ in shelf.load(BASE):
                pass
        yield it
        it.kill(signal.SIGTERM)
        it.check()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, daemon: Daemon) -> Path:
    """A directory of the base without weights, as the command makes it."""
    directory = tmp_path_factory.mktemp("prepared") / "model"
    command = [sys.executable, "-m", "warmshelf.cli", "--address", daemon.address]
    subprocess.run([*command, "prepare-model", BASE, str(directory)], check=True, capture_output=True)
    assert not list(directory.glob("*.safetensors"))
    return directory


@pytest.fixture(scope="module")
def start_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., EngineProcess]]:
    engines: list[EngineProcess] = []

    def start(address: str) -> EngineProcess:
        engines.append(EngineProcess(address, tmp_path_factory.mktemp("engine") / "engine.log"))
        return engines[-1]

    yield start
    for engine in engines:
        engine.end()


@pytest.fixture(scope="session")
def from_disk(tmp_path_factory: pytest.TempPathFactory, files: Files) -> Answers:
    engine = EngineProcess("unix:///nowhere/api.sock", tmp_path_factory.mktemp("disk") / "engine.log", VLLM_PLUGINS="")
    engine.ask("make", model=str(files.base), **LORA)
    base = engine.ask("answer")
    answers = {name: engine.ask("answer", adapter=name, path=str(files.adapters / name)) for name in ADAPTERS}
    engine.end()
    assert len({tuple(one) for one in (base, *answers.values())}) == 1 + len(ADAPTERS)  # each adapter does something
    return Answers(base, answers)
