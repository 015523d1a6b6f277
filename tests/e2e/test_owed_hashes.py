"""The SHA-256 of a `.tensors` base that were not compared before the daemon died: they are compared after adoption."""

from __future__ import annotations

import contextlib
import re
import signal
import sqlite3
from pathlib import Path

import pytest
import torch
from tensorizer import TensorSerializer

from kit.processes import Daemon, eventually
from warmshelf import ArtifactState

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

SHA256 = b"\x01\x20"
BUDGET = ("--budget", "64MiB")


def write(path: Path, *, lies: bool) -> None:
    serializer = TensorSerializer(str(path))
    serializer.write_state_dict({"first": torch.arange(1000), "last": torch.ones(77)})
    serializer.close()
    if lies:  # in the SHA-256 of the last tensor, which its CRC32 does not cover
        content = bytearray(path.read_bytes())
        *_, last = re.finditer(re.escape(b"\x29\x00\x02\x00\x04") + b"...." + re.escape(SHA256), content, re.DOTALL)
        content[last.end()] ^= 1
        path.write_bytes(bytes(content))


def killed_before_the_comparison(daemon: Daemon, models: Path) -> None:
    """Load a base and die between its name and READY: nothing has been compared but the CRC32."""
    daemon.start(*BUDGET, failpoints="load.published=kill")
    with daemon.connect() as shelf:
        shelf.register("a", f"file://{models}/a.tensors")
        for _ in shelf.load("a", detach=True):
            pass
        daemon.wait()
    (models / "a.tensors").unlink()  # what comes now can only come from the segment
    assert len(daemon.segments()) == 1


def test_a_wrong_hash_is_found_after_adoption(daemon: Daemon, models: Path) -> None:
    write(models / "a.tensors", lies=True)
    killed_before_the_comparison(daemon, models)
    daemon.start(*BUDGET)
    with daemon.connect() as shelf:
        eventually(lambda: shelf.get("a").state is ArtifactState.FAILED, "it is withdrawn")
        failure = shelf.get("a").failure
        assert failure is not None
        assert failure.reason == "DIGEST_MISMATCH"
        assert "last" in failure.message
        eventually(lambda: daemon.segments() == [], "its bytes are gone")


def test_right_hashes_are_compared_once_and_then_no_longer_owed(daemon: Daemon, models: Path) -> None:
    write(models / "a.tensors", lies=False)
    killed_before_the_comparison(daemon, models)
    assert is_owed(daemon)
    daemon.start(*BUDGET)
    with daemon.connect() as shelf:
        eventually(lambda: shelf.get("a").digest != "", "hashes are compared, the digest is known")
    daemon.kill(signal.SIGTERM)
    assert not is_owed(daemon)
    daemon.start(*BUDGET)
    with daemon.connect() as shelf:
        shelf.acquire("a", resident_only=True).release()


def test_an_adapter_owes_nothing(daemon: Daemon, models: Path) -> None:
    prefix = "base_model.model.q_proj"
    serializer = TensorSerializer(str(models / "adapter_model.tensors"))
    pair = {f"{prefix}.lora_A.weight": torch.ones(4, 16), f"{prefix}.lora_B.weight": torch.ones(16, 4)}
    serializer.write_state_dict(pair)
    serializer.close()
    (models / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "target_modules": ["q_proj"]}')
    daemon.start(*BUDGET, failpoints="load.published=kill")
    with daemon.connect() as shelf:
        shelf.register("a", f"file://{models}")
        for _ in shelf.load("a", detach=True):
            pass
        daemon.wait()
    assert not is_owed(daemon)


def is_owed(daemon: Daemon) -> bool:
    """Ask the registry's file, which no daemon has open."""
    with contextlib.closing(sqlite3.connect(f"file:{daemon.registry}?mode=ro", uri=True)) as opened:
        tables = [name for (name,) in opened.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return "hashes_owed" in repr([opened.execute(f"SELECT * FROM {table}").fetchall() for table in tables])
