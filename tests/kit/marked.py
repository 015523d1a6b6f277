"""Bytes that say whose they are: every 16 of them name tenant, artifact, generation and place.

So a block that is wrong, torn, stale, shifted, zero or somebody else's is told from a right
one wherever it is seen, without a copy to compare with; and what must not be in a dump is
found there. Shares no code with what it judges.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

MAGIC = b"\xd3WS\xb6"
BLOCK_BYTES = 16


@dataclass(frozen=True, order=True)
class Mark:
    """Whose bytes they are."""

    tenant: int
    artifact: int
    generation: int
    tensor: int = 0

    @property
    def owner(self) -> tuple[int, int, int]:
        """Without the tensor."""
        return self.tenant, self.artifact, self.generation

    def block(self, index: int) -> bytes:
        """One block: magic 4, tenant 2, artifact 2, generation 2, tensor 1, index 5."""
        fields = (self.tenant, 2), (self.artifact, 2), (self.generation, 2), (self.tensor, 1), (index, 5)
        return MAGIC + b"".join(value.to_bytes(size, "big") for value, size in fields)


@cache
def marked(mark: Mark, size: int) -> bytes:
    """Return bytes of this mark, from its first block on."""
    return b"".join(map(mark.block, range(-(-size // BLOCK_BYTES))))[:size]


def parse(block: bytes) -> tuple[Mark, int] | None:
    """Return whose block this is and where it belongs, if it is one."""
    if len(block) < BLOCK_BYTES or not block.startswith(MAGIC):
        return None
    cuts = (4, 6, 8, 10, 11, 16)
    numbers = [int.from_bytes(block[start:end], "big") for start, end in pairwise(cuts)]
    return Mark(*numbers[:4]), numbers[4]


def fault(mark: Mark, data: bytes, start: int = 0) -> str:
    """Say what is wrong with a tensor's bytes from ``start`` on; "" if nothing is."""
    right = marked(mark, start + len(data))[start:]
    if data == right:
        return ""
    at = next((i for i, (is_, should) in enumerate(zip(data, right, strict=False)) if is_ != should), len(data))
    block_at = max(0, (start + at) // BLOCK_BYTES * BLOCK_BYTES - start)
    block = data[block_at : block_at + BLOCK_BYTES]
    found = parse(block)
    what = f"{found[0]} block {found[1]}" if found else "zeros" if not any(block) else "no mark" if block else "its end"
    return f"at byte {start + at} of {mark} is {what}"


def owners(dump: bytes) -> set[tuple[int, int, int]]:
    """Return whose marks are anywhere in some bytes, however they are aligned."""
    return {mark.owner for mark in _marks(dump)}


def _marks(dump: bytes) -> Iterator[Mark]:
    for match in re.finditer(re.escape(MAGIC), dump):
        found = parse(dump[match.start() : match.start() + BLOCK_BYTES])
        if found is not None:
            yield found[0]
