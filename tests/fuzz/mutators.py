"""Changes to JSON that keep it JSON, so that what is behind the parser is reached too.

One in two changes is of this kind, the others are of bytes: libFuzzer's own cannot be
called from here. Objects are lists of pairs, so that a key can stand in one twice.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

_NUMBERS = (0, 1, -1, 2, 4, 7, 8, 255, 256, 1 << 31, (1 << 63) - 1, 1 << 63, 1 << 64, 10**30)


_SIGNS = (b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\\u0000", b"-", b"0", b".5", b"e1", b" ", b"null", b"NaN")


class Pairs(list[Any]):
    """An object."""


def of_json(data: bytes, size_max: int, seed: int) -> bytes:
    """Change a JSON text."""
    dice = random.Random(seed)
    changed = _changed(data, dice) if dice.random() < 0.5 else None
    return (changed or _by_bytes(data, dice))[:size_max]


def of_safetensors(data: bytes, size_max: int, seed: int) -> bytes:
    """Change a safetensors file: its header is JSON, whose length is right again afterwards."""
    dice = random.Random(seed)
    end = 8 + int.from_bytes(data[:8], "little")
    header = _changed(data[8:end], dice) if dice.random() < 0.5 else None
    if header is None:
        return _by_bytes(data, dice)[:size_max]
    return (len(header).to_bytes(8, "little") + header + data[end:])[:size_max]


def _by_bytes(data: bytes, dice: random.Random) -> bytes:
    """Replace some bytes by none, by others, or by some that stand elsewhere."""
    at, cut = dice.randrange(len(data) + 1), dice.choice((0, 1, 1, 2, 4, 8))
    copied = dice.randrange(len(data) + 1)
    new = (b"", dice.randbytes(1), dice.randbytes(cut), data[copied : copied + 8], dice.choice(_SIGNS))
    return data[:at] + dice.choice(new) + data[at + cut :]


def _changed(text: bytes, dice: random.Random) -> bytes | None:
    """Return the text with one value changed, or None if it is no JSON."""
    try:
        root = [json.loads(text, object_pairs_hook=Pairs)]
    except (ValueError, RecursionError):
        return None
    places = list(_places(root))
    parent, index = dice.choice(places)
    kind = dice.randrange(4)
    if kind == 0 and parent is not root:
        del parent[index]
    elif kind == 1:
        parent.insert(index, deepcopy(parent[index]))
    else:
        parent[index] = _other(parent[index], dice, places)
    return _dumped(root[0]).encode("utf-8", "surrogatepass") if root else b""


def _places(value: Any) -> Iterator[tuple[list[Any], int]]:
    """Yield every list and index at which a value stands, also keys and members."""
    if isinstance(value, list):
        value[:] = [list(inner) if isinstance(inner, tuple) else inner for inner in value]  # members of objects
        for index, inner in enumerate(value):
            yield value, index
            yield from _places(inner)


def _other(value: Any, dice: random.Random, places: list[tuple[list[Any], int]]) -> Any:
    if isinstance(value, int) and dice.random() < 0.5:
        return value + dice.choice((-8, -4, -1, 1, 4, 8)) if dice.random() < 0.5 else dice.choice(_NUMBERS)
    parent, index = dice.choice(places)
    return deepcopy(parent[index]) if index < len(parent) else None


def _dumped(value: Any) -> str:
    if isinstance(value, Pairs):
        members = (member for member in value if isinstance(member, list) and len(member) == 2)
        return f"{{{','.join(f'{json.dumps(str(key))}:{_dumped(inner)}' for key, inner in members)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_dumped, value))}]"
    return json.dumps(value)
