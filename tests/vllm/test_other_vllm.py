"""A vLLM whose methods are not as the plugin knows them: adapters come as directories in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kit.processes import Daemon
from kit.vllm_processes import ADAPTERS, LORA, Answers, EngineProcess


@pytest.fixture(scope="module")
def engine(start_engine: Callable[..., EngineProcess], daemon: Daemon, prepared: Path) -> EngineProcess:
    it = start_engine(daemon.address)
    it.ask("put", fault="OtherSignature")
    it.ask("make", model=str(prepared), load_format="warmshelf", **LORA)
    return it


def test_adapters_answer_as_from_disk_and_one_warning_says_why_they_are_files(
    engine: EngineProcess, from_disk: Answers
) -> None:
    found = {name: engine.ask("first_answer", adapter=f"ad/{name}") for name in ADAPTERS}
    assert {name: one["tokens"] for name, one in found.items()} == from_disk.adapters
    assert all(one["path"].startswith("/dev/shm/warmshelf-vllm-") for one in found.values())
    assert len(engine.lines_with("another from_local_dir than warmshelf knows")) == 1


def test_the_directories_are_removed_with_the_process(engine: EngineProcess) -> None:
    path = Path(engine.ask("first_answer", adapter="ad/rome")["path"])
    assert (path / "adapter_model.safetensors").exists()
    engine.end()
    assert not path.parent.exists()
