"""A lease as a model of transformers, whose parameters are the lease's own memory.

Needs the extra ``transformers``. Nothing is cast, and nothing copied where the artifact's
names are the model's; where transformers keeps several of a checkpoint's tensors as one,
such as the experts of a mixture, transformers itself makes one of them. Code that comes
with a model is never run. Knows no adapter: see ``warmshelf.peft``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import transformers
from accelerate import init_empty_weights

from warmshelf.errors import InvalidRequest, MalformedArtifact
from warmshelf.lease import Lease
from warmshelf.torch import tensors as tensors_of
from warmshelf.types import ArtifactKind

_SHOWN_MAX = 3
"""How many names an error shows."""


def load_model(lease: Lease, *, config: Any = None, model_class: Any = None) -> Any:
    """Return a model whose parameters are a leased base, ready to infer.

    Every parameter has the dtype, shape and bits that it has in the artifact. The model keeps the
    lease's memory alive, also after the lease is released. Writing to a parameter changes this
    lease's private copy only.

    Args:
        lease: on a base.
        config: a ``PretrainedConfig``; by default what the artifact's config.json says.
        model_class: the model's class; by default the first of the config's ``architectures``, else the one
            that ``AutoModelForCausalLM`` has for the config.

    Raises:
        InvalidRequest: the lease is on an adapter; or the config describes a model that this transformers does not
            know, or that has other parameters than the artifact has tensors (names them).
        MalformedArtifact: there is no config, neither given nor in the artifact.
        UnsupportedDtype: this torch lacks a tensor's dtype.
    """
    if lease.artifact.kind is ArtifactKind.ADAPTER:
        raise InvalidRequest(f"{lease.artifact.artifact_id!r} is an adapter; a model is made of its base")
    return model_of(tensors_of(lease), config or _config(lease), model_class=model_class)


def model_of(tensors: Mapping[str, torch.Tensor], config: Any, *, model_class: Any = None) -> Any:
    """Return a model whose parameters are these tensors; see ``load_model``. They are not copied.

    Args:
        tensors: by the names of a checkpoint of that model.
        config: a ``PretrainedConfig``.
        model_class: the model's class.
    """
    chosen = model_class or _class(config)
    dtype = config.dtype or next((one.dtype for one in tensors.values() if one.is_floating_point()), None)
    with init_empty_weights(include_buffers=False):
        model = chosen._from_config(config, dtype=dtype)  # noqa: SLF001 - from_config, for a class that is known
    tied = {name: tensors[same] for name, same in model.all_tied_weights_keys.items() if same in tensors}
    state = {**tied, **tensors}
    if model.state_dict().keys() == state.keys():
        return _assigned(model, state)
    return _converted(chosen, config, state, dtype)


def _config(lease: Lease) -> Any:
    fields = dict(lease.config)
    if not fields:
        raise MalformedArtifact(f"{lease.artifact.artifact_id!r} has no config.json: give a config")
    model_type = str(fields.pop("model_type", ""))
    try:
        return transformers.AutoConfig.for_model(model_type, **fields)
    except ValueError as error:
        raise InvalidRequest(f"the config of {lease.artifact.artifact_id!r}: {error}", model_type=model_type) from error


def _class(config: Any) -> Any:
    named = (config.architectures or [""])[0]
    chosen = getattr(transformers, named, None) if named else None
    if isinstance(chosen, type) and issubclass(chosen, transformers.PreTrainedModel):
        return chosen
    try:
        return transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    except KeyError:
        raise InvalidRequest(
            f"transformers {transformers.__version__} has no class {named!r}, and none for causal language models "
            f"with a {type(config).__name__}: give a model_class"
        ) from None


def _assigned(model: Any, state: Mapping[str, torch.Tensor]) -> Any:
    try:
        model.load_state_dict(state, strict=True, assign=True)
    except RuntimeError as error:  # of shapes that differ
        raise InvalidRequest(f"the config describes another model: {error}") from error
    if any(_are_apart(state, name, same) for name, same in model.all_tied_weights_keys.items()):
        model.config.tie_word_embeddings = False  # whatever it says: tying would throw one of two tensors away
    else:
        model.tie_weights()
    return model.eval()


def _are_apart(state: Mapping[str, torch.Tensor], name: str, same: str) -> bool:
    """Say whether two names that are said to be tied have tensors of their own."""
    one, other = state[name], state[same]
    return one.data_ptr() != other.data_ptr() and not torch.equal(one, other)


def _converted(chosen: Any, config: Any, state: Mapping[str, torch.Tensor], dtype: torch.dtype | None) -> Any:
    """Let transformers bring a checkpoint's names to those that its model has now; nothing may be left over."""
    try:
        model, found = chosen.from_pretrained(
            None, config=config, state_dict=dict(state), dtype=dtype, output_loading_info=True
        )
    except RuntimeError as error:  # of shapes that differ
        raise InvalidRequest(f"the config describes another model: {error}") from error
    lacking, extra = found["missing_keys"], found["unexpected_keys"]
    if lacking or extra:
        raise InvalidRequest(
            f"the config describes another model: the artifact lacks {_shown(lacking)}, "
            f"and has {_shown(extra)} beyond it",
            lacking_count=len(lacking),
            extra_count=len(extra),
        )
    return model.eval()


def _shown(names: Iterable[str]) -> str:
    some = sorted(names)
    more = f" and {len(some) - _SHOWN_MAX} more" if len(some) > _SHOWN_MAX else ""
    return (", ".join(map(repr, some[:_SHOWN_MAX])) or "nothing") + more
