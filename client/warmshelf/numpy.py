"""A lease's tensors as numpy arrays, not copied.

numpy lacks dtypes that models use. What it lacks is given as the bits themselves, in
unsigned integers of the same width, and never widened: BF16 as uint16, the 8-bit floats as
uint8. Packed F4 is uint8 with two elements in each, its last dimension halved. F6,
and F4 whose last dimension is odd, are uint8 in one dimension, as they lie in memory.
``lease.specs`` has the true dtypes and shapes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from warmshelf.dtypes import DTYPES, Dtype
from warmshelf.layout import TensorSpec
from warmshelf.lease import Lease

_BITS = {8: "u1", 16: "<u2"}  # of the dtypes that numpy lacks and whose elements fill bytes


def arrays(lease: Lease) -> dict[str, NDArray[Any]]:
    """Return every tensor by its name.

    The arrays keep the lease's memory alive, also after its release. Unless it was acquired
    with ``writable=False``, they can be written to: that changes this lease's copy only.
    """
    segment = np.frombuffer(lease.segment_view, dtype=np.uint8)
    strides = lease.strides
    return {name: _array(segment, spec, strides.get(name)) for name, spec in lease.specs.items()}


def _array(segment: NDArray[np.uint8], spec: TensorSpec, strides: tuple[int, ...] | None) -> NDArray[Any]:
    row = DTYPES[spec.dtype]
    if strides is not None:
        return _strided(segment, spec, row, strides)
    data = segment[spec.offset_bytes : spec.end_bytes]
    return data.view(row.numpy_name or _BITS.get(row.bits, "u1")).reshape(_shape(row, spec))


def _strided(segment: NDArray[np.uint8], spec: TensorSpec, row: Dtype, strides: tuple[int, ...]) -> NDArray[Any]:
    """Return a view of a slice; its bytes lie inside those of the tensor that it is cut from."""
    dtype = np.dtype(row.numpy_name or _BITS.get(row.bits, "u1"))
    shape = _shape(row, spec)
    distances = [stride * row.bits // 8 for stride in strides[:-1]] + [dtype.itemsize]
    data = segment[spec.offset_bytes :]
    view: NDArray[Any] = np.ndarray(shape, dtype, data, strides=distances)
    return view


def _shape(row: Dtype, spec: TensorSpec) -> tuple[int, ...]:
    if row.bits >= 8:  # noqa: PLR2004 - a byte
        return spec.shape
    if spec.shape and row.packed > 1 and spec.shape[-1] % row.packed == 0:
        return (*spec.shape[:-1], spec.shape[-1] // row.packed)
    return (spec.size_bytes,)
