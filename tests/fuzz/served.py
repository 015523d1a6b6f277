"""Every request of the protocol, as bytes, to a daemon without its servers in this process.

The first byte says which call, the rest is its message. What a call answers does not
matter: it ends, with an answer or a typed error, and the daemon's own invariants hold.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import inspect
import logging
import pkgutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import crc32c
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from fuzz.oracle import Target
from kit.inner_core import InnerCore
from kit.models import filled, safetensors_bytes
from warmshelf import v1
from warmshelf.v1 import catalog_pb2, push_pb2
from warmshelfd.servicers.alias import AliasServicer
from warmshelfd.servicers.capabilities import CapabilitiesServicer
from warmshelfd.servicers.catalog import CatalogServicer
from warmshelfd.servicers.lease import LeaseServicer
from warmshelfd.servicers.push import PushServicer
from warmshelfd.servicers.residency import ResidencyServicer
from warmshelfd.underway import Underway

CALL_SECONDS = 0.05
"""What a call is given; whatever lasts is ended then."""

SESSION_ID = "5" * 32
LEASE_ID = "1e" * 16
PUSH_ID = "ab" * 16
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
        await core.daemon._pushing.start()
        transfer = core.daemon._transfer
        underway = Underway(shelf, core.daemon._residency_map, core.daemon._claims)
        servicers: dict[str, Any] = {
            "AliasService": AliasServicer(shelf.aliases),
            "CapabilitiesService": CapabilitiesServicer(core.daemon._capabilities, observing, core.daemon.resizing),
            "CatalogService": CatalogServicer(shelf, leasing, observing),
            "LeaseService": LeaseServicer(shelf, leasing, core.arena.directory),
            "PushService": PushServicer(core.daemon._pushing, CALL_SECONDS),
            "ResidencyService": ResidencyServicer(core.daemon._residency_map, shelf.aliases, underway),
        }
        framed = {
            "ReadSegment": transfer.read_segment,
            "ReadTensors": transfer.read_tensors,
            "ReadLayout": transfer.read_layout,
        }
        self.calls: Sequence[tuple[type[Message], Callable[..., Any]]] = [
            (GetMessageClass(method.input_type), framed.get(method.name) or _call_of(servicers, method))
            for method in methods()
        ]
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
        for push in self._core.daemon._pushing._book:
            await self._core.daemon._pushing.abandon(push.push_id)


def methods() -> list[MethodDescriptor]:
    """Return every call of every service that the protocol has."""
    names = [module.name for module in pkgutil.iter_modules(v1.__path__) if module.name.endswith("_pb2")]
    files = [importlib.import_module(f"{v1.__name__}.{name}").DESCRIPTOR for name in names]
    services = [service for file in files for service in file.services_by_name.values()]
    return [method for service in services for method in service.methods]


def _call_of(servicers: dict[str, Any], method: MethodDescriptor) -> Callable[..., Any]:
    """Return what carries a call out; one that takes a stream gets the message twice."""
    call: Callable[..., Any] = getattr(servicers[method.containing_service.name], method.name)
    if not method.client_streaming:
        return call
    return lambda request, context: call(_stream(request), context)


async def _stream(request: Message) -> AsyncIterator[Message]:
    for _ in range(2):
        yield request


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
    data = safetensors_bytes(filled(1))
    fields |= {"push_id": PUSH_ID, "data": data, "crc32c": crc32c.crc32c(data), "name": "newest"}
    fields |= {"file_sha256": [hashlib.sha256(data).digest()]}
    register = [method.name for method in methods()].index("RegisterArtifact")
    seeds = [bytes([register]) + source.SerializeToString()]
    for number, (kind, _) in enumerate(_served().calls):
        known = {name: value for name, value in fields.items() if name in kind.DESCRIPTOR.fields_by_name}
        request = kind(**known)
        if isinstance(request, push_pb2.BeginPushRequest):
            request.artifact_id = "p"  # "a" is another source's
            request.files.add(name="model.safetensors", size_bytes=len(data))
        seeds.append(bytes([number]) + request.SerializeToString())
    return seeds


TARGETS = {"requests": Target(serve, served_requests, seeds_are_good=False)}
