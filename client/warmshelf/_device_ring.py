"""Copies tensors from host memory to a device: through a ring of pinned memory, or from a registered mapping.

Decides what is copied from where to where, and in which order; a runtime does it (``_cuda.py`` is
CUDA's). Knows bytes, and neither dtypes, leases nor CUDA.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from warmshelf.errors import FeatureUnsupported, InvalidRequest
from warmshelf.layout import TensorSpec

SLOT_COUNT_MIN = 3
"""One slot is filled, one is read by the device, one is between."""

ALIGN_BYTES = 256
"""Where a tensor begins on the device: as in memory that CUDA allocates, so every kernel takes it."""

PART_BYTES = 8 << 20
"""The most that one thread copies at a time, so that all of them have work in every slot."""

REGISTERED_BYTES_MAX = 64 << 30
"""The most that is registered at once: drivers refuse more on some hosts."""

PAGE_BYTES = 4096
"""Registering locks whole pages, and no page twice. Segments begin and end at these."""

Arriving = Iterable[tuple[TensorSpec, memoryview]]


class Runtime(Protocol):
    """A device, its memory and one stream for copies. Called by one thread."""

    def allocate(self, size_bytes: int) -> torch.Tensor:
        """Return memory of the device, as bytes."""

    def pinned(self, size_bytes: int) -> torch.Tensor:
        """Return page-locked memory of the host, as bytes."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> Any:
        """Begin a copy to the device; return an event that comes when it is done."""

    def wait(self, event: Any) -> None:
        """Wait for an event."""

    def finish(self) -> None:
        """Wait until every copy is done; whatever the device does next may use the tensors."""

    def registers_read_only(self) -> bool:
        """Say whether the device can read memory that is mapped read-only, once it is registered."""

    def register(self, address: int, size_bytes: int) -> None:
        """Register memory of this process; RuntimeError if it cannot be."""

    def unregister(self, address: int) -> None:
        """Take that back."""


@dataclass(frozen=True, slots=True)
class Ring:
    """How large a ring is.

    Attributes:
        slot_bytes: of each slot: so many that to begin a copy costs nothing beside it.
        slot_count: how many are filled and read at once.
        thread_count: how many fill them: one alone is slower than the bus to the device.
    """

    slot_bytes: int = 64 << 20
    slot_count: int = 4
    thread_count: int = 4

    def __post_init__(self) -> None:
        if self.slot_count < SLOT_COUNT_MIN:
            raise InvalidRequest(f"a ring has at least {SLOT_COUNT_MIN} slots, not {self.slot_count}")


RING = Ring()


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor, its bytes in the host's memory, and where it begins in its block on the device."""

    spec: TensorSpec
    source: memoryview
    offset_bytes: int

    @property
    def end_bytes(self) -> int:
        """Where it ends in the block."""
        return self.offset_bytes + len(self.source)


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes, and where in a slot they go."""

    source: memoryview
    offset_bytes: int


def grouped(arriving: Arriving, block_bytes: int) -> Iterator[list[Placed]]:
    """Pack tensors into blocks of that size, in the order in which they come; a larger one has a block of its own."""
    group: list[Placed] = []
    for spec, source in arriving:
        begin = _up(group[-1].end_bytes, ALIGN_BYTES) if group else 0
        if group and begin + len(source) > block_bytes:
            yield group
            group, begin = [], 0
        group.append(Placed(spec, source, begin))
    if group:
        yield group


def pieces(group: Sequence[Placed], start: int, stop: int) -> Iterator[Piece]:
    """Yield what of a group's tensors lies in a range of its block, in pieces that a thread copies at once."""
    for placed in group:
        first, end = max(placed.offset_bytes, start), min(placed.end_bytes, stop)
        for begin in range(first, end, PART_BYTES):
            part = placed.source[begin - placed.offset_bytes : min(begin + PART_BYTES, end) - placed.offset_bytes]
            yield Piece(part, begin - start)


