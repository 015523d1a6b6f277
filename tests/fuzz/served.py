"""Every request of the protocol, as bytes, to a daemon without its servers in this process.

The first byte says which call, the rest is its message. What a call answers does not
matter: it ends, with an answer or a typed error, and the daemon's own invariants hold.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError, Message

from fuzz.oracle import Target
from kit.inner_core import InnerCore
from kit.models import filled, safetensors_bytes
from warmshelf.v1 import capabilities_pb2, catalog_pb2, lease_pb2, transfer_pb2
from warmshelfd.servicers.capabilities import CapabilitiesServicer
from warmshelfd.servicers.catalog import CatalogServicer
from warmshelfd.servicers.lease import LeaseServicer

CALL_SECONDS = 0.05
"""What a call is given; whatever lasts is ended then."""

SESSION_ID = "5" * 32
LEASE_ID = "1e" * 16
_SWEEP_COUNT = 200
"""After so many calls everything is removed, so that the catalog stays small."""


class Context:
    """What a servicer asks of gRPC."""

    def time_remaining(self) -> float:
        return CALL_SECONDS

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    async def write(self, message: bytes) -> None:
        assert isinstance(message, bytes)


class Served:
    """The daemon, and its calls by number."""

    def __init__(self) -> None:
        logging.disable(logging.CRITICAL)
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self.root = Path(tempfile.mkdtemp())
        (self.root / "a.safetensors").write_bytes(safetensors_bytes(filled(1)))
        (self.root / "arena").mkdir()
        self._count = 0
        self._core = self._loop.run_until_complete(self._start())

    async def _start(self) -> InnerCore:
        core = InnerCore(self.root, str(self.root / "arena"))
        shelf, leasing, observing = core.shelf, core.leasing, core.observing
        await shelf.start()
        catalog = CatalogServicer(shelf, leasing, observing)
        lease = LeaseServicer(shelf, leasing, core.arena.directory)
        capabilities = CapabilitiesServicer(core.daemon._capabilities(), observing)
        transfer = core.daemon._transfer
        self.calls: Sequence[tuple[type[Message], Callable[..., Any]]] = (
            (catalog_pb2.RegisterArtifactRequest, catalog.RegisterArtifact),
            (catalog_pb2.GetArtifactRequest, catalog.GetArtifact),
            (catalog_pb2.ListArtifactsRequest, catalog.ListArtifacts),
            (catalog_pb2.LoadArtifactRequest, catalog.LoadArtifact),
            (catalog_pb2.EvictArtifactRequest, catalog.EvictArtifact),
            (catalog_pb2.RemoveArtifactRequest, catalog.RemoveArtifact),
            (catalog_pb2.VerifyArtifactRequest, catalog.VerifyArtifact),
            (catalog_pb2.WatchArtifactsRequest, catalog.WatchArtifacts),
            (lease_pb2.OpenSessionRequest, lease.OpenSession),
            (lease_pb2.AcquireLeaseRequest, lease.AcquireLease),
            (lease_pb2.ReleaseLeaseRequest, lease.ReleaseLease),
            (lease_pb2.ListLeasesRequest, lease.ListLeases),
            (transfer_pb2.ReadSegmentRequest, transfer.read_segment),
            (transfer_pb2.ReadTensorsRequest, transfer.read_tensors),
            (transfer_pb2.ReadLayoutRequest, transfer.read_layout),
            (capabilities_pb2.GetCapabilitiesRequest, capabilities.GetCapabilities),
            (capabilities_pb2.GetCapacityRequest, capabilities.GetCapacity),
        )
        return core

    def serve(self, data: bytes) -> None:
        """Serve one request."""
        kind, call = self.calls[data[0] % len(self.calls)]
        request = kind.FromString(data[1:])
        for field in ("session_id",):  # a secret that no fuzzer finds
            if getattr(request, field, None) == SESSION_ID:
                setattr(request, field, self._core.session_id)
        self._loop.run_until_complete(self._ended(call(request, Context())))
        self._count += 1
        if self._count % _SWEEP_COUNT == 0:
            self._loop.run_until_complete(self._sweep())

    async def _ended(self, answer: Any) -> None:
        """Let a call end: by itself, or because its time is over."""
        task = asyncio.ensure_future(_drained(answer) if inspect.isasyncgen(answer) else answer)
        done, _ = await asyncio.wait([task], timeout=4 * CALL_SECONDS)
        if not done:
            task.cancel()
            await asyncio.wait([task])
        elif task.exception() is not None:
            await task

    async def _sweep(self) -> None:
        shelf = self._core.shelf
        shelf.leases.check()
        shelf.catalog.check()
        for entry in list(shelf.catalog):
            await shelf.remove(entry.artifact_id)


async def _drained(messages: Any) -> None:
    async for _ in messages:
        pass


@cache
def _served() -> Served:
    return Served()


def serve(data: bytes) -> None:
    """The target."""
    if data:
        try:
            _served().serve(data)
        except DecodeError:  # the guard answers that
            pass
        except NotImplementedError:
            pass


def served_requests() -> list[bytes]:
    """Return good requests of every call, in an order in which they find something to do."""
    source = catalog_pb2.RegisterArtifactRequest(artifact_id="a")
    source.spec.source.uri = f"file://{_served().root}/a.safetensors"
    fields: dict[str, Any] = {"artifact_id": "a", "session_id": SESSION_ID, "lease_id": LEASE_ID}
    seeds = [b"\0" + source.SerializeToString()]
    for number, (kind, _) in enumerate(_served().calls):
        known = {name: value for name, value in fields.items() if name in kind.DESCRIPTOR.fields_by_name}
        seeds.append(bytes([number]) + kind(**known).SerializeToString())
    return seeds


TARGETS = {"requests": Target(serve, served_requests, seeds_are_good=False)}
