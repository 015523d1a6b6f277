"""What docs/adapter-bank.md shows is run, against a daemon and a tiny model."""

from __future__ import annotations

import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kit.llama import TOKENS, load_by_peft, save_adapter, tiny_llama
from kit.processes import Daemon

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "adapter-bank.md").read_text()

pytestmark = pytest.mark.e2e


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm") as arena:
        it = Daemon(tmp_path, Path(arena), tmp_path / "models")
        it.models.mkdir()
        yield it.start("--budget", "64MiB")
        it.kill(signal.SIGTERM)
        it.check()


def test_the_example_answers_each_row_with_its_adapter(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama(dtype=torch.float32)
    model.generation_config.eos_token_id = None
    alone = [model]
    with daemon.connect() as shelf:
        for seed, name in enumerate(("acme/support", "acme/legal")):
            directory = save_adapter(model, daemon.models / str(seed), seed=seed)
            shelf.register(name, directory)
            alone.insert(seed * 2, load_by_peft(model, directory))
    prompt = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}
    expected = [one.generate(**prompt, max_new_tokens=8, do_sample=False) for one in alone]
    monkeypatch.setenv("WARMSHELF_ADDRESS", daemon.address)
    found = re.search(r"<!-- example: .*?-->\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {"model": model, "prompts": {key: value.expand(3, -1) for key, value in prompt.items()}}
    exec(found[1], names)
    assert torch.equal(names["tokens"], torch.cat(expected))