def upload(arriving: Arriving, runtime: Runtime, ring: Ring = RING) -> dict[str, torch.Tensor]:
    """Copy tensors as they come and return the bytes of each on the device, once all are there.

    While one slot is read by the device, others are filled, and more tensors may arrive. Names of the same
    bytes have the same ones there.

    Args:
        arriving: dense tensors. Each is let go once it is in the ring.
        runtime: the device's.
        ring: what is taken of pinned memory, at most.
    """
    ties: dict[str, str] = {}
    found: dict[str, torch.Tensor] = {}
    try:
        with ThreadPoolExecutor(ring.thread_count, "warmshelf-to-device") as pool:
            moving = _Moving(runtime, ring, pool)
            for group in grouped(_distinct(arriving, ties), ring.slot_bytes):
                block = runtime.allocate(group[-1].end_bytes)
                for start in range(0, len(block), ring.slot_bytes):
                    stop = min(start + ring.slot_bytes, len(block))
                    moving.put(block[start:stop], list(pieces(group, start, stop)))
                found.update(_of_block(block, group))
            moving.end()
        runtime.finish()
    except BaseException:
        with contextlib.suppress(Exception):
            runtime.finish()  # nothing may read the ring when it is gone
        raise
    return found | {name: found[same] for name, same in ties.items()}


@dataclass(frozen=True, slots=True)
class _Fill:
    """A slot that is being filled, and where it goes then."""

    slot: int
    target: torch.Tensor
    parts: Sequence[Future[None]]

    @property
    def is_done(self) -> bool:
        return all(part.done() for part in self.parts)


class _Moving:
    """The ring at work; one thread drives it, those of the pool only fill slots.

    ``_slots`` are pinned, and made when first needed; ``_events`` has for each the copy that last read it;
    ``_filling`` has those not yet sent to the device, in order.
    """

    def __init__(self, runtime: Runtime, ring: Ring, pool: ThreadPoolExecutor) -> None:
        self._runtime, self._ring, self._pool = runtime, ring, pool
        self._slots: list[torch.Tensor] = []
        self._events: list[Any] = []
        self._filling: deque[_Fill] = deque()
        self._put_count = 0

    def put(self, target: torch.Tensor, parts: Sequence[Piece]) -> None:
        """Begin to fill the next slot, once it is free; send those that are full."""
        if len(self._filling) == self._ring.slot_count:
            self._send()
        index = self._put_count % self._ring.slot_count
        self._put_count += 1
        memory = self._free(index, len(target)).numpy()
        self._filling.append(_Fill(index, target, [self._pool.submit(_copy, memory, part) for part in parts]))
        while self._filling and self._filling[0].is_done:
            self._send()

    def end(self) -> None:
        """Send all that is left."""
        while self._filling:
            self._send()

    def _free(self, index: int, size_bytes: int) -> torch.Tensor:
        """Return a slot that nobody reads any more, with room for that many bytes."""
        if index == len(self._slots):
            self._slots.append(self._pinned(size_bytes))
            self._events.append(None)
        elif self._events[index] is not None:
            self._runtime.wait(self._events[index])
        if len(self._slots[index]) < size_bytes:
            self._slots[index] = self._pinned(size_bytes)
        return self._slots[index]

    def _pinned(self, size_bytes: int) -> torch.Tensor:
        """Return memory for a slot, no more than a small artifact needs: locking takes longer than copying."""
        return self._runtime.pinned(min(self._ring.slot_bytes, 1 << (size_bytes - 1).bit_length()))

    def _send(self) -> None:
        fill = self._filling.popleft()
        for part in fill.parts:
            part.result()
        self._events[fill.slot] = self._runtime.copy(fill.target, self._slots[fill.slot][: len(fill.target)])


def _copy(memory: Any, piece: Piece) -> None:
    end = piece.offset_bytes + len(piece.source)
    np.copyto(memory[piece.offset_bytes : end], np.frombuffer(piece.source, np.uint8))  # without Python's lock


