"""``model=<adapter ID>`` of the OpenAI API, resolved on the shelf.

Runs in vLLM's API server. What the engine cannot honour is refused there with the reason, before
the adapter is loaded. What may be served is made resident there, so that the engine never waits for a
source. Nothing here blocks the server's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.exceptions import GracefulHTTPError, VLLMValidationError
from vllm.lora.peft_helper import PEFTHelper
from vllm.lora.request import LoRARequest
from vllm.lora.resolver import LoRAResolver, LoRAResolverRegistry

from warmshelf._adapter_names import AdapterName, id_in, name_of
from warmshelf._engine_shelf import shelf_at
from warmshelf.client import Shelf
from warmshelf.errors import (
    ArtifactNotFound,
    BaseMismatch,
    Fault,
    FeatureUnsupported,
    InvalidId,
    InvalidSpec,
    RankTooLarge,
    WarmshelfError,
)
from warmshelf.prepare import read_marker
from warmshelf.types import Artifact, ArtifactKind, check_id
from warmshelf.vllm import _serving, adapters
from warmshelf.vllm._spool import Spool

RESOLVER_NAME = "warmshelf"
RESOLVE_SECONDS = 600.0
"""How long a request waits for its adapter, which may be far away. Others go on meanwhile."""

ASK_SECONDS = 10.0
"""How long a daemon that is being started again is waited for, before a request is answered with 503."""

RESOLVES_AT_ONCE_MAX = 16
"""Threads that look for adapters; further requests wait on the event loop."""

T = TypeVar("T")

_log = logging.getLogger("vllm.warmshelf")
_spool = Spool()
_count = itertools.count(1)
_numbers: dict[str, int] = {}
"""The number of each name that ``request_for`` has given. Names are only added, by single operations."""


@dataclass(frozen=True, slots=True)
class Found:
    """An adapter that is READY, and the path under which the engine reads it."""

    name: AdapterName
    path: str


def install() -> None:
    """Register the resolver with vLLM, once."""
    if RESOLVER_NAME in LoRAResolverRegistry.get_supported_resolvers():
        return
    LoRAResolverRegistry.register_resolver(RESOLVER_NAME, ShelfResolver())
    if not _serving.install(OpenAIServingModels):
        _log.warning(
            "this vLLM's server is not as warmshelf knows it: after a replaced or removed adapter, "
            "call /v1/unload_lora_adapter"
        )


class ShelfResolver(LoRAResolver):  # type: ignore[misc]  # vLLM is not there when types are checked
    """Finds adapters by ID."""

    def __init__(self) -> None:
        self._room = asyncio.Semaphore(RESOLVES_AT_ONCE_MAX)

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> Any:
        """Return the request for an adapter; None if the shelf knows none of this name.

        Raises:
            VLLMValidationError: this engine cannot serve it; says why.
            GracefulHTTPError: the shelf cannot be asked just now.
        """
        serving = _serving.current.get()
        try:
            artifact_id = check_id(id_in(lora_name))
            shelf = shelf_at(timeout_seconds=ASK_SECONDS)
            if serving is not None:
                _serving.given.expect(artifact_id, shelf)
            lora_config = serving.engine_client.vllm_config.lora_config if serving is not None else None
            async with self._room:
                found = await in_thread(lambda: find(shelf, lora_name, base_model_name, lora_config))
        except (ArtifactNotFound, InvalidId):
            return None
        except WarmshelfError as error:
            raise _answer(error) from error
        if serving is not None:
            _serving.given.note(serving, lora_name, found.name)
        return LoRARequest(lora_name=found.name.name, lora_int_id=1, lora_path=found.path)  # vLLM numbers it


def request_for(artifact_id: str, shelf: Shelf | None) -> Any:
    """Return the request for an adapter, numbered by its name."""
    adapters.install()
    found = find(shelf or shelf_at(), artifact_id, "", None)
    number = _numbers.setdefault(found.name.name, next(_count))
    return LoRARequest(lora_name=found.name.name, lora_int_id=number, lora_path=found.path)


def find(shelf: Shelf, asked: str, base_directory: str, lora_config: Any) -> Found:
    """Return an adapter once it is READY.

    Args:
        shelf: where to look.
        asked: an ID, or the name of one generation.
        base_directory: what the engine's base was prepared in, if it was.
        lora_config: the engine's limits, if they are known.

    Raises:
        ArtifactNotFound: there is none, or no longer this generation.
        WarmshelfError: it cannot be served, or not now.
    """
    artifact_id = id_in(asked)
    marker = read_marker(base_directory) if base_directory else None
    base_id = marker.artifact_id if marker else ""
    with contextlib.suppress(ArtifactNotFound):  # something may declare it: then acquiring registers it
        check_suits(shelf.get(artifact_id), base_id, lora_config)
    rank_max = lora_config.max_lora_rank if lora_config is not None else 0
    features = adapters.HONOURED_FEATURES
    with shelf.acquire(artifact_id, timeout=RESOLVE_SECONDS, rank_max=rank_max, features=features) as lease:
        check_suits(lease.artifact, base_id, lora_config)
        name = name_of(lease.artifact)
        if asked not in {artifact_id, name.name}:
            raise ArtifactNotFound(f"{asked!r} is not what the shelf has: that is {name.name!r}")
        return Found(name, name.path if adapters.hooked() else _spool.write(name, lease))


def check_suits(artifact: Artifact, base_id: str, lora_config: Any) -> None:
    """Refuse what this engine would not serve right.

    Raises:
        InvalidSpec: it is no adapter.
        BaseMismatch: it was made for another base; names both.
        RankTooLarge: carries both numbers.
        FeatureUnsupported: names what vLLM does not honour.
    """
    artifact_id, found = artifact.artifact_id, artifact.inspection.adapter if artifact.inspection else None
    if artifact.kind is not ArtifactKind.ADAPTER or found is None:
        raise InvalidSpec(f"{artifact_id!r} is no adapter", artifact_id=artifact_id)
    if base_id and artifact.spec.base_id not in {"", base_id}:
        raise BaseMismatch(
            f"adapter {artifact_id!r} is for base {artifact.spec.base_id!r}, this engine serves {base_id!r}",
            artifact_id=artifact_id,
            expected=artifact.spec.base_id,
            actual=base_id,
        )
    if lora_config is not None and found.rank_max > lora_config.max_lora_rank:
        raise RankTooLarge(
            f"adapter {artifact_id!r} has rank {found.rank_max}, this engine takes at most {lora_config.max_lora_rank}",
            adapter_rank_max=found.rank_max,
            rank_max=lora_config.max_lora_rank,
        )
    if missing := [one for one in found.features if one not in adapters.HONOURED_FEATURES]:
        raise FeatureUnsupported(
            f"adapter {artifact_id!r} needs {', '.join(missing)}, which vLLM does not honour",
            features=", ".join(missing),
        )
    _check_by_engine(artifact_id, found.config_json, lora_config)


def _check_by_engine(artifact_id: str, config_json: bytes, lora_config: Any) -> None:
    """Let vLLM look at the config as its workers will."""
    if lora_config is None:
        return
    try:
        PEFTHelper.from_dict(json.loads(config_json.decode("utf-8-sig"))).validate_legal(lora_config)
    except (ValueError, TypeError) as error:
        raise FeatureUnsupported(f"adapter {artifact_id!r}: {error}", artifact_id=artifact_id) from error


def _answer(error: WarmshelfError) -> Exception:
    """Return what vLLM's server answers with this error's text: 503 if it may pass, else 400."""
    may_pass = error.retryable or error.fault is Fault.DAEMON
    answer: Exception = (
        GracefulHTTPError(str(error), HTTPStatus.SERVICE_UNAVAILABLE)
        if may_pass
        else VLLMValidationError(str(error), parameter="model")
    )
    return answer


async def in_thread(function: Callable[[], T]) -> T:
    """Return what the function returns, run in a thread that does not keep the process from ending."""
    future: Future[T] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            future.set_exception(error)

    threading.Thread(target=run, name="warmshelf-resolve", daemon=True).start()
    return await asyncio.wrap_future(future)
