"""Which linear layers of a model adapters can change, and by which names. Looks at a model, changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from warmshelf._bank_plan import Modules, Target
from warmshelf.errors import BaseMismatch, InvalidRequest

Fused = Mapping[str, Mapping[str, int]]
"""Outputs of fused layers: by the layer's last name, the number of outputs by the names that adapters give them."""


def linears(model: torch.nn.Module, names: Sequence[str] | None) -> dict[str, torch.nn.Linear]:
    """Return the linear layers that have one of the last names; without names all but the output layer.

    Raises:
        InvalidRequest: there is none.
    """
    output = _output_layer(model)
    found = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear)
        and (layer is not output if names is None else name.rpartition(".")[2] in names)
    }
    if not found:
        raise InvalidRequest(f"the model has no linear layer named {', '.join(names or ['anything'])}")
    return found


def _output_layer(model: torch.nn.Module) -> object:
    """Return what transformers calls the output embeddings, which no adapter changes unless it says so."""
    get = getattr(model, "get_output_embeddings", None)
    return get() if get is not None else None


def targets_of(
    model: torch.nn.Module, layers: Mapping[str, torch.nn.Linear], fused: Fused | None
) -> dict[str, dict[str, Target]]:
    """Return for each layer its places, in the order of its outputs, by the names that adapters give them.

    Raises:
        InvalidRequest: the outputs that were said of a fused layer are not those it has.
    """
    sizes = _fused_sizes(getattr(model, "config", None)) if fused is None else fused
    return {name: _targets(name, layer, sizes.get(name.rpartition(".")[2]), fused) for name, layer in layers.items()}


def _targets(
    name: str, layer: torch.nn.Linear, parts: Mapping[str, int] | None, said: Fused | None
) -> dict[str, Target]:
    if parts is not None and sum(parts.values()) != layer.out_features:
        if said is not None:
            raise InvalidRequest(f"{name!r} has {layer.out_features} outputs, not {dict(parts)}", module=name)
        parts = None  # a layer of that name that is fused in another way
    if parts is None:
        return {name: Target(name, layer.in_features, layer.out_features)}
    parent, dot, _ = name.rpartition(".")
    found, start = {}, 0
    for part, size in parts.items():
        found[f"{parent}{dot}{part}"] = Target(name, layer.in_features, size, start)
        start += size
    return found


def _fused_sizes(config: Any) -> Fused:
    """Return the parts of layers that hold queries, keys and values, or gate and up, one after another."""
    sizes: dict[str, dict[str, int]] = {}
    heads = getattr(config, "num_attention_heads", None)
    if heads:
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        keys = width * (getattr(config, "num_key_value_heads", None) or heads)
        sizes["qkv_proj"] = {"q_proj": heads * width, "k_proj": keys, "v_proj": keys}
    inner = getattr(config, "intermediate_size", None)
    if inner:
        sizes["gate_up_proj"] = {"gate_proj": inner, "up_proj": inner}
    return sizes


def modules_of(targets: Mapping[str, Mapping[str, Target]]) -> Modules:
    """Return what adapters may name: every place, and every fused layer as a whole."""
    places = {part: (target,) for parts in targets.values() for part, target in parts.items()}
    return Modules({**{name: tuple(parts.values()) for name, parts in targets.items()}, **places})


def check_layer(name: str, layer: torch.nn.Module | None, targets: Sequence[Target]) -> torch.nn.Linear:
    """Return a layer that is as wide as the places that a bank has for it.

    Raises:
        BaseMismatch: it is not; names module, expected and got.
    """
    expected = (targets[0].in_features, sum(target.out_features for target in targets))
    got = (layer.in_features, layer.out_features) if isinstance(layer, torch.nn.Linear) else None
    if not isinstance(layer, torch.nn.Linear) or got != expected:
        raise BaseMismatch(
            f"the bank was made for a linear layer {name!r} of {expected[0]} inputs and {expected[1]} outputs, "
            f"got {got or type(layer).__name__}",
            module=name,
            expected=str(expected),
            got=str(got),
        )
    return layer
