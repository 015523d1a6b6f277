"""warmshelf as a plugin of SGLang: base weights and LoRA adapters by ID, out of the shelf's memory.

SGLang calls ``register`` in each of its processes, before its engine starts, and has a registry of hooks of its
own. Three of its methods are hooked: the one that reads an adapter, the one that looks up what a
request names, and the one that reads a checkpoint. Each acts only on what is the shelf's, and leaves the rest
to SGLang. Where a method is not as it was when this was written, it is not hooked, and a warning says so.

Importing this module needs neither SGLang nor torch. It knows nothing of SGLang's kernels.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from warmshelf._adapter_names import ADAPTER_ROOT, AdapterName, name_of, parse_path
from warmshelf._ahead import mapped_ahead
from warmshelf._engine_shelf import WAIT_SECONDS, patiently, shelf_at
from warmshelf._incoming import LOAD_TIMEOUT_SECONDS
from warmshelf.client import Shelf
from warmshelf.errors import ArtifactNotFound, BaseMismatch, Fault, InvalidId, InvalidRequest, WarmshelfError
from warmshelf.lease import Lease
from warmshelf.prepare import Marker, checked, read_marker
from warmshelf.types import ArtifactKind, check_id

ADAPTER_SECONDS = 300.0
"""How long a rank waits for an adapter, and for a daemon that has gone. The engine stands still meanwhile."""

RESOLVE_SECONDS = 600.0
"""How long a request waits for its adapter, which may be far away. Others go on meanwhile."""

ASK_SECONDS = 10.0
"""How long a daemon that is being started again is waited for, before a request fails."""

HONOURED_FEATURES = ("adapter_name", "embedding", "key_prefix", "key_wrapper")
"""What SGLang 0.5.23 computes beyond plain LoRA. It scales by alpha / r alone, and all modules by the same."""

_MANAGER = "sglang.srt.lora.lora_manager.LoRAManager"
_REGISTRY = "sglang.srt.lora.lora_registry.LoRARegistry"
_SERVER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
_LOADER = "sglang.srt.model_loader.loader.DefaultModelLoader"

_OF_TENSORS = "__tensor__"
"""What SGLang says of an adapter that was given as tensors, in the place of its path. It cannot read it again."""

_log = logging.getLogger("sglang.warmshelf")
_registered: list[str] = []
"""Targets that SGLang was told of. Only ever appended to, while plugins load."""


@dataclass(frozen=True, slots=True)
class Hook:
    """One of SGLang's methods, what goes around it, and what that relies on.

    Attributes:
        target: the method's dotted name.
        around: called with the method and its arguments.
        relies_on: parameters, without self, of the method and of what ``around`` calls.
    """

    target: str
    around: Callable[..., Any]
    relies_on: Mapping[str, tuple[str, ...]]


def register() -> None:
    """Tell SGLang's registry of the hooks. May be called again."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415 - SGLang's

    for hook in HOOKS:
        changed = [name for name, wanted in hook.relies_on.items() if _parameters(name) != wanted]
        if changed:
            _log.warning("this SGLang has another %s than warmshelf knows: %s", " and ".join(changed), _LEFT)
        elif hook.target not in _registered:
            HookRegistry.register(hook.target, hook.around, HookType.AROUND)
            _registered.append(hook.target)


_LEFT = "what needs it is left to SGLang; warmshelf.sglang.load_adapter, and 'warmshelf export', need no hook"


def _parameters(dotted: str) -> tuple[str, ...]:
    try:
        found = inspect.signature(pkgutil.resolve_name(dotted)).parameters
    except (ImportError, AttributeError, TypeError, ValueError):
        return ("nothing of this name",)
    return tuple(name for name in found if name != "self")


# --- adapters ------------------------------------------------------------------


