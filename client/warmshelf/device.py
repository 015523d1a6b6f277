"""A lease's tensors on a device. Names that are tied in the artifact are tied there.

Decides whether a lease may go there, and by which way; ``_device_ring.py`` has the ways. Knows no CUDA.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from warmshelf._cuda import CudaRuntime
from warmshelf._device_ring import RING, Arriving, Ring, Runtime, upload, upload_registered
from warmshelf._torch_tensors import bytes_tensor, tensors, torch_form, typed
from warmshelf.client import Shelf
from warmshelf.errors import InvalidRequest
from warmshelf.layout import TensorSpec
from warmshelf.lease import Lease
from warmshelf.shard import Shard


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
        torch_form(spec)
    if register:
        found = upload_registered(bytes_tensor(lease.segment_view), lease.specs.values(), runtime)
    else:
        found = upload(((spec, lease[name]) for name, spec in lease.specs.items()), runtime, ring)
    return _all_typed(found, lease.specs)


def place_arriving(arriving: Arriving, runtime: Runtime, ring: Ring = RING) -> dict[str, torch.Tensor]:
    """Do what ``stream_to_device`` does by a runtime of the caller's."""
    specs: dict[str, TensorSpec] = {}

    def noted() -> Iterator[tuple[TensorSpec, memoryview]]:
        for spec, view in arriving:
            torch_form(spec)
            specs[spec.name] = spec
            yield spec, view

    return _all_typed(upload(noted(), runtime, ring), specs)


def _runtime(where: torch.device) -> Runtime:
    if where.type != "cuda":
        raise InvalidRequest(f"tensors are brought to cpu and cuda, not to {where}: use torch's own to()")
    return CudaRuntime(where)


def _all_typed(found: Mapping[str, torch.Tensor], specs: Mapping[str, TensorSpec]) -> dict[str, torch.Tensor]:
    return {name: typed(found[name], spec) for name, spec in specs.items()}
