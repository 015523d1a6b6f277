"""What an adapter needs of its base: tensors by name and shape, in a form that a registry can keep.

Made from an adapter's headers by its format, and compared with a base in
``base_check``. Kept with the registration, so that an adapter can be checked when
its base comes, without its source. Knows no file and no format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

_SHAPE_LENGTH_MAX = 16
"""Longest shape read back; those of tensors end at 8."""

_LAYER = re.compile(r"((?:^|\.)(?:layers|layer|h)\.)(\d{1,6})(?=\.|$)")
"""Where the number of a layer stands in the models whose layers PEFT can use twice."""


@dataclass(frozen=True, slots=True)
class Need:
    """One tensor of the base that the adapter changes or replaces.

    Attributes:
        module: as the base names it.
        leaf: the tensor's own name in the module, such as ``weight``.
        shape: what the base must have; a 0 fits any length. None: the module need only be there.
        paired: a LoRA pair changes it, so it may be stored transposed or packed.
    """

    module: str
    leaf: str
    shape: tuple[int, ...] | None
    paired: bool

    @property
    def tensor_name(self) -> str:
        """The tensor's name in the base."""
        return f"{self.module}.{self.leaf}" if self.module else self.leaf


@dataclass(frozen=True, slots=True)
class AdapterShapes:
    """All that an adapter needs of its base.

    Attributes:
        needs: in one order, by module first.
        fan_in_fan_out: the config says that the base stores weights as (in, out).
        layers: which of the base's layers each layer of the adapter is, where some are used twice; else empty.
    """

    needs: tuple[Need, ...]
    fan_in_fan_out: bool = False
    layers: tuple[int, ...] = ()

    @property
    def module_names(self) -> tuple[str, ...]:
        """Every module, once, sorted."""
        return tuple(dict.fromkeys(need.module for need in self.needs))

    def of_base(self, need: Need) -> Need:
        """Return a need as it stands in the base: of the layer that its own layer is a copy of."""
        if not self.layers:
            return need
        return replace(need, module=_LAYER.sub(self._layer_of_base, need.module, count=1))

    def _layer_of_base(self, layer: re.Match[str]) -> str:
        number = int(layer[2])
        return f"{layer[1]}{self.layers[number]}" if number < len(self.layers) else layer[0]


def adapter_shapes(needs: Iterable[Need], *, fan_in_fan_out: bool, layers: Sequence[int] = ()) -> AdapterShapes:
    """Return the needs in the one order in which they are kept."""
    return AdapterShapes(tuple(sorted(set(needs), key=_order)), fan_in_fan_out, tuple(layers))


def shapes_to_record(shapes: AdapterShapes) -> dict[str, object]:
    """Return the shapes as JSON values, which with ``shapes.module_names`` mean them all.

    The modules of a model have few shapes between them: each shape is written once,
    and its modules as numbers into the names. 91,000 modules take half a megabyte.
    """
    numbers = {name: number for number, name in enumerate(shapes.module_names)}
    groups: dict[tuple[str, tuple[int, ...] | None, bool], list[int]] = {}
    for need in shapes.needs:
        groups.setdefault((need.leaf, need.shape, need.paired), []).append(numbers[need.module])
    return {
        **({"layers": list(shapes.layers)} if shapes.layers else {}),
        "fan_in_fan_out": shapes.fan_in_fan_out,
        "groups": [
            {"leaf": leaf, "shape": None if shape is None else list(shape), "paired": paired, "modules": modules}
            for (leaf, shape, paired), modules in groups.items()
        ],
    }


def shapes_from_record(record: object, module_names: Sequence[str]) -> AdapterShapes:
    """Return what ``shapes_to_record`` was given, with the module names that it had.

    Raises:
        ValueError: the record is not such a one.
    """
    match record:
        case {"fan_in_fan_out": bool(fan_in_fan_out), "groups": list(groups), **rest} if not rest.keys() - {"layers"}:
            needs = [need for group in groups for need in _group(group, module_names)]
            return adapter_shapes(needs, fan_in_fan_out=fan_in_fan_out, layers=_layers(rest.get("layers", [])))
    raise ValueError("the adapter's shapes are no record of them")


def _group(group: Mapping[str, Any], module_names: Sequence[str]) -> list[Need]:
    match group:
        case {"leaf": str(leaf), "shape": shape, "paired": bool(paired), "modules": list(modules), **rest} if not rest:
            if set(map(type, modules)) <= {int} and all(0 <= number < len(module_names) for number in modules):
                known = _shape(shape)
                return [Need(module_names[number], leaf, known, paired) for number in modules]
    raise ValueError("a group of the adapter's shapes is none")


def _layers(value: Any) -> tuple[int, ...]:
    match value:
        case [*layers] if all(type(layer) is int and layer >= 0 for layer in layers):
            return tuple(layers)
    raise ValueError("the adapter's layers are none")


def _shape(value: Any) -> tuple[int, ...] | None:
    match value:
        case None:
            return None
        case [*dims] if len(dims) <= _SHAPE_LENGTH_MAX and all(type(dim) is int and dim >= 0 for dim in dims):
            return tuple(dims)
    raise ValueError("a shape of the adapter is none")


def _order(need: Need) -> tuple[str, str, bool, bool, tuple[int, ...]]:
    return need.module, need.leaf, need.paired, need.shape is not None, need.shape or ()
