"""What the daemon has for one tenant, or for what belongs to none: all of it, assembled.

A catalog, a registry, an arena, a spool, sources and the use cases on them, each of its own. So nothing
that one of them is asked can meet what belongs to another. Knows neither who calls nor that
there are others; what all have in common is handed in.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any

from warmshelf._volume import directory_identity
from warmshelf.errors import SegmentCorrupt
from warmshelf.types import ArtifactState, Capabilities
from warmshelf.v1 import (
    alias_pb2_grpc,
    capabilities_pb2_grpc,
    catalog_pb2_grpc,
    lease_pb2_grpc,
    push_pb2_grpc,
    residency_pb2_grpc,
)
from warmshelfd import __version__
from warmshelfd.domain.catalog import Catalog, Entry
from warmshelfd.domain.changes import Changes
from warmshelfd.fleet import Fleet
from warmshelfd.formats.detect import FORMAT_NAMES
from warmshelfd.hashing import Hashing
from warmshelfd.leasing import Leasing
from warmshelfd.loading import Loader
from warmshelfd.memory.arena import Arena
from warmshelfd.metrics import Metrics
from warmshelfd.observing import Observing
from warmshelfd.opening import open_spool
from warmshelfd.parts import (
    claims_of,
    lease_table_of,
    load_threads_of,
    neighbours_of,
    registry_of,
    residency_map_of,
    sources_of,
)
from warmshelfd.pushing import Pushing
from warmshelfd.residency import Residency
from warmshelfd.resizing import Resizing
from warmshelfd.servicers.alias import AliasServicer
from warmshelfd.servicers.capabilities import CapabilitiesServicer
from warmshelfd.servicers.catalog import CatalogServicer
from warmshelfd.servicers.flight import FlightBudget
from warmshelfd.servicers.handlers import Handlers
from warmshelfd.servicers.lease import LeaseServicer
from warmshelfd.servicers.push import PushServicer
from warmshelfd.servicers.residency import ResidencyServicer
from warmshelfd.servicers.transfer import TransferServicer
from warmshelfd.servicers.uploads import Uploads
from warmshelfd.settings import Settings
from warmshelfd.shelf import Shelf
from warmshelfd.spool.place import scheme_of
from warmshelfd.tracing import Tracing
from warmshelfd.underway import Underway
from warmshelfd.upkeep import Upkeep
from warmshelfd.warmth import Warmth


@dataclass(frozen=True, slots=True)
class Common:
    """What all tenants have in common.

    ``threads`` are those that unlink, map and probe; ``flight`` bounds the bytes on their way; below ``spool`` lies
    what any of them has pushed.
    """

    metrics: Metrics
    tracing: Tracing
    threads: Executor
    flight: FlightBudget
    spool: str


class Tenancy:
    """What belongs to one tenant. On the event loop."""

    def __init__(self, name: str, settings: Settings, arena: Arena, common: Common) -> None:
        """``settings`` and ``arena`` are the tenant's own."""
        self.name = name
        self.arena = arena
        self._settings = settings
        self._tracing = common.tracing
        metrics = common.metrics.for_tenant(name)
        self._sources = sources_of(settings)
        catalog = Catalog(artifact_count_max=settings.artifact_count_max, on_change=self._on_change)
        leases = lease_table_of(settings)
        floor_bytes = settings.adapter_floor_bytes(arena.budget_bytes)
        residency = Residency(arena, catalog, leases, common.threads, floor_bytes, metrics)
        registry = registry_of(settings, name, metrics)
        self._residency_map = residency_map_of(settings, name, catalog, metrics)
        neighbours = neighbours_of(settings, name, self._residency_map, metrics)
        self._claims = claims_of(settings, name, self._residency_map, neighbours, metrics)
        loader = Loader(self._sources, residency, registry, load_threads_of(settings), neighbours, self._claims)
        self.shelf = Shelf(
            catalog=catalog,
            leases=leases,
            residency=residency,
            registry=registry,
            sources=self._sources,
            loader=loader,
            on_ready=self._on_ready,
            metrics=metrics,
            tracing=common.tracing,
        )
        self._fleet = Fleet(self.shelf, registry)
        self._hashing = Hashing(self.shelf)
        self.leasing = Leasing(self.shelf, self._hashing)
        # Microseconds since 1970: above whatever number a daemon before this one gave.
        changes = Changes(first_sequence=time.time_ns() // 1000, change_count_max=settings.change_count_max)
        self.observing = Observing(self.shelf, changes)
        self.resizing = Resizing(self.shelf, settings.adapter_floor_bytes)
        self.upkeep = Upkeep(
            self.shelf,
            self.leasing,
            declare=settings.declare,
            follow_seconds=settings.follow_seconds,
            place=self._sources.place,
        )
        self.leasing.register_unknown = self.upkeep.register_unknown
        self._pushing = Pushing(open_spool(settings), self.shelf, loader, settings.push_limits())
        if name:
            self.shelf.registering.is_own = partial(_is_pushed, self.shelf.registering.is_own, common.spool)
        uploads = Uploads(self.leasing, settings.uploads_max, metrics)
        self._transfer = TransferServicer(self.shelf, uploads, common.flight, settings.stall_seconds, metrics)
        self._warmth: Warmth | None = None  # once the shelf has started

    # --- start and stop -----------------------------------------------------

    async def start(self) -> None:
        """Read what is known, and take in what is there."""
        await self.shelf.start()
        self._fleet.start()
        await self._pushing.start()
        self._warmth = Warmth(self.shelf, self.leasing, restores=self._settings.restore)

    def begin(self, address: str) -> list[asyncio.Task[None]]:
        """Begin what goes on for as long as the daemon runs; ``address`` is where other nodes reach it."""
        if self._warmth is None:
            raise RuntimeError("a tenancy begins once it has started")
        self._residency_map.start(address)
        lasting = [
            self._transfer.watch_stalls(),
            self._check_adopted(),
            self.upkeep.declare_and_preload(self._settings.preload),
            self._keep_warm(self._warmth),
            self.upkeep.follow(),
            self.shelf.residency.sweep(),
            self._pushing.sweep(),
        ]
        if idle_seconds := self._settings.base_idle_seconds:
            lasting.append(self._warmth.retire(idle_seconds))
        return [asyncio.create_task(one) for one in lasting]

    async def stop(self) -> None:
        """Let everything go; what is in memory stays there for the next start."""
        await self._claims.close()
        await self._residency_map.close()
        await self._pushing.stop()
        if self._warmth is not None:
            await self._warmth.save(is_last=True)
        await self.shelf.stop()
        self.arena.close()

    def set_floor(self) -> None:
        """After a change of the budget: set what bases must leave to adapters."""
        self.shelf.residency.floor_bytes = self._settings.adapter_floor_bytes(self.arena.budget_bytes)

    # --- services -----------------------------------------------------------

    def handlers(self) -> Handlers:
        """Return what answers the calls of this tenant's callers."""
        handlers = Handlers()
        shelf, server = self.shelf, handlers
        catalog = CatalogServicer(shelf, self.leasing, self.observing)
        lease = LeaseServicer(shelf, self.leasing, self.arena.directory, self._tracing)
        capabilities = CapabilitiesServicer(self._capabilities, self.observing, self.resizing)
        push = PushServicer(self._pushing, self._settings.stall_seconds)
        adders: Mapping[Any, Any] = {
            catalog: catalog_pb2_grpc.add_CatalogServiceServicer_to_server,
            lease: lease_pb2_grpc.add_LeaseServiceServicer_to_server,
            capabilities: capabilities_pb2_grpc.add_CapabilitiesServiceServicer_to_server,
            push: push_pb2_grpc.add_PushServiceServicer_to_server,
            AliasServicer(shelf.aliases): alias_pb2_grpc.add_AliasServiceServicer_to_server,
            ResidencyServicer(
                self._residency_map, shelf.aliases, Underway(shelf, self._residency_map, self._claims)
            ): residency_pb2_grpc.add_ResidencyServiceServicer_to_server,
        }
        for servicer, add in adders.items():
            add(servicer, server)
        handlers.add_generic_rpc_handlers((self._transfer.handler(),))
        return handlers

    def _capabilities(self) -> Capabilities:
        return Capabilities(
            daemon_version=__version__,
            arena_size_bytes=self.arena.budget_bytes,
            arena_page_size_bytes=self.arena.page_size_bytes,
            pinning=self.arena.pinning,
            chunk_size_bytes_max=self._settings.chunk_bytes,
            source_schemes=self._sources.schemes,
            format_names=FORMAT_NAMES,
            arena_directory=self.arena.directory,
            arena_identity=directory_identity(self.arena.volume.directory_fd),
        )

    # --- what happens -------------------------------------------------------

    def _on_change(self, artifact_id: str) -> None:
        self.observing.note(artifact_id)
        self._residency_map.note()

    def _on_ready(self, entry: Entry) -> None:
        self.leasing.announce_ready(entry)

    async def _keep_warm(self, warmth: Warmth) -> None:
        """Bring back what was in memory before, and remember what is from then on."""
        await self.upkeep.preload_tried.wait()
        if self._settings.restore:
            await warmth.restore()
        await warmth.remember()

    async def _check_adopted(self) -> None:
        """Check the blocks of adopted segments, one segment after another, before anybody asks."""
        for entry in self.shelf.catalog.in_state(ArtifactState.READY):
            segment_id = entry.segment_id
            if entry.state is not ArtifactState.READY:
                continue
            try:
                await self.shelf.residency.ensure_checked(segment_id)
            except SegmentCorrupt as error:
                self.shelf.withdraw_bytes(segment_id, error)
            if self.shelf.residency.is_of(segment_id, entry):
                self._hashing.start(entry)


def _is_pushed(is_own: Callable[[str], bool], spool: str, uri: str) -> bool:
    """Say whether a canonical URI leads to what was pushed, by this tenant or another: nobody may register it."""
    place = spool if scheme_of(spool) else f"file://{spool}"
    return is_own(uri) or f"{uri}/".startswith(f"{place}/")
