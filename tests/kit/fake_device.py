"""A device without a device: what a CUDA runtime promises, on plain memory, and strict about what it may be asked.

Copies that are begun are done late, when somebody waits for them, so whoever writes into a slot too early is found out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

UNTOUCHED = 0xA5


@dataclass
class FakeCopy:
    """A copy that was begun. ``at`` is the address that it reads."""

    target: torch.Tensor
    source: torch.Tensor
    done: bool = False

    @property
    def at(self) -> int:
        return self.source.data_ptr()


@dataclass
class FakeRuntime:
    """Knows every copy, in order, all pinned memory and what is registered."""

    reads_read_only: bool = True
    before_copy: Callable[[int], None] = lambda count: None
    before_register: Callable[[int], None] = lambda count: None
    copies: list[FakeCopy] = field(default_factory=list)
    slots: list[torch.Tensor] = field(default_factory=list)
    blocks: list[torch.Tensor] = field(default_factory=list)
    registered: dict[int, int] = field(default_factory=dict)
    register_sizes: list[int] = field(default_factory=list)
    waited_for: list[int] = field(default_factory=list)
    finish_count: int = 0

    def allocate(self, size_bytes: int) -> torch.Tensor:
        self.blocks.append(torch.full((size_bytes,), UNTOUCHED, dtype=torch.uint8))
        return self.blocks[-1]

    def pinned(self, size_bytes: int) -> torch.Tensor:
        self.slots.append(torch.full((size_bytes,), UNTOUCHED, dtype=torch.uint8))
        return self.slots[-1]

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> FakeCopy:
        self.before_copy(len(self.copies))
        assert target.dtype == source.dtype == torch.uint8
        assert len(target) == len(source) > 0
        assert self._is_locked(source), "the device reads memory that is neither pinned nor registered"
        self.copies.append(FakeCopy(target, source))
        return self.copies[-1]

    def wait(self, event: FakeCopy) -> None:
        at = next(i for i, one in enumerate(self.copies) if one is event)
        self.waited_for.append(at)
        self._do(at + 1)

    def finish(self) -> None:
        self.finish_count += 1
        self._do(len(self.copies))

    def registers_read_only(self) -> bool:
        return self.reads_read_only

    def register(self, address: int, size_bytes: int) -> None:
        self.before_register(len(self.register_sizes))
        assert address % 4096 == 0
        for other, size in self.registered.items():
            assert address + size_bytes <= other or other + size <= address, "a page is registered twice"
        self.registered[address] = size_bytes
        self.register_sizes.append(size_bytes)

    def unregister(self, address: int) -> None:
        assert all(one.done for one in self.copies), "the device still reads"
        del self.registered[address]

    @property
    def addresses(self) -> list[int]:
        """What each copy read."""
        return [one.at for one in self.copies]

    def _is_locked(self, source: torch.Tensor) -> bool:
        start, end = source.data_ptr(), source.data_ptr() + len(source)
        slots = ((slot.data_ptr(), len(slot)) for slot in self.slots)
        return any(at <= start and end <= at + size for at, size in (*slots, *self.registered.items()))

    def _do(self, count: int) -> None:
        for one in self.copies[:count]:
            if not one.done:
                one.target.copy_(one.source)
                one.done = True
