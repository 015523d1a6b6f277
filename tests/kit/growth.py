"""What an object holds, through everything that it leads to: every container, and how many things are in it."""

from __future__ import annotations

import asyncio
import gc
import logging
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

Sizes = dict[int, tuple[Any, int]]
"""Containers by their identity, each kept so that no other gets it, and their sizes."""

_CONTAINERS = (dict, list, set, deque)
_ENDS = (type, types.ModuleType, types.CodeType, logging.Logger, asyncio.AbstractEventLoop)
"""Where the way ends: what belongs to the program or to the loop, and not to an object."""


def sizes_within(root: object) -> Sizes:
    """Return every container to which an object leads."""
    gc.collect()
    found: Sizes = {}
    seen, ahead = {id(root)}, deque([root])
    while ahead:
        one = ahead.popleft()
        if isinstance(one, _CONTAINERS):
            found[id(one)] = (one, len(one))
        for other in _led_to(one):
            if id(other) not in seen and not isinstance(other, _ENDS):
                seen.add(id(other))
                ahead.append(other)
    return found


def grown(before: Sizes, after: Sizes, count_min: int) -> list[str]:
    """Return the containers that have so many things more, also those that were not there, and what is in them."""
    found = []
    for key, (one, size) in after.items():
        more = size - (before[key][1] if key in before else 0)
        if more >= count_min and one is not before and one is not after:
            found.append(f"{more} more of {size}: {type(one).__name__} {str(one)[:200]}")
    return found


def _led_to(one: object) -> Iterator[object]:
    if isinstance(one, types.FunctionType):  # and not to all globals of its module
        yield from (one.__closure__ or (), one.__defaults__ or ())
    elif isinstance(one, types.FrameType):
        yield from one.f_locals.values()
    else:
        yield from gc.get_referents(one)
