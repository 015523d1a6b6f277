"""The code in docs/engines.md does what the page says, block after block, as a reader would run it."""

from __future__ import annotations

import re
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

import warmshelf
import warmshelf.transformers
from kit.llama import load_by_peft, logits, save_adapter, save_model, tiny_llama
from kit.processes import Daemon
from kit.sglang_engine import Engine

PAGE = Path(__file__).resolve().parents[2] / "docs" / "engines.md"


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_every_block_runs_and_says_what_it_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = tmp_path / "models"
    base, sales = tiny_llama(), save_adapter(tiny_llama(), models / "sales", seed=3, use_dora=True)
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm", ignore_cleanup_errors=True) as arena:
        daemon = Daemon(tmp_path, Path(arena), models).start("--budget", "64MiB")
        monkeypatch.setenv("WARMSHELF_ADDRESS", daemon.address)
        try:
            check_page(daemon, models, base, sales)
        finally:
            daemon.kill(signal.SIGTERM)
        daemon.check()


def check_page(daemon: Daemon, models: Path, base: Any, sales: Path) -> None:
    with daemon.connect() as shelf:
        shelf.register("acme/base", save_model(base, models / "base"))
        shelf.register("acme/support-lora", save_adapter(base, models / "support"), base="acme/base")
        shelf.register("acme/sales-lora", sales, base="acme/base")
    names: dict[str, Any] = {"device": "cpu", "engine": Engine()}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), names)
    assert torch.equal(logits(names["model"]), logits(load_by_peft(tiny_llama(), sales)))
    state = base.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in names["tensors"].items())
    assert names["engine"].given.keys() == {"acme/support-lora"}
    assert isinstance(names["shelf"], warmshelf.Shelf)
    names["shelf"].close()
