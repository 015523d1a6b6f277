"""A daemon, a tiny Llama, and adapters of it that a shelf knows."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import warmshelf
from kit.llama import save_adapter, tiny_llama
from kit.processes import Daemon

EVERYWHERE = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

ADAPTERS: dict[str, dict[str, Any]] = {
    "plain": {"r": 4, "lora_alpha": 8, "target_modules": EVERYWHERE},
    "rank1": {"r": 1, "lora_alpha": 3, "target_modules": ["q_proj", "v_proj"]},
    "rank8": {"r": 8, "lora_alpha": 4, "target_modules": ["down_proj"]},
    "rslora": {"r": 8, "lora_alpha": 8, "use_rslora": True, "target_modules": ["q_proj", "up_proj"]},
    "patterns": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "v_proj", "o_proj"],
        "rank_pattern": {"v_proj": 8, r".*\.(0|2)\.self_attn\.o_proj": 2},
        "alpha_pattern": {"layers.1.self_attn.q_proj": 32, "v_proj": 2},
    },
    "one layer": {"r": 4, "target_modules": EVERYWHERE, "layers_to_transform": [1]},
}
"""Mixed ranks, scalings and modules; all fit a bank of rank 8."""


def artifact_id(name: str) -> str:
    return f"acme/{name.replace(' ', '-')}"


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    root = tmp_path_factory.mktemp("bank")
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm", ignore_cleanup_errors=True) as arena:
        it = Daemon(root, Path(arena), root / "models")
        it.models.mkdir()
        yield it.start("--budget", "64MiB")
        it.kill(signal.SIGTERM)
        it.check()


@pytest.fixture(scope="session")
def model() -> Any:
    return tiny_llama(dtype=torch.float32)


@pytest.fixture(scope="session")
def directories(daemon: Daemon, model: Any) -> dict[str, Path]:
    """The adapters as PEFT saved them, by name; registered."""
    with daemon.connect() as shelf:
        made = {}
        for seed, (name, fields) in enumerate(ADAPTERS.items()):
            made[name] = save_adapter(model, daemon.models / name.replace(" ", "-"), seed=seed, **fields)
            shelf.register(artifact_id(name), made[name])
        return made


@pytest.fixture
def shelf(daemon: Daemon, directories: dict[str, Path]) -> Iterator[warmshelf.Shelf]:
    """At the end nobody holds a lease."""
    with daemon.connect() as it:
        yield it
        assert it.leases() == []


@pytest.fixture
def registered(daemon: Daemon, shelf: warmshelf.Shelf, model: Any) -> Iterator[Callable[..., str]]:
    """Makes an adapter, registers it, and removes it at the end."""
    made: list[str] = []

    def make(name: str, *, of: Any = model, replace: bool = False, **fields: Any) -> str:
        directory = save_adapter(of, daemon.models / f"{name}-{len(made)}", **fields)
        shelf.register(name, directory, replace=replace)
        made.append(name)
        return name

    yield make
    for name in {*made}:
        shelf.remove(name)
