"""What vLLM's API server was given for which name, and how it is taken back.

vLLM keeps the answer to a resolved name for good. Once the shelf has another generation under the ID, or
has forgotten it, that answer is wrong: asking with it would find old weights or, where the engine has
to load them again, end the engine. So the catalog is watched, and what changed is dropped; the
next request is resolved anew. Needs no vLLM itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import os
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from warmshelf._adapter_names import AdapterName
from warmshelf.client import Shelf
from warmshelf.errors import WarmshelfError
from warmshelf.types import Change, ChangeKind

current: ContextVar[Any] = ContextVar("warmshelf_serving", default=None)
"""The OpenAIServingModels for which a name is being resolved."""

RESOLVE_COUNT_MAX = 3
"""How often a name is resolved anew because it changed meanwhile."""

_PAUSE_SECONDS = 2.0
"""Before a daemon is watched again that stayed away."""

_GONE = 0
"""In the place of a generation: the ID is forgotten. Generations count from 1."""

_log = logging.getLogger("vllm.warmshelf")


@dataclass(frozen=True, slots=True)
class _Answer:
    """One name's answer, where it is kept, and the loop of whoever may change that."""

    serving: Any
    loop: asyncio.AbstractEventLoop
    name: AdapterName


class Given:
    """The answers given. ``_lock`` guards all of it; nothing slow is done under it.

    ``_answers`` is by the name that was asked for. ``_told`` has the generation told of each ID since somebody
    asked for it last, None before it is told. ``_snapshot`` has the IDs of a snapshot that is under way.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: dict[str, _Answer] = {}
        self._told: dict[str, int | None] = {}
        self._snapshot: set[str] | None = set()
        self._watching_pid = 0

    def expect(self, artifact_id: str, shelf: Shelf) -> None:
        """Begin to notice changes of an ID. Called before its generation is asked for."""
        with self._lock:
            self._told[artifact_id] = None
            begins = self._watching_pid != os.getpid()
            self._watching_pid = os.getpid()
        if begins:
            threading.Thread(target=self._watch, args=(shelf,), name="warmshelf-watch", daemon=True).start()

    def note(self, serving: Any, asked: str, name: AdapterName) -> None:
        """Remember an answer. Called on the server's event loop."""
        with self._lock:
            self._answers[asked] = _Answer(serving, asyncio.get_running_loop(), name)

    def drop_if_stale(self, serving: Any, asked: str) -> bool:
        """Drop an answer that became wrong before the server kept it; say whether it was."""
        with self._lock:
            answer = self._answers.get(asked)
            if answer is None or not self._is_wrong(answer):
                return False
        self._drop(asked, answer)
        return answer.serving is serving

    def take(self, change: Change) -> None:
        """Draw what follows from a change."""
        with self._lock:
            wrong = self._wrong() if self._learn(change) else []
        for asked, answer in wrong:
            with contextlib.suppress(RuntimeError):  # the server's loop has been closed
                answer.loop.call_soon_threadsafe(self._drop, asked, answer)

    def _learn(self, change: Change) -> bool:
        """Take over what a change tells; say whether it is news of an ID that somebody asked for."""
        if change.kind is ChangeKind.STARTED_OVER:
            self._snapshot = set()
            return False
        if change.kind is ChangeKind.COMPLETE:
            missed = self._told.keys() - self._snapshot if self._snapshot is not None else set()
            self._told.update(dict.fromkeys(missed, _GONE))
            self._snapshot = None
            return bool(missed)
        if self._snapshot is not None:
            self._snapshot.add(change.artifact_id)
        generation = change.artifact.generation if change.artifact else _GONE
        is_news = change.artifact_id in self._told and self._told[change.artifact_id] != generation
        if is_news:
            self._told[change.artifact_id] = generation
        return is_news

    def _wrong(self) -> list[tuple[str, _Answer]]:
        return [(asked, answer) for asked, answer in self._answers.items() if self._is_wrong(answer)]

    def _is_wrong(self, answer: _Answer) -> bool:
        told = self._told.get(answer.name.artifact_id)
        return told is not None and (told == _GONE or told > answer.name.generation)

    def _drop(self, asked: str, answer: _Answer) -> None:
        """Make the server forget, unless it has been given something newer. On its event loop."""
        kept = answer.serving.lora_requests.get(asked)
        if kept is not None and kept.lora_name == answer.name.name:
            del answer.serving.lora_requests[asked]
            _log.info("%s is no longer what the shelf has: the next request is resolved anew", answer.name.name)
        with self._lock:
            if kept is not None and self._answers.get(asked) is answer:
                del self._answers[asked]

    def _watch(self, shelf: Shelf) -> None:
        pause = threading.Event()
        while True:
            try:
                with shelf.watch() as changes:
                    for change in changes:
                        self.take(change)
            except WarmshelfError as error:
                _log.info("changes on the shelf are not noticed for now: %s", error)
            with self._lock:
                self._snapshot = set()  # the next watch begins with all there is
            pause.wait(_PAUSE_SECONDS)


given = Given()


def install(serving_class: Any) -> bool:
    """Let ``current`` be known while names are resolved; False if the class is not as it was."""
    method: Callable[..., Any] | None = getattr(serving_class, "resolve_lora", None)
    if method is None or not inspect.iscoroutinefunction(method):
        return False
    if tuple(inspect.signature(method).parameters) != ("self", "lora_name"):
        return False
    serving_class.resolve_lora = _knowing(method)
    return True


def _knowing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def resolve_lora(self: Any, lora_name: str) -> Any:
        token = current.set(self)
        try:
            for _ in range(RESOLVE_COUNT_MAX):
                answer = await original(self, lora_name)
                if not given.drop_if_stale(self, lora_name):
                    break
            return answer
        finally:
            current.reset(token)

    return resolve_lora