def registrations(specs: Iterable[TensorSpec], bytes_max: int) -> list[tuple[int, int]]:
    """Return the ranges of pages that tensors lie in, cut where a tensor ends, none longer than the limit.

    A tensor that is longer itself is cut within. Where two tensors share a page, the first one's range has it.
    """
    taken = [spec for spec in specs if spec.size_bytes]
    ends = sorted(_up(spec.end_bytes, PAGE_BYTES) for spec in taken)
    begin = min((spec.offset_bytes for spec in taken), default=0) // PAGE_BYTES * PAGE_BYTES
    found: list[tuple[int, int]] = []
    while ends and begin < ends[-1]:
        limit = begin + bytes_max // PAGE_BYTES * PAGE_BYTES
        at = bisect_right(ends, limit)
        end = ends[at - 1] if at and ends[at - 1] > begin else limit
        found.append((begin, end))
        begin = end
    return found


def upload_registered(
    segment: torch.Tensor, specs: Iterable[TensorSpec], runtime: Runtime, bytes_max: int = REGISTERED_BYTES_MAX
) -> dict[str, torch.Tensor]:
    """Copy tensors right from a mapping that is registered for the time, and return them as ``upload`` does.

    Args:
        segment: the mapping, read-only and shared.
        specs: dense tensors in it.
        runtime: the device's.
        bytes_max: the most that is registered at once.

    Raises:
        FeatureUnsupported: the device or the driver refuses. Nothing stays registered.
    """
    if not runtime.registers_read_only():
        raise FeatureUnsupported("the device cannot read memory that is mapped read-only", features="register")
    ties: dict[str, str] = {}
    found: dict[str, torch.Tensor] = {}
    wanted = list(specs)
    ranges = registrations(wanted, bytes_max)
    view = memoryview(segment.numpy())
    arriving = ((spec, view[spec.offset_bytes : spec.end_bytes]) for spec in wanted)
    with contextlib.ExitStack() as stack:
        for start, stop in ranges:
            _register(runtime, segment, start, min(stop, len(segment)), stack)
        stack.callback(runtime.finish)  # before anything is unregistered, whatever happens
        for group in grouped(_distinct(arriving, ties), RING.slot_bytes):
            block = runtime.allocate(group[-1].end_bytes)
            for placed in group:
                _copy_registered(runtime, segment, placed, block, ranges)
            found.update(_of_block(block, group))
    return found | {name: found[same] for name, same in ties.items()}


def _register(runtime: Runtime, segment: torch.Tensor, start: int, stop: int, stack: contextlib.ExitStack) -> None:
    address = segment.data_ptr() + start
    try:
        runtime.register(address, stop - start)
    except RuntimeError as error:
        raise FeatureUnsupported(
            f"{stop - start} bytes of the segment from {start} cannot be registered: {error}", features="register"
        ) from error
    stack.callback(runtime.unregister, address)


def _copy_registered(
    runtime: Runtime, segment: torch.Tensor, placed: Placed, block: torch.Tensor, ranges: Sequence[tuple[int, int]]
) -> None:
    """Copy a tensor by as many copies as there are ranges that it lies in: none may cross an edge."""
    begin, end = placed.spec.offset_bytes, placed.spec.end_bytes
    at = bisect_right(ranges, begin, key=lambda one: one[0]) - 1
    while begin < end:
        stop = min(end, ranges[at][1])
        first = placed.offset_bytes + begin - placed.spec.offset_bytes
        runtime.copy(block[first : first + stop - begin], segment[begin:stop])
        begin, at = stop, at + 1


def _distinct(arriving: Arriving, ties: dict[str, str]) -> Iterator[tuple[TensorSpec, memoryview]]:
    """Leave out names of bytes that have come under another name, and note whose they are."""
    names: dict[tuple[object, ...], str] = {}
    for spec, source in arriving:
        same = names.setdefault((spec.offset_bytes, spec.size_bytes, spec.dtype, spec.shape), spec.name)
        if same == spec.name:
            yield spec, source
        else:
            ties[spec.name] = same


def _of_block(block: torch.Tensor, group: Sequence[Placed]) -> dict[str, torch.Tensor]:
    return {placed.spec.name: block[placed.offset_bytes : placed.end_bytes] for placed in group}


def _up(size_bytes: int, unit_bytes: int) -> int:
    return -(-size_bytes // unit_bytes) * unit_bytes
