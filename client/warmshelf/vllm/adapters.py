"""Adapters for vLLM's workers, out of mapped memory instead of files.

vLLM knows an adapter by a path. For paths below ADAPTER_ROOT, and for no others, the two class
methods that read its config and its tensors read the shelf. All of vLLM's own checks stay.
Where the methods are not as they were when this was written, nothing is replaced, and
``hooked`` says so: whoever hands out paths then makes directories (``_spool``).

vLLM scales tensors where they lie. They are mapped copy-on-write, so that touches this process alone.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from vllm.lora import lora_model
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper
from vllm.lora.utils import is_base_embedding_weights, parse_fine_tuned_lora_name

import warmshelf.torch
from warmshelf._adapter_names import AdapterName, parse_path
from warmshelf._engine_shelf import patiently, shelf_at
from warmshelf.errors import ArtifactNotFound, BaseMismatch
from warmshelf.lease import Lease

ADAPTER_SECONDS = 300.0
"""How long a worker waits for an adapter, and for a daemon that has gone. The engine stands still meanwhile, but
what fails here while requests run ends it."""

HONOURED_FEATURES = ("alpha_pattern", "embedding", "rank_pattern", "rslora")
"""What vLLM 0.32 and 0.33 compute beyond plain LoRA."""

SIGNATURES: Mapping[str, tuple[str, ...]] = {
    "from_local_dir": ("lora_path", "max_position_embeddings"),
    "from_dict": ("config_dict",),
    "from_local_checkpoint": (
        *("lora_dir", "expected_lora_modules", "peft_helper", "lora_model_id", "device", "dtype"),
        *("model_vocab_size", "weights_mapper", "skip_prefixes", "moe_ep_spec"),
    ),
    "from_lora_tensors": (
        *("lora_model_id", "tensors", "peft_helper", "device", "dtype"),
        *("model_vocab_size", "weights_mapper", "skip_prefixes"),
    ),
    "_should_skip_module": ("module_name", "skip_prefixes"),
    "_is_remote_expert_key": ("raw_name", "spec"),
}
"""Parameters of what is replaced or called, as in vLLM 0.32 and 0.33."""

_CLAIM = "_warmshelf_claim"
"""Attribute of a PEFTHelper: what ends the lease on what it was read from, unless its tensors are read too."""

_NAMES_SHOWN_MAX = 5
_log = logging.getLogger("vllm.warmshelf")
_installed: list[bool] = []
"""Whether the methods were replaced, once that was tried. Only ever appended to, while plugins load."""


def install() -> None:
    """Replace the two methods, once, if they are as they were."""
    if _installed:
        return
    changed = _changed_signatures()
    _installed.append(not changed)
    if changed:
        _log.warning(
            "this vLLM has another %s than warmshelf knows: adapters are laid out as files in memory instead",
            " and ".join(changed),
        )
        return
    PEFTHelper.from_local_dir = classmethod(_reading_configs(PEFTHelper.from_local_dir.__func__))
    LoRAModel.from_local_checkpoint = classmethod(_reading_tensors(LoRAModel.from_local_checkpoint.__func__))


def hooked() -> bool:
    """Say whether workers of this vLLM take paths below ADAPTER_ROOT."""
    return _installed == [True]


def _changed_signatures() -> list[str]:
    owners = (PEFTHelper, LoRAModel, lora_model)
    return [name for name, wanted in SIGNATURES.items() if _parameters(owners, name) != wanted]


def _parameters(owners: Iterable[Any], name: str) -> tuple[str, ...]:
    for owner in owners:
        if callable(function := getattr(owner, name, None)):
            return tuple(inspect.signature(function).parameters)
    return ()


# --- the two methods -----------------------------------------------------------


def _reading_configs(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def from_local_dir(cls: Any, lora_path: str, max_position_embeddings: int | None) -> Any:
        name = parse_path(lora_path)
        if name is None:
            return original(cls, lora_path, max_position_embeddings)
        lease = _acquire(name)
        try:
            helper = cls.from_dict({**lease.config, "vllm_max_position_embeddings": max_position_embeddings})
        except BaseException:
            lease.release()
            raise
        helper.__dict__[_CLAIM] = _releases.follow(helper, lease)  # vLLM may refuse the config, and ask for no tensors
        return helper

    return from_local_dir


def _reading_tensors(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def from_local_checkpoint(
        cls: Any,
        lora_dir: str,
        expected_lora_modules: set[str],
        peft_helper: Any,
        *,
        skip_prefixes: list[str] | None = None,
        moe_ep_spec: Any = None,
        **others: Any,
    ) -> Any:
        name = parse_path(lora_dir)
        if name is None:
            others.update(skip_prefixes=skip_prefixes, moe_ep_spec=moe_ep_spec)
            return original(cls, lora_dir, expected_lora_modules, peft_helper, **others)
        began = time.perf_counter()
        lease = _carried(peft_helper, name) or _acquire(name)
        try:
            # One of each pair is enough: the daemon takes no half pairs.
            read = [key for key in lease if ".lora_B" not in key and not _skipped(cls, key, skip_prefixes)]
            check_modules(name, read, others.get("weights_mapper"), expected_lora_modules)
            others["lora_model_id"] = others.get("lora_model_id") or lora_model.get_lora_id()
            model = cls.from_lora_tensors(
                tensors=_tensors(lease, moe_ep_spec), peft_helper=peft_helper, skip_prefixes=skip_prefixes, **others
            )
        except BaseException:
            lease.release()
            raise
        _releases.follow(model, lease)
        _log.info("adapter %s, %s, in %.1f ms", name.name, lease.transport, 1e3 * (time.perf_counter() - began))
        return model

    return from_local_checkpoint


def _carried(peft_helper: Any, name: AdapterName) -> Lease | None:
    """Return the lease that the config came from, which no longer ends with it."""
    finalizer = peft_helper.__dict__.pop(_CLAIM, None)
    lease: Lease | None = finalizer.peek()[2][0] if finalizer is not None else None
    if lease is None or lease.artifact.digest != name.digest:
        return None
    finalizer.detach()
    return lease


def _acquire(name: AdapterName) -> Lease:
    shelf, digest, features = shelf_at(), name.digest, HONOURED_FEATURES

    def acquire() -> Lease:
        return shelf.acquire(name.artifact_id, timeout=ADAPTER_SECONDS, expected_digest=digest, features=features)

    try:
        return patiently(shelf, ADAPTER_SECONDS, acquire)
    except ArtifactNotFound as error:
        raise FileNotFoundError(str(error)) from error


def _tensors(lease: Lease, moe_ep_spec: Any) -> dict[str, Any]:
    """Return the tensors of this rank, writable."""
    tensors = {
        name: tensor
        for name, tensor in warmshelf.torch.tensors(lease).items()
        if moe_ep_spec is None or not lora_model._is_remote_expert_key(name, moe_ep_spec)  # noqa: SLF001
    }
    if lease.segment_view.readonly:  # an arena of huge pages: vLLM would die of its first write
        return {name: tensor.clone() for name, tensor in tensors.items()}
    return tensors


def _skipped(cls: Any, tensor_name: str, skip_prefixes: list[str] | None) -> bool:
    return bool(skip_prefixes and cls._should_skip_module(tensor_name, skip_prefixes))


def check_modules(name: AdapterName, tensor_names: Iterable[str], mapper: Any, allowed: Collection[str]) -> None:
    """Refuse modules that this model has no place for, by the rule by which vLLM refuses those of a file.

    Raises:
        BaseMismatch: names them.
    """
    unexpected = sorted({module for key in tensor_names if (module := _unexpected(key, mapper, allowed))})
    if unexpected:
        shown = ", ".join(unexpected[:_NAMES_SHOWN_MAX]) + (" and others" if len(unexpected) > _NAMES_SHOWN_MAX else "")
        raise BaseMismatch(
            f"adapter {name.artifact_id!r} has {len(unexpected)} modules that vLLM does not adapt in this model: "
            f"{shown}; expected {', '.join(sorted(allowed))}",
            artifact_id=name.artifact_id,
            module_count=len(unexpected),
        )


def _unexpected(tensor_name: str, mapper: Any, allowed: Collection[str]) -> str:
    """Return the tensor's module if it is not allowed, else ""."""
    if is_base_embedding_weights(tensor_name) or "base_layer" in tensor_name:  # the latter: experts, as PEFT names them
        return ""
    module: str = parse_fine_tuned_lora_name(tensor_name, mapper)[0]
    expert = module.find(".experts")
    kind = module[expert + 1 :] if expert >= 0 else module.rpartition(".")[2]
    return "" if kind in allowed else module


# --- leases follow the engine's cache --------------------------------------------


class _Releases:
    """Ends leases when vLLM has dropped the adapters, in a thread of its own: never in the engine's step.

    ``_threads`` has the thread of each process, by its number: a fork inherits none. Only single
    operations of the dict, so no lock. A finalizer may put into the queue at any moment.
    """

    def __init__(self) -> None:
        self._dropped: queue.SimpleQueue[Lease] = queue.SimpleQueue()
        self._threads: dict[int, threading.Thread] = {}

    def follow(self, owner: Any, lease: Lease) -> Any:
        """Release the lease once its owner is gone, by the finalizer that is returned."""
        if os.getpid() not in self._threads:
            thread = threading.Thread(target=self._run, name="warmshelf-releases", daemon=True)
            if self._threads.setdefault(os.getpid(), thread) is thread:
                thread.start()
        finalizer = weakref.finalize(owner, self._dropped.put, lease)
        finalizer.atexit = False  # at exit the session ends them all
        return finalizer

    def _run(self) -> None:
        while True:
            self._dropped.get().release()


_releases = _Releases()
