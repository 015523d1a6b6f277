"""Leased adapters in a model of PEFT, without a copy.

Needs the extra ``peft``. An adapter's parameters are the lease's own memory, with the dtype, shape
and bits that they have in the artifact. What the installed PEFT would leave out, guess or compute
otherwise is refused by the feature's name; see docs/formats.md for these.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import peft
import torch

from warmshelf.client import Shelf
from warmshelf.errors import BaseMismatch, FeatureUnsupported, InvalidRequest
from warmshelf.lease import Lease
from warmshelf.torch import tensors as tensors_of
from warmshelf.types import ArtifactKind

_FIELDS = frozenset(field.name for field in dataclasses.fields(peft.LoraConfig))

_OF_FIELDS: Mapping[str, str] = {
    "alora": "alora_invocation_tokens",
    "arrow": "arrow_config",
    "bdlora": "use_bdlora",
    "dora": "use_dora",
    "layer_replication": "layer_replication",
    "lora_bias": "lora_bias",
    "megatron": "megatron_config",
    "qalora": "use_qalora",
    "rslora": "use_rslora",
    "target_parameters": "target_parameters",
    "trainable_tokens": "trainable_token_indices",
    "velora": "velora_config",
    "weight_tying": "ensure_weight_tying",
}
"""Features that PEFT honours since its config has this field. Of ``kasa`` and ``monteclora`` that is not known."""

_ALWAYS = (
    *("alpha_pattern", "bias", "convolution", "embedding", "modules_to_save", "rank_pattern", "vocabulary"),
    # It computes anew what these took from the base's weights.
    *("init:pissa", "init:olora"),
)

_INITS_OF_BASE = ("pissa", "olora")
"""Ways to begin training that take the base's weights apart, and the same way each time."""


def honoured_features() -> tuple[str, ...]:
    """Return every feature of adapters that the installed PEFT honours, for ``Shelf.acquire``."""
    return (
        *_ALWAYS,
        *(feature for feature, field in _OF_FIELDS.items() if field in _FIELDS),
        *(f"unknown_field:{field}" for field in sorted(_FIELDS)),  # a daemon may know fewer fields than this PEFT
    )


def adapter_name(artifact_id: str) -> str:
    """Return the name under which PEFT has an adapter: its ID, with ``%2E`` for dots, which PEFT cannot have in names.

    No two IDs have the same.
    """
    return artifact_id.replace(".", "%2E")


def load_adapter(
    model: Any, shelf_or_lease: Shelf | Lease, artifact_id: str | None = None, *, timeout: float | None = None
) -> Any:
    """Put a leased adapter onto a model and return it as a ``PeftModel``, in evaluation mode.

    The adapter is known there as ``adapter_name(ID)``. The first of a model is active; ``switch``
    makes another active. The parameters keep the memory alive, also after the lease
    has ended: a lease acquired here ends before this returns, and what is mapped is never evicted to make room.

    Args:
        model: a ``PeftModel``, or a model that has no adapter yet.
        shelf_or_lease: where the adapter is acquired, or a lease on it.
        artifact_id: the adapter's ID; not needed with a lease.
        timeout: seconds for acquiring it.

    Raises:
        FeatureUnsupported: the installed PEFT does not honour what the adapter needs; names it.
            With a shelf, before a byte moves.
        BaseMismatch: the model has no place for a tensor, lacks one, or has another shape. The model is as it
            was then.
        InvalidRequest: what is leased is no adapter, or the model has an adapter of that ID.
        WarmshelfError: it could not be acquired.
    """
    if isinstance(shelf_or_lease, Lease):
        _check_kind(shelf_or_lease, artifact_id)
        return _put(model, shelf_or_lease)
    if artifact_id is None:
        raise InvalidRequest("an adapter's ID is needed to acquire it")
    with shelf_or_lease.acquire(artifact_id, timeout=timeout, features=honoured_features()) as lease:
        _check_kind(lease, artifact_id)
        return _put(model, lease)


def switch(model: Any, artifact_id: str) -> None:
    """Make an adapter that the model has the only active one. Nothing is acquired, moved or copied.

    Raises:
        InvalidRequest: the model has no adapter of that ID.
    """
    name = _known(model, artifact_id)
    model.set_adapter(name)
    model.requires_grad_(requires_grad=False)  # PEFT takes whom it makes active for one to train


def remove(model: Any, artifact_id: str) -> Any:
    """Take an adapter off a model and return the model to go on with; the adapter's memory goes with its last tensor.

    That is the ``PeftModel``, where the first adapter that is left is active if the removed one was; or, after the last
    adapter, the model that the first was put onto, as PEFT has no model without an adapter.

    Raises:
        InvalidRequest: the model has no adapter of that ID, or PEFT cannot take it off, as while it is merged.
        FeatureUnsupported: PEFT changed the model for it and cannot change it back: load the base again.
    """
    name = _known(model, artifact_id)
    change = _change_of_base(model.peft_config[name].to_dict())
    if change:
        raise _unsupported([change], " when it is taken off: the base was changed for it")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Adapter .* was active which is now deleted")
            model.delete_adapter(name)
    except ValueError as error:
        raise InvalidRequest(f"PEFT {peft.__version__} cannot remove {artifact_id!r}: {error}") from error
    left = model if model.peft_config else model.unload()
    return left.requires_grad_(requires_grad=False)


