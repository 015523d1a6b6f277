"""The example server answers concurrent requests, each with the adapter that it names by ID."""

from __future__ import annotations

import json
import signal
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from examples import multi_lora_server
from examples.multi_lora_server import Batcher, Server
from kit.llama import load_by_peft, save_adapter, tiny_llama
from kit.processes import Daemon

pytestmark = pytest.mark.e2e

IDS = [f"acme/{number}" for number in range(9)]
PROMPTS = ["a b c", "d e f g h i j"]


class Letters:
    """A tokenizer of single letters, with what the server uses of one."""

    def __call__(self, prompts: list[str], **_: Any) -> dict[str, torch.Tensor]:
        rows = [[ord(word) - ord("a") + 1 for word in prompt.split()] for prompt in prompts]
        width = max(map(len, rows))
        return {
            "input_ids": torch.tensor([[0] * (width - len(row)) + row for row in rows]),
            "attention_mask": torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows]),
        }

    def batch_decode(self, rows: torch.Tensor, **_: Any) -> list[str]:
        return [" ".join(map(str, row.tolist())) for row in rows]


@pytest.fixture(scope="module")
def model() -> Any:
    model = tiny_llama(dtype=torch.float32)
    model.generation_config.eos_token_id = None
    return model


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    root = tmp_path_factory.mktemp("server")
    with tempfile.TemporaryDirectory(prefix="warmshelf-test-", dir="/dev/shm", ignore_cleanup_errors=True) as arena:
        it = Daemon(root, Path(arena), root / "models")
        it.models.mkdir()
        yield it.start("--budget", "64MiB")
        it.kill(signal.SIGTERM)
        it.check()


@pytest.fixture(scope="module")
def expected(daemon: Daemon, model: Any) -> dict[tuple[str | None, str], str]:
    """What each prompt is answered alone: by peft with an adapter, by the model without."""
    found: dict[tuple[str | None, str], str] = {}
    with daemon.connect() as shelf:
        for seed, name in enumerate([*IDS, None]):
            alone = model
            if name is not None:
                directory = save_adapter(model, daemon.models / str(seed), seed=seed)
                shelf.register(name, directory)
                alone = load_by_peft(model, directory)
            for prompt in PROMPTS:
                asked = Letters()([prompt])
                tokens = alone.generate(**asked, max_new_tokens=8, do_sample=False)
                found[name, prompt] = Letters().batch_decode(tokens[:, asked["input_ids"].shape[1] :])[0]
        wide = save_adapter(model, daemon.models / "wide", r=32)
        shelf.register("acme/wide", wide)
    assert len(set(found.values())) > len(found) // 2
    return found


@pytest.fixture
def server(daemon: Daemon, model: Any, expected: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(multi_lora_server, "ANSWER_TOKENS_MAX", 8)
    batcher = Batcher(model, Letters())
    with daemon.connect() as shelf, batcher.running(), Server(("127.0.0.1", 0), batcher, shelf) as it:
        thread = threading.Thread(target=it.serve_forever)
        thread.start()
        yield it
        it.shutdown()
        thread.join()
        assert shelf.leases() == []


def ask(server: Server, body: object) -> tuple[int, dict[str, Any]]:
    url = f"http://127.0.0.1:{server.server_port}/generate"
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_concurrent_requests_are_batched_and_each_has_its_own_adapter(server: Server, expected: Any) -> None:
    """20 requests for nine adapters and none, over 8 slots; prompts of two lengths in one batch."""
    wanted = list(expected)
    with ThreadPoolExecutor(len(wanted)) as pool:
        answers = list(pool.map(lambda one: ask(server, {"prompt": one[1], "adapter": one[0]}), wanted))
    for (name, prompt), (status, answer) in zip(wanted, answers, strict=True):
        assert (status, answer) == (200, {"adapter": name or "", "text": expected[name, prompt]})
    assert sum(server.batcher.batch_sizes) == len(wanted)
    assert max(server.batcher.batch_sizes) > 1


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({"prompt": "a", "adapter": "nobody"}, 404, "ARTIFACT_NOT_FOUND"),
        ({"prompt": "a", "adapter": "../etc"}, 400, "INVALID_ID"),
        ({"prompt": "a", "adapter": "acme/wide"}, 409, "RANK_TOO_LARGE"),
        ({"prompt": "a", "adapter": 3}, 400, "INVALID_REQUEST"),
        ({"prompt": ""}, 400, "INVALID_REQUEST"),
        (b"{not json", 400, "INVALID_REQUEST"),
    ],
)
def test_a_request_that_cannot_be_served_says_why_and_hurts_no_other(
    server: Server, expected: Any, body: object, status: int, reason: str
) -> None:
    good = {"prompt": PROMPTS[0], "adapter": IDS[0]}
    with ThreadPoolExecutor(3) as pool:
        bad, first, second = pool.map(lambda one: ask(server, one), [body, good, good])
    assert (bad[0], bad[1]["reason"]) == (status, reason)
    assert first == second == (200, {"adapter": IDS[0], "text": expected[IDS[0], PROMPTS[0]]})
