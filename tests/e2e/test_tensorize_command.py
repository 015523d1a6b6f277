"""`warmshelf tensorize` and `untensorize` as commands, and what they write through a daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tensorizer import TensorSerializer

import warmshelf.torch
from kit.encrypted import KEY_VARIABLE, raw, source_config
from kit.processes import Daemon, eventually
from warmshelf.tensorize import Secret, tensorize

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

KEY = bytes(range(7, 39))
STATE = {"a.weight": torch.randn(64, 64).bfloat16(), "b.weight": torch.arange(100), "scalar": torch.tensor(1.5)}


def run(
    *arguments: object, code: str = "import sys; from warmshelf.cli import main; sys.exit(main())"
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def hf(models: Path) -> Path:
    path = models / "hf"
    path.mkdir()
    save_file(STATE, path / "model.safetensors")
    (path / "config.json").write_text('{"model_type": "llama"}')
    return path


def test_there_and_back_through_a_daemon_with_a_key(daemon: Daemon, models: Path, hf: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(KEY)
    done = run("tensorize", hf, models / "there", "--key-file", tmp_path / "key")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"wrote model.tensors to {models}/there: 3 tensors, 8.8 KiB, encrypted\n"
    daemon.start("--budget", "64MiB", *source_config(tmp_path / "daemon.toml", models), env={KEY_VARIABLE: KEY.hex()})
    with daemon.connect() as shelf:
        for name in ("hf", "there"):
            shelf.register(name, f"file://{models}/{name}")
        with shelf.acquire("there", timeout=20) as lease:
            found = warmshelf.torch.tensors(lease)
            assert {name: raw(t) for name, t in found.items()} == {name: raw(t) for name, t in STATE.items()}
            assert lease.files["config.json"] == b'{"model_type": "llama"}'
        shelf.acquire("hf", timeout=20).release()
        eventually(lambda: shelf.get("hf").digest == shelf.get("there").digest != "", "both are the same content")
    done = run("--output", "json", "untensorize", models / "there", tmp_path / "back", "--key-file", tmp_path / "key")
    assert json.loads(done.stdout)["file_names"] == ["model.safetensors"]
    assert {n: raw(t) for n, t in load_file(tmp_path / "back" / "model.safetensors").items()} == {
        name: raw(t) for name, t in STATE.items()
    }


def test_a_refusal_names_its_reason_and_leaves_nothing(hf: Path, tmp_path: Path) -> None:
    done = run("tensorize", tmp_path / "none", tmp_path / "out")
    assert (done.returncode, done.stderr.split(":")[0]) == (1, "SOURCE_NOT_FOUND")
    tensorize(hf, tmp_path / "out", secret=Secret(KEY))
    (tmp_path / "key").write_bytes(b"a canary of a passphrase")
    done = run("untensorize", tmp_path / "out", tmp_path / "back", "--key-file", tmp_path / "key")
    assert (done.returncode, done.stderr.split(":")[0]) == (1, "DECRYPTION_FAILED")
    assert "canary" not in done.stdout + done.stderr
    assert not (tmp_path / "back").exists()


def test_without_the_library_the_command_says_what_to_install(hf: Path, tmp_path: Path) -> None:
    code = "import sys; sys.modules['tensorizer'] = None; from warmshelf.cli import main; sys.exit(main())"
    done = run("tensorize", hf, tmp_path / "out", code=code)
    assert done.returncode == 2
    assert done.stderr == "warmshelf: this command needs tensorizer: pip install 'warmshelf[tensorizer]'\n"
    assert not (tmp_path / "out").exists()


def test_on_a_terminal_there_is_a_bar(hf: Path, tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, "-W", "ignore", "-m", "warmshelf.cli", "tensorize", str(hf), str(tmp_path / "out")]
    with subprocess.Popen(
        command, stderr=theirs, stdout=subprocess.PIPE, env={**os.environ, "TERM": "xterm"}
    ) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                seen += os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
    os.close(ours)
    assert process.returncode == 0
    assert b"hf" in seen


def test_a_tied_output_layer_of_a_base_is_one_tensor_with_two_names(running: Daemon, models: Path) -> None:
    """B12: the layout says so, both have the values of the base, and content is the same as if they were two."""
    module = torch.nn.Module()
    module.embed_tokens = torch.nn.Embedding(32, 16)
    module.lm_head = torch.nn.Linear(16, 32, bias=False)
    module.lm_head.weight = module.embed_tokens.weight
    for name, config in (("tied", b'{"tie_word_embeddings": true}'), ("apart", b"{}")):
        (models / name).mkdir()
        (models / name / "config.json").write_bytes(config)
        serializer = TensorSerializer(str(models / name / "model.tensors"))
        serializer.write_module(module)
        serializer.close()
    weight = raw(module.embed_tokens.weight.detach())
    with running.connect() as shelf:
        for name, places in (("tied", 1), ("apart", 2)):
            artifact = shelf.register(name, f"file://{models}/{name}")
            assert artifact.inspection is not None
            assert (artifact.inspection.tensor_count, artifact.inspection.tensor_bytes) == (2, places * len(weight))
            with shelf.acquire(name, timeout=20) as lease:
                assert {bytes(lease[tensor]) for tensor in ("embed_tokens.weight", "lm_head.weight")} == {weight}
                assert len({spec.offset_bytes for spec in lease.specs.values()}) == places
            eventually(
                lambda name=name: shelf.get(name).digest != "", "its SHA-256 are compared, twice for these bytes"
            )
