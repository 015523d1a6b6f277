"""A small HTTP server for one model and any number of adapters: each request names its own by ID.

    python -m examples.multi_lora_server MODEL_DIRECTORY [--address ADDRESS] [--port PORT]

    curl localhost:PORT/generate -d '{"prompt": "What is the capital of France?", "adapter": "acme/support-lora"}'

Requests that come while others are answered wait, and are then answered together as the rows of one batch, each
with its own adapter or none. Nothing is registered or configured here: an ID that the shelf knows works at once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import warmshelf
from warmshelf.errors import ArtifactNotFound, Code, Draining, InvalidRequest, WarmshelfError
from warmshelf.torch import AdapterBank, apply_bank

SLOT_COUNT, RANK_MAX, ROW_COUNT_MAX = 8, 16, 32
ANSWER_TOKENS_MAX = 64
BODY_BYTES_MAX = 1 << 20
PROMPT_CHARS_MAX = 16_384
SLOT_WAIT_SECONDS = 30.0
"""How long a request waits for a slot while all are in use, before it is told to try again."""

STATUSES = {
    Code.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    Code.NOT_FOUND: HTTPStatus.NOT_FOUND,
    Code.FAILED_PRECONDITION: HTTPStatus.CONFLICT,
    Code.RESOURCE_EXHAUSTED: HTTPStatus.SERVICE_UNAVAILABLE,
    Code.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
}
"""What the reasons of a refusal are in HTTP; all others are ours."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt that waits for its answer, and the slot of its adapter, held until then."""

    prompt: str
    slot: int
    answer: Future[str] = field(default_factory=Future)


class Batcher:
    """Answers requests in batches, in a thread of its own, which alone runs the model.

    Attributes:
        batch_sizes: of all batches so far. Only that thread adds to it.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.batch_sizes: list[int] = []
        self.bank = AdapterBank(model, slot_count=SLOT_COUNT, rank_max=RANK_MAX, row_count_max=ROW_COUNT_MAX)
        self._model, self._tokenizer = model, tokenizer
        self._waiting: queue.Queue[Request | None] = queue.Queue(maxsize=8 * ROW_COUNT_MAX)
        self._thread = threading.Thread(target=self._run, name="batches", daemon=True)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Answer within the body; whoever still waits at its end is told so."""
        with apply_bank(self._model, self.bank):
            self._thread.start()
            try:
                yield
            finally:
                self._waiting.put(None)
                self._thread.join()

    def ask(self, prompt: str, slot: int) -> str:
        """Return the answer to a prompt, by the adapter in a slot or by none."""
        request = Request(prompt, slot)
        self._waiting.put(request)
        return request.answer.result()

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            self.batch_sizes.append(len(batch))
            try:
                texts = self._answers(batch)
            except Exception as error:  # noqa: BLE001 - whatever it is, each of them is told, and the next batch is run
                _fail(batch, error)
            else:
                for request, text in zip(batch, texts, strict=True):
                    request.answer.set_result(text)

    def _next(self) -> list[Request] | None:
        """Wait for a request and return all that wait by now; None at the end."""
        batch: list[Request] = []
        while not batch or (len(batch) < ROW_COUNT_MAX and not self._waiting.empty()):
            request = self._waiting.get()
            if request is None:
                _fail(batch, Draining("the server stops"))
                return None
            batch.append(request)
        return batch

    def _answers(self, batch: list[Request]) -> list[str]:
        asked = self._tokenizer(
            [request.prompt for request in batch], return_tensors="pt", padding=True, padding_side="left"
        )
        with self.bank.select([request.slot for request in batch]), torch.inference_mode():
            tokens = self._model.generate(**asked, max_new_tokens=ANSWER_TOKENS_MAX, do_sample=False)
        texts = self._tokenizer.batch_decode(tokens[:, asked["input_ids"].shape[1] :], skip_special_tokens=True)
        return [text.strip() for text in texts]


def _fail(batch: list[Request], error: Exception) -> None:
    for request in batch:
        request.answer.set_exception(error)


class Server(ThreadingHTTPServer):
    """Takes requests, a thread for each."""

    daemon_threads = True

    def __init__(self, where: tuple[str, int], batcher: Batcher, shelf: warmshelf.Shelf) -> None:
        super().__init__(where, Handler)
        self.batcher = batcher
        self.shelf = shelf

    def answer(self, body: bytes) -> dict[str, str]:
        """Answer one request: its adapter is in a slot for as long as it takes, and fails nobody else."""
        prompt, adapter = _parsed(body)
        with self.batcher.bank.slots_for(self.shelf, [adapter], wait_seconds=SLOT_WAIT_SECONDS) as slots:
            return {"adapter": adapter or "", "text": self.batcher.ask(prompt, slots[0])}


class Handler(BaseHTTPRequestHandler):
    """POST /generate."""

    server: Server

    def do_POST(self) -> None:
        """Answer with JSON, also when it is refused."""
        try:
            found: dict[str, Any] = self.server.answer(self._body())
            status = HTTPStatus.OK
        except WarmshelfError as error:
            status = STATUSES.get(error.code, HTTPStatus.INTERNAL_SERVER_ERROR)
            found = {"reason": error.reason, "message": error.message, "retryable": error.retryable}
        text = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _body(self) -> bytes:
        if self.path != "/generate":
            raise ArtifactNotFound(f"there is no {self.path[:64]!r}, only /generate")
        size = self.headers.get("Content-Length", "")
        if not size.isascii() or not size.isdigit() or int(size) > BODY_BYTES_MAX:
            raise InvalidRequest(f"a body of 1 to {BODY_BYTES_MAX} bytes is needed, its length said before")
        return self.rfile.read(int(size))

    def log_message(self, *_: object) -> None:
        """Say nothing: prompts are nobody else's business."""


def _parsed(body: bytes) -> tuple[str, str | None]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    match found:
        case {"prompt": str(prompt), **rest} if 0 < len(prompt) <= PROMPT_CHARS_MAX:
            adapter = rest.get("adapter")
            if adapter is None or isinstance(adapter, str):
                return prompt, adapter
    raise InvalidRequest(f'a body is {{"prompt": 1 to {PROMPT_CHARS_MAX} characters, "adapter": an ID or null}}')


def chat(tokenizer: Any) -> Any:
    """Return a tokenizer that asks as the model was taught to be asked, if it was."""
    if not getattr(tokenizer, "chat_template", None):
        return tokenizer

    def ask(prompts: list[str], **options: Any) -> Any:
        talks = [[{"role": "user", "content": prompt}] for prompt in prompts]
        texts = [tokenizer.apply_chat_template(talk, add_generation_prompt=True, tokenize=False) for talk in talks]
        return tokenizer(texts, add_special_tokens=False, **options)

    ask.batch_decode = tokenizer.batch_decode  # type: ignore[attr-defined]
    return ask


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("model", type=Path, help="directory of the model")
    parser.add_argument("--address", help="of the daemon; by default as warmshelf.connect finds it")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype="auto").eval()
    batcher = Batcher(model, chat(AutoTokenizer.from_pretrained(arguments.model)))
    with (
        warmshelf.connect(arguments.address) as shelf,
        batcher.running(),
        Server(("127.0.0.1", arguments.port), batcher, shelf) as server,
        contextlib.suppress(KeyboardInterrupt),
    ):
        print(f"ready: http://127.0.0.1:{server.server_port}/generate", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
