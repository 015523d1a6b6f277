"""Engines and servers of vLLM, each a process of the environment that has it, and the files that they are given."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kit.adapters import PREFIX, adapter_files, pair
from kit.ports import free_port
from kit.processes import eventually

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-vllm/bin/python"
SERVER_SECONDS = 240
ADAPTERS = ("paris", "rome", "madrid")
BASE = "acme/base"
LORA = {"enable_lora": True, "max_loras": 1, "max_cpu_loras": 2, "max_lora_rank": 16}
HIDDEN = 576
"""Columns of the base's first projection."""

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "fork",
    "TRANSFORMERS_VERBOSITY": "error",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Files:
    """What lies on disk."""

    base: Path
    adapters: Path
    mine: Path  # for what tests write, where the daemon may read too


@dataclass(frozen=True)
class Answers:
    """Tokens of vLLM with the files from disk, without warmshelf."""

    base: list[int]
    adapters: Mapping[str, list[int]]


def environment(address: str, **more: str) -> dict[str, str]:
    """Return the environment of a process that finds a daemon there."""
    if not PYTHON.exists():
        pytest.fail("there is no .venv-vllm: run 'make test-vllm', which makes it")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("WARMSHELF_", "VLLM_", "PYTHON"))}
    return {**kept, **QUIET, "WARMSHELF_ADDRESS": address, **more}


class EngineFailed(Exception):  # noqa: N818 - says what happened
    """The engine answered with an error."""


class EngineProcess:
    """The process of ``vllm_engine.py``; its methods are called by name."""

    def __init__(self, address: str, log: Path, **more: str) -> None:
        self._log = log
        more.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        with log.open("ab") as noise:
            self.process = subprocess.Popen(
                [str(PYTHON), str(ROOT / "tests/kit/vllm_engine.py")],
                env=environment(address, **more),
                cwd=log.parent,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=noise,
                text=True,
            )

    def ask(self, method: str, **arguments: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([method, arguments]), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            pytest.fail(f"the engine ended before it answered {method}:\n{self._log.read_text()[-6000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise EngineFailed(answer["error"])
        return answer["ok"]

    def lines_with(self, text: str) -> list[str]:
        """Return the lines of its log that have a text in them."""
        return [line for line in self._log.read_text().splitlines() if text in line]

    def end(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate(timeout=30)


class Server:
    """vLLM's OpenAI server. It ends with everything that it started."""

    def __init__(self, address: str, model: Path, log: Path, *options: str, **more: str) -> None:
        self._log = log
        self.url = f"http://127.0.0.1:{free_port()}"
        command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        command += [
            "--host",
            "127.0.0.1",
            "--port",
            self.url.rpartition(":")[2],
            "--dtype",
            "bfloat16",
            "--enforce-eager",
        ]
        command += ["--max-model-len", "256", "--max-num-seqs", "8", *options]
        with log.open("ab") as noise:
            self.process = subprocess.Popen(
                command,
                env=environment(address, VLLM_ALLOW_RUNTIME_LORA_UPDATING="True", **more),
                cwd=log.parent,
                stdout=noise,
                stderr=noise,
                start_new_session=True,
            )

    def wait_ready(self) -> Server:
        eventually(self._answers, "vLLM's server answers", SERVER_SECONDS)
        return self

    def post(self, path: str, **body: Any) -> tuple[int, Mapping[str, Any]]:
        """Return status and answer."""
        request = urllib.request.Request(
            f"{self.url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def ask(self, model: str) -> tuple[int, Mapping[str, Any]]:
        """Ask the question as a user does."""
        chat = [{"role": "user", "content": "What is the capital of France?"}]
        return self.post(
            "/v1/chat/completions", model=model, messages=chat, temperature=0, max_tokens=12, return_token_ids=True
        )

    def tokens(self, model: str) -> list[int]:
        status, answer = self.ask(model)
        assert status == 200, answer
        return list(answer["choices"][0]["token_ids"])

    def log(self) -> str:
        return self._log.read_text()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def is_healthy(self, seconds: float = 2.0) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=seconds) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _answers(self) -> bool:
        if self.process.poll() is not None:
            pytest.fail(f"vLLM's server ended:\n{self.log()[-6000:]}")
        return self.is_healthy()


def made_adapters(model: Path, directory: Path) -> Path:
    """Return the directory of the three adapters, trained now if they were not yet."""
    if not directory.exists():
        partial = directory.with_name(f"{directory.name}.{os.getpid()}")
        command = [sys.executable, str(ROOT / "tests/kit/lessons.py"), str(model), str(partial)]
        subprocess.run(command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, check=True, capture_output=True)
        partial.rename(directory)
    return directory


def write_adapter(
    directory: Path, rank: int = 4, module: str = "model.layers.0.self_attn.q_proj", **config: object
) -> Path:
    """Write an adapter of one module."""
    directory.mkdir()
    shapes = pair(module, rank, HIDDEN, HIDDEN)
    if config.get("use_dora"):
        shapes[f"{PREFIX}{module}.lora_magnitude_vector"] = (HIDDEN,)
    for name, data in adapter_files(shapes, r=rank, **config).items():
        (directory / name).write_bytes(data)
    return directory