def add_adapter(model: Any, name: str, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Any:
    """Put an adapter given by its config and tensors onto a model; see ``load_adapter``.

    Args:
        model: a ``PeftModel``, or a model that has no adapter yet.
        name: PEFT's name for it.
        config: the fields of its adapter_config.json.
        tensors: by the names that they have in its file.
    """
    unknown = [field for field, value in config.items() if value is not None and field not in _FIELDS]
    if unknown:
        raise _unsupported(f"unknown_field:{field}" for field in unknown)
    lora = peft.LoraConfig.from_peft_type(**{field: value for field, value in config.items() if field in _FIELDS})
    change = _change_of_base(config)
    is_new = not isinstance(model, peft.PeftModel)
    if not is_new:
        _check_addition(model, name, change)
    with _as_mismatch(name):
        # PEFT allocates nothing for the adapter, unless it has to compute something for the base.
        adapted = _wrapped(model, lora, name, empty=not change) if is_new else _extended(model, lora, name)
    try:
        with _as_mismatch(name):
            _fill(adapted, name, tensors)
    except BaseMismatch:
        adapted.unload() if is_new else adapted.delete_adapter(name)
        raise
    return adapted.eval()


def _check_addition(model: Any, name: str, change: str) -> None:
    """Refuse an adapter that could not stand beside those that a model has."""
    if name in model.peft_config:
        raise InvalidRequest(f"the model has an adapter {name!r} already", adapter_name=name)
    if change:
        raise _unsupported([change], " beside others: it changes what they share")


def _known(model: Any, artifact_id: str) -> str:
    name = adapter_name(artifact_id)
    if not isinstance(model, peft.PeftModel) or name not in model.peft_config:
        raise InvalidRequest(f"the model has no adapter {artifact_id!r}", artifact_id=artifact_id)
    return name


def _put(model: Any, lease: Lease) -> Any:
    adapter = lease.artifact.inspection.adapter if lease.artifact.inspection else None
    honoured = {*honoured_features()}
    missing = [one for one in (adapter.features if adapter else ()) if not {one, one.partition(":")[0]} & honoured]
    if missing:
        raise _unsupported(missing)
    config = json.loads(lease.config_json.decode("utf-8-sig"))
    return add_adapter(model, adapter_name(lease.artifact.artifact_id), config, tensors_of(lease))


def _wrapped(model: Any, lora: Any, name: str, *, empty: bool) -> Any:
    """Return the model with its first adapter, as the kind of ``PeftModel`` that its task has."""
    kind = peft.MODEL_TYPE_TO_PEFT_MODEL_MAPPING.get(lora.task_type, peft.PeftModel)
    return kind(model, lora, adapter_name=name, low_cpu_mem_usage=empty, autocast_adapter_dtype=False)


def _extended(model: Any, lora: Any, name: str) -> Any:
    try:
        model.add_adapter(name, lora, low_cpu_mem_usage=True, autocast_adapter_dtype=False)
    except Exception:
        with contextlib.suppress(ValueError, KeyError):  # it was not put there, or only in part
            model.base_model.delete_adapter(name)
        raise
    return model


@contextlib.contextmanager
def _as_mismatch(name: str) -> Iterator[None]:
    """Turn what PEFT raises into our error."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        raise BaseMismatch(f"PEFT {peft.__version__} cannot put {name!r} onto this model: {error}") from error


def _fill(model: Any, name: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Make the tensors the parameters of an adapter, all of them."""
    found = peft.set_peft_model_state_dict(model, dict(tensors), adapter_name=name, low_cpu_mem_usage=True)
    if found.unexpected_keys:
        raise BaseMismatch(
            f"the model has no place for {found.unexpected_keys[0]!r} of {name!r}",
            tensor=found.unexpected_keys[0],
            unmatched_count=len(found.unexpected_keys),
        )
    lacking = sorted(_lacking(model, name, found.missing_keys))
    if lacking:
        raise BaseMismatch(
            f"{name!r} lacks a tensor for {lacking[0]!r}", tensor=lacking[0], unmatched_count=len(lacking)
        )


def _lacking(model: Any, name: str, missing: Iterable[str]) -> Iterator[str]:
    """Return the adapter's parameters that PEFT made and nobody gave bytes.

    Of names that are tied, one is enough. Where PEFT allocated nothing, what it made is on the device ``meta``.
    """
    held = {id(part) for key, part in model.named_parameters(remove_duplicate=False) if key not in {*missing}}
    for key, part in model.named_parameters(remove_duplicate=False):
        if part.is_meta or (f".{name}." in f"{key}." and id(part) not in held):
            yield key


def _change_of_base(config: Mapping[str, Any]) -> str:
    """Return the feature for which PEFT changes the model itself, if there is one."""
    init = config.get("init_lora_weights")
    if init in _INITS_OF_BASE:
        return f"init:{init}"
    return "layer_replication" if config.get("layer_replication") else ""


def _check_kind(lease: Lease, artifact_id: str | None) -> None:
    if lease.artifact.kind is not ArtifactKind.ADAPTER:
        raise InvalidRequest(f"{lease.artifact.artifact_id!r} is no adapter")
    if artifact_id not in (None, lease.artifact.artifact_id):
        raise InvalidRequest(f"the lease is on {lease.artifact.artifact_id!r}, not on {artifact_id!r}")


def _unsupported(features: Iterable[str], why: str = "") -> FeatureUnsupported:
    named = ", ".join(features)
    return FeatureUnsupported(
        f"the adapter needs {named}, which PEFT {peft.__version__} does not honour{why}", features=named
    )
