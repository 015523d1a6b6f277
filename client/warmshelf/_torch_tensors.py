"""A lease's tensors as torch tensors, not copied.

All share one storage, the segment, at their offsets, so names that are tied in the
artifact are tied here.
"""

from __future__ import annotations

import warnings
from functools import lru_cache

import torch

from warmshelf.dtypes import DTYPES, Dtype
from warmshelf.errors import SegmentCorrupt, UnsupportedDtype
from warmshelf.layout import TensorSpec
from warmshelf.lease import Lease


def tensors(lease: Lease) -> dict[str, torch.Tensor]:
    """Return every tensor by its name.

    The tensors keep the lease's memory alive, also after its release. Writing to one
    changes this lease's copy only. Packed F4 has torch's shape, whose last dimension counts pairs.

    Raises:
        UnsupportedDtype: this torch lacks a dtype; names tensor and dtype.
    """
    segment = _bytes_tensor(lease.segment_view)
    typed: dict[str, torch.Tensor] = {}  # the whole segment as each dtype: then a tensor costs one call of torch
    strides = lease.strides
    return {name: _tensor(segment, typed, spec, strides.get(name)) for name, spec in lease.specs.items()}


def _bytes_tensor(view: memoryview) -> torch.Tensor:
    with warnings.catch_warnings():
        # A segment on hugetlbfs is mapped read-only. Writing to it faults, as documented.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(view, dtype=torch.uint8)


def _tensor(
    segment: torch.Tensor, typed: dict[str, torch.Tensor], spec: TensorSpec, strides: tuple[int, ...] | None
) -> torch.Tensor:
    row = DTYPES[spec.dtype]
    whole = typed.get(spec.dtype)
    if whole is None:
        dtype = _torch_dtype(row, spec)
        whole = typed[spec.dtype] = segment[: len(segment) - len(segment) % dtype.itemsize].view(dtype)
    shape = _shape(row, spec)
    if spec.size_bytes == 0:
        return torch.empty(shape, dtype=whole.dtype)
    if spec.offset_bytes % row.align_bytes:
        raise SegmentCorrupt(f"tensor {spec.name!r} lies at {spec.offset_bytes}, no multiple of {row.align_bytes}")
    distances = _strides(shape) if strides is None else _packed(row, strides)
    return whole.as_strided(shape, distances, spec.offset_bytes // whole.dtype.itemsize)


@lru_cache(maxsize=1024)  # the tensors of a model have few shapes between them
def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the distances, in elements, of a dense row-major tensor."""
    strides = [1]
    for dim in reversed(shape[1:]):
        strides.append(strides[-1] * dim)
    return tuple(reversed(strides)) if shape else ()


def _packed(row: Dtype, strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return strides as torch counts them where it takes several elements for one; the last is 1 in both."""
    return (*(stride // row.packed for stride in strides[:-1]), *strides[-1:])


def _torch_dtype(row: Dtype, spec: TensorSpec) -> torch.dtype:
    dtype = getattr(torch, row.torch_name, None) if row.torch_name else None
    if not isinstance(dtype, torch.dtype):
        raise UnsupportedDtype(
            f"tensor {spec.name!r} has dtype {spec.dtype}, which torch {torch.__version__} lacks",
            tensor=spec.name,
            dtype=spec.dtype,
        )
    return dtype


def _shape(row: Dtype, spec: TensorSpec) -> tuple[int, ...]:
    if row.packed == 1:
        return spec.shape
    if not spec.shape or spec.shape[-1] % row.packed:
        raise UnsupportedDtype(
            f"tensor {spec.name!r} is {spec.dtype} of shape {spec.shape}: torch takes its last dimension in pairs",
            tensor=spec.name,
            dtype=spec.dtype,
        )
    return (*spec.shape[:-1], spec.shape[-1] // row.packed)
