"""Where each tensor of one generation lies: nouns and pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from warmshelf.dtypes import DTYPES, Dtype, size_bytes
from warmshelf.errors import SegmentCorrupt


class TensorSpec(NamedTuple):
    """One named array and where its bytes lie.

    A tuple, because a large model has 90,000 and a worker waits while they are made.

    Attributes:
        name: the name in the source.
        dtype: a name of ``warmshelf.dtypes.DTYPES``.
        shape: row-major; ``()`` for a scalar.
        offset_bytes: first byte, from the start of the segment.
        size_bytes: length; 0 for a tensor without elements.
        segment_index: which segment of the layout.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int
    size_bytes: int
    segment_index: int = 0

    @property
    def end_bytes(self) -> int:
        """First byte after the tensor."""
        return self.offset_bytes + self.size_bytes


@dataclass(frozen=True, slots=True)
class SegmentSpec:
    """One sealed file of the arena."""

    segment_index: int
    segment_id: str
    size_bytes: int
    content_size_bytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where every tensor of one generation lies."""

    generation: int
    segments: tuple[SegmentSpec, ...]
    tensors: tuple[TensorSpec, ...]


def round_up(value: int, step: int) -> int:
    """Return the smallest multiple of ``step`` that is not below ``value``."""
    return -(-value // step) * step


def check_tensors(tensors: Iterable[TensorSpec], data_offset: int, data_end: int) -> None:
    """Check that every tensor is what its dtype and shape say and lies inside the data.

    Raises:
        SegmentCorrupt: one does not; names it.
    """
    for spec in tensors:
        row = DTYPES.get(spec.dtype)
        if row is None:
            raise SegmentCorrupt(f"tensor {spec.name!r} has unknown dtype {spec.dtype!r}", tensor=spec.name)
        if spec.size_bytes != _dense_size(row, spec):
            raise SegmentCorrupt(f"tensor {spec.name!r} has {spec.size_bytes} bytes, its shape another size")
        if not data_offset <= spec.offset_bytes <= spec.end_bytes <= data_end:
            raise SegmentCorrupt(f"tensor {spec.name!r} lies outside the segment's data", tensor=spec.name)


def _dense_size(row: Dtype, spec: TensorSpec) -> int:
    try:
        return size_bytes(row, spec.shape)
    except ValueError as error:
        raise SegmentCorrupt(
            f"tensor {spec.name!r} cannot have shape {spec.shape}: {error}", tensor=spec.name
        ) from error