def load_adapter(engine: Any, shelf: Shelf, artifact_id: str, *, timeout: float | None = None) -> None:
    """Hand an adapter to an engine that this process started, as tensors. Needs no hook.

    Requests name it by its ID. SGLang copies the tensors for each rank. Unless the plugin is
    installed there, an adapter that SGLang has dropped must be handed over again.

    Args:
        engine: a ``sglang.Engine``.
        shelf: where the adapter is.
        artifact_id: the adapter.
        timeout: seconds for acquiring it.

    Raises:
        FeatureUnsupported: it needs what SGLang does not honour. Before a byte moves.
        InvalidRequest: it is no adapter, or SGLang does not take it; says SGLang's reason.
        WarmshelfError: it could not be acquired.
    """
    import warmshelf.torch  # noqa: PLC0415 - heavy

    with shelf.acquire(artifact_id, timeout=timeout, features=HONOURED_FEATURES) as lease:
        _check_adapter(lease)
        answer = engine.load_lora_adapter_from_tensors(
            lora_name=artifact_id, tensors=warmshelf.torch.tensors(lease), config_dict=lease.config
        )
    if not answer.success:
        raise InvalidRequest(f"SGLang does not take {artifact_id!r}: {answer.error_message}", artifact_id=artifact_id)


def read_adapter(original: Callable[..., Any], manager: Any, lora_ref: Any) -> Any:
    """Around ``LoRAManager._load_lora_adapter``: an adapter below ADAPTER_ROOT comes out of the shelf.

    The ranks that read it map the same memory, which stays as long as SGLang has the tensors.
    """
    try:
        name = parse_path(lora_ref.lora_path or "")
        lease = _acquire(name) if name else None
    except WarmshelfError as error:
        return manager.create_lora_update_result(success=False, error_message=str(error))
    if lease is None:
        return original(manager, lora_ref)
    import warmshelf.torch  # noqa: PLC0415 - heavy

    with lease:
        return manager._load_lora_adapter_from_tensors(  # noqa: SLF001 - it is what the hook is for
            lora_ref, warmshelf.torch.tensors(lease), lease.config
        )


def _acquire(name: AdapterName) -> Lease:
    shelf, digest, features = shelf_at(), name.digest, HONOURED_FEATURES

    def acquire() -> Lease:
        return shelf.acquire(name.artifact_id, timeout=ADAPTER_SECONDS, expected_digest=digest, features=features)

    return patiently(shelf, ADAPTER_SECONDS, acquire)


async def resolve_names(original: Callable[..., Any], server: Any, request: Any) -> Any:
    """Around ``TokenizerManager._resolve_lora_path``: what a request names may be an ID on the shelf.

    SGLang is told where it lies, as of an adapter that it has dropped, and loads it by itself.
    """
    paths = [request.lora_path] if isinstance(request.lora_path, str) else request.lora_path
    asked = {path for path in paths if path and _may_be_ours(server.lora_ref_cache.get(path))}
    for artifact_id in await server.lora_registry.get_unregistered_loras(asked) if asked else ():
        name = await asyncio.to_thread(find, artifact_id, server.server_args)
        if name is not None:
            server.lora_ref_cache[artifact_id] = _reference(artifact_id, name.path)
    return await original(server, request)


def _may_be_ours(known: Any) -> bool:
    return known is None or known.lora_path == _OF_TENSORS or known.lora_path.startswith(ADAPTER_ROOT)


def _reference(artifact_id: str, path: str) -> Any:
    from sglang.srt.lora.lora_registry import LoRARef  # noqa: PLC0415 - SGLang's

    return LoRARef(lora_name=artifact_id, lora_path=path, pinned=False)


