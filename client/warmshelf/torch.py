"""A lease's tensors as torch tensors: not copied, or copied to a device.

Those that are not copied share one storage, the segment, at their offsets. Names that are tied
in the artifact are tied here, either way.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from functools import lru_cache

import torch

from warmshelf._cuda import CudaRuntime
from warmshelf.client import Shelf
from warmshelf.device import RING, Arriving, Ring, Runtime, upload, upload_registered
from warmshelf.dtypes import DTYPES, Dtype
from warmshelf.errors import InvalidRequest, SegmentCorrupt, UnsupportedDtype
from warmshelf.layout import TensorSpec
from warmshelf.lease import Lease
from warmshelf.shard import Shard


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


def to_device(lease: Lease, device: str | torch.device, *, register: bool = False) -> dict[str, torch.Tensor]:
    """Return every tensor by its name on a device, all of them there; the lease may end then.

    For CUDA the bytes go through a ring of pinned memory, which threads fill while the device reads, on a stream
    beside the current one. Small tensors share blocks of the device's memory. For ``cpu`` this is ``tensors``.

    Args:
        lease: acquired with ``writable=False``, if it is mapped and the device is not the CPU.
        device: ``cpu``, ``cuda`` or ``cuda:INDEX``.
        register: let the device read the mapping itself, which is registered for the time. That locks
            the pages and takes longer than it saves, but for the largest.

    Raises:
        InvalidRequest: another device; a mapping that is copy-on-write; or, to register, what is not mapped whole.
        FeatureUnsupported: the device cannot read such a mapping, or the driver refuses to register it.
        UnsupportedDtype: this torch lacks a dtype; names tensor and dtype, before anything is copied.
    """
    where = torch.device(device)
    return tensors(lease) if where.type == "cpu" else place(lease, _runtime(where), register=register)


def stream_to_device(
    shelf: Shelf,
    artifact_id: str,
    device: str | torch.device,
    *,
    shard: Shard | None = None,
    timeout: float | None = None,
) -> dict[str, torch.Tensor]:
    """Return every tensor of an artifact on a device, copied there while the next ones are still on their way.

    The lease has ended when this returns. See ``Shelf.stream_tensors`` and ``to_device``.
    """
    where = torch.device(device)
    if where.type == "cpu":
        with shelf.acquire(artifact_id, shard=shard, timeout=timeout) as lease:
            return tensors(lease)
    runtime = _runtime(where)
    return place_arriving(shelf.stream_tensors(artifact_id, shard=shard, timeout=timeout, writable=False), runtime)


def place(lease: Lease, runtime: Runtime, *, register: bool = False, ring: Ring = RING) -> dict[str, torch.Tensor]:
    """Do what ``to_device`` does by a runtime of the caller's."""
    artifact_id = lease.artifact.artifact_id
    if lease.transport == "mapped" and lease.writable:
        raise InvalidRequest(f"the lease on {artifact_id!r} is copy-on-write: acquire it with writable=False")
    if register and (lease.transport != "mapped" or lease.strides):
        raise InvalidRequest(f"the lease on {artifact_id!r} is no mapping of whole tensors: nothing to register")
    for spec in lease.specs.values():
        _torch_form(spec)
    if register:
        found = upload_registered(_bytes_tensor(lease.segment_view), lease.specs.values(), runtime)
    else:
        found = upload(((spec, lease[name]) for name, spec in lease.specs.items()), runtime, ring)
    return _all_typed(found, lease.specs)


def place_arriving(arriving: Arriving, runtime: Runtime, ring: Ring = RING) -> dict[str, torch.Tensor]:
    """Do what ``stream_to_device`` does by a runtime of the caller's."""
    specs: dict[str, TensorSpec] = {}

    def noted() -> Iterator[tuple[TensorSpec, memoryview]]:
        for spec, view in arriving:
            _torch_form(spec)
            specs[spec.name] = spec
            yield spec, view

    return _all_typed(upload(noted(), runtime, ring), specs)


def _runtime(where: torch.device) -> Runtime:
    if where.type != "cuda":
        raise InvalidRequest(f"tensors are brought to cpu and cuda, not to {where}: use torch's own to()")
    return CudaRuntime(where)


def _all_typed(found: Mapping[str, torch.Tensor], specs: Mapping[str, TensorSpec]) -> dict[str, torch.Tensor]:
    return {name: _typed(found[name], spec) for name, spec in specs.items()}


def _typed(data: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """Return bytes as what they are."""
    dtype, shape = _torch_form(spec)
    return data.view(dtype).view(shape)


def _torch_form(spec: TensorSpec) -> tuple[torch.dtype, tuple[int, ...]]:
    """Return a tensor's dtype and shape in torch."""
    row = DTYPES[spec.dtype]
    return _torch_dtype(row, spec), _shape(row, spec)


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