def find(artifact_id: str, server_args: Any) -> AdapterName | None:
    """Return which generation an ID means now, once it is resident; None if the shelf does not know it.

    Args:
        artifact_id: what a request named.
        server_args: the server's; its ``model_path`` and ``max_lora_rank`` are looked at.

    Raises:
        ValueError: this engine cannot serve it; says why. SGLang answers 400.
        WarmshelfError: the shelf cannot be asked just now.
    """
    rank_max = getattr(server_args, "max_lora_rank", None) or 0
    try:
        shelf = shelf_at(timeout_seconds=ASK_SECONDS)
        with shelf.acquire(
            check_id(artifact_id), timeout=RESOLVE_SECONDS, rank_max=rank_max, features=HONOURED_FEATURES
        ) as lease:
            _check_adapter(lease)
            _check_base(lease, read_marker(server_args.model_path))
            return name_of(lease.artifact)
    except (ArtifactNotFound, InvalidId):
        return None
    except WarmshelfError as error:
        if error.fault is Fault.DAEMON:
            raise
        raise ValueError(str(error)) from error


def _check_adapter(lease: Lease) -> None:
    if lease.artifact.kind is not ArtifactKind.ADAPTER:
        raise InvalidRequest(f"{lease.artifact.artifact_id!r} is no adapter")


def _check_base(lease: Lease, marker: Marker | None) -> None:
    artifact = lease.artifact
    if marker and artifact.spec.base_id not in {"", marker.artifact_id}:
        raise BaseMismatch(
            f"adapter {artifact.artifact_id!r} is for base {artifact.spec.base_id!r}, "
            f"this engine serves {marker.artifact_id!r}",
            artifact_id=artifact.artifact_id,
            expected=artifact.spec.base_id,
            actual=marker.artifact_id,
        )


# --- base weights ----------------------------------------------------------------


def read_weights(original: Callable[..., Any], loader: Any, source: Any, **options: Any) -> Any:
    """Around ``DefaultModelLoader._get_weights_iterator``: a prepared directory's weights come out of the shelf.

    Leased until the last tensor was taken. SGLang fuses, slices and copies them as those of files.

    Raises:
        InvalidRequest: the directory was prepared from another config than the base has now.
        WarmshelfError: the base could not be acquired.
    """
    marker = read_marker(source.model_or_path)
    if marker is None:
        return original(loader, source, **options)
    weights = _tensors(_leased(marker, source.model_or_path))
    if loader.load_config.draft_model_idx is not None:
        return loader._filter_mtp_weights(  # noqa: SLF001 - as the method that it goes around does
            weights, source.prefix, loader.load_config.draft_model_idx
        )
    return ((source.prefix + name, tensor) for name, tensor in weights)


def _leased(marker: Marker, directory: str) -> Lease:
    shelf = shelf_at(timeout_seconds=WAIT_SECONDS)
    lease = patiently(shelf, WAIT_SECONDS, lambda: shelf.acquire(marker.artifact_id, timeout=LOAD_TIMEOUT_SECONDS))
    return checked(lease, marker, directory)


def _tensors(lease: Lease) -> Iterator[tuple[str, Any]]:
    import warmshelf.torch  # noqa: PLC0415 - heavy

    with lease, mapped_ahead(lease):
        yield from warmshelf.torch.tensors(lease).items()


HOOKS = (
    Hook(
        f"{_MANAGER}._load_lora_adapter",
        read_adapter,
        {
            f"{_MANAGER}._load_lora_adapter": ("lora_ref",),
            f"{_MANAGER}._load_lora_adapter_from_tensors": (
                *("lora_ref", "tensors", "config_dict", "added_tokens_config"),
            ),
            f"{_MANAGER}.create_lora_update_result": ("success", "error_message"),
        },
    ),
    Hook(
        f"{_SERVER}._resolve_lora_path",
        resolve_names,
        {f"{_SERVER}._resolve_lora_path": ("obj",), f"{_REGISTRY}.get_unregistered_loras": ("lora_name",)},
    ),
    Hook(
        f"{_LOADER}._get_weights_iterator",
        read_weights,
        {
            f"{_LOADER}._get_weights_iterator": (
                *("source", "resolved_source", "startup_prefetch_started", "startup_prefetch_active"),
            ),
            f"{_LOADER}._filter_mtp_weights": ("weights_iterator", "prefix", "draft_model_idx"),
        },
    ),
)
"""All that is hooked, as SGLang 0.5.23 has it."""
