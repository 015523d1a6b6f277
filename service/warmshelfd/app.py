"""Assembles the daemon and runs it from its first line of output to its exit."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Sequence

import grpc

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
from warmshelfd.credentials import Credentials
from warmshelfd.domain.catalog import Catalog, Entry
from warmshelfd.domain.changes import Changes
from warmshelfd.examining import Examining
from warmshelfd.fleet import Fleet
from warmshelfd.formats.detect import FORMAT_NAMES
from warmshelfd.hashing import Hashing
from warmshelfd.leasing import Leasing
from warmshelfd.listening import Servers
from warmshelfd.loading import Loader
from warmshelfd.memory.arena import Arena
from warmshelfd.observing import Observing
from warmshelfd.opening import open_spool
from warmshelfd.operating import Operating
from warmshelfd.parts import (
    admission_of,
    claims_of,
    flight_of,
    lease_table_of,
    load_threads_of,
    metrics_of,
    neighbours_of,
    registry_of,
    residency_map_of,
    sources_of,
    tracing_of,
    transport_of,
)
from warmshelfd.pools import executor
from warmshelfd.pushing import Pushing
from warmshelfd.residency import Residency
from warmshelfd.resizing import Resizing
from warmshelfd.running import log_failure
from warmshelfd.servicers.alias import AliasServicer
from warmshelfd.servicers.capabilities import CapabilitiesServicer
from warmshelfd.servicers.catalog import CatalogServicer
from warmshelfd.servicers.guard import Guard
from warmshelfd.servicers.lease import LeaseServicer
from warmshelfd.servicers.push import PushServicer
from warmshelfd.servicers.residency import ResidencyServicer
from warmshelfd.servicers.transfer import TransferServicer
from warmshelfd.servicers.uploads import Uploads
from warmshelfd.settings import Settings
from warmshelfd.shelf import Shelf
from warmshelfd.this_node import advertised_address
from warmshelfd.upkeep import Upkeep
from warmshelfd.warmth import Warmth

_log = logging.getLogger(__name__)

_QUIET_SECONDS = 1.0
"""A stopping daemon leaves when no call but sessions has been under way for so long."""

_STOP_GRACE_SECONDS = 0.2
"""What sessions get to end by themselves, at the very last."""


class Daemon:
    """One daemon. ``serve`` is its whole life."""

    def __init__(self, settings: Settings, arena: Arena) -> None:
        self._settings = settings
        self._arena = arena
        self._sources = sources_of(settings)
        self.metrics = metrics_of(self._sources.schemes, arena)
        self._tracing = tracing_of(settings.trace_endpoint)
        catalog = Catalog(artifact_count_max=settings.artifact_count_max, on_change=self._on_change)
        leases = lease_table_of(settings)
        floor_bytes = settings.adapter_floor_bytes(arena.budget_bytes)
        residency = Residency(arena, catalog, leases, executor(8, "memory"), floor_bytes, self.metrics)
        registry = registry_of(settings, self.metrics)
        self._residency_map = residency_map_of(settings, catalog, self.metrics)
        neighbours = neighbours_of(settings, self._residency_map, self.metrics)
        self._claims = claims_of(settings, self._residency_map, neighbours, self.metrics)
        loader = Loader(self._sources, residency, registry, load_threads_of(settings), neighbours, self._claims)
        self._shelf = Shelf(
            catalog=catalog,
            leases=leases,
            residency=residency,
            registry=registry,
            sources=self._sources,
            loader=loader,
            on_ready=self._on_ready,
            metrics=self.metrics,
            tracing=self._tracing,
        )
        self._fleet = Fleet(self._shelf, registry)
        self._hashing = Hashing(self._shelf)
        self._leasing = Leasing(self._shelf, self._hashing)
        # Microseconds since 1970: above whatever number a daemon before this one gave.
        changes = Changes(first_sequence=time.time_ns() // 1000, change_count_max=settings.change_count_max)
        self._observing = Observing(self._shelf, changes)
        self._resizing = Resizing(self._shelf, settings.adapter_floor_bytes)
        self._upkeep = Upkeep(
            self._shelf,
            self._leasing,
            declare=settings.declare,
            follow_seconds=settings.follow_seconds,
            place=self._sources.place,
        )
        self._leasing.register_unknown = self._upkeep.register_unknown
        self._pushing = Pushing(open_spool(settings), self._shelf, loader, settings.push_limits())
        self._credentials = Credentials(settings, self.metrics)
        self._guard = Guard(self.metrics, admission_of(settings, self._credentials))
        uploads = Uploads(self._leasing, settings.uploads_max, self.metrics)
        flight = flight_of(settings)
        self._transfer = TransferServicer(self._shelf, uploads, flight, settings.stall_seconds, self.metrics)
        self._operating = Operating(settings.http, self.metrics, self._shelf, self._upkeep, settings.stuck_seconds)
        self._hurried = False  # a second signal came

    async def serve(self) -> None:
        """Start, say that we listen and that we are ready, serve until a signal, drain, and stop."""
        with self._operating.serving():
            await self._serve()

    async def _serve(self) -> None:
        self._warn_of_arena()
        await self._shelf.start()
        self._fleet.start()
        await self._pushing.start()
        warmth = Warmth(self._shelf, self._leasing, restores=self._settings.restore)
        certificates = self._credentials.certificates
        servers = Servers(
            self._settings.listen,
            transport_of(self._settings),
            [self._guard],
            self._add_services,
            certificates.credentials if certificates else None,
        )
        await servers.start()
        self._residency_map.start(advertised_address(self._settings, servers.addresses))
        examining = Examining(servers.addresses[0], self._arena)
        self._operating.findings = examining.findings
        self._operating.started = True
        stopped = self._on_signals()
        _log.info("listening: %s", self._places(servers.addresses))
        background = [
            asyncio.create_task(self._tell_ready(servers.addresses)),
            asyncio.create_task(self._transfer.watch_stalls()),
            asyncio.create_task(self._check_adopted()),
            asyncio.create_task(self._upkeep.declare_and_preload(self._settings.preload)),
            asyncio.create_task(self._keep_warm(warmth)),
            *self._retiring(warmth),
            asyncio.create_task(self._upkeep.follow()),
            asyncio.create_task(self._shelf.residency.sweep()),
            asyncio.create_task(self._pushing.sweep()),
            asyncio.create_task(self._credentials.follow()),
        ]
        for task in background:
            task.add_done_callback(log_failure)
        try:
            await stopped.wait()
            await self._drain(servers)
        finally:
            for task in background:
                task.cancel()
            await asyncio.wait(background)
            await examining.close()
            await servers.stop(_STOP_GRACE_SECONDS)
            await self._claims.close()
            await self._residency_map.close()
            await self._pushing.stop()
            await warmth.save(is_last=True)
            await self._shelf.stop()
            self._arena.close()
            self._tracing.close()

    def _warn_of_arena(self) -> None:
        volume = self._arena.volume
        if not volume.is_memory:
            _log.warning(
                "the arena %s is on %s, not in memory: loads wait for the disk, and the page cache comes on top",
                self._arena.directory,
                volume.type_name,
            )
        if self._arena.lacking_bytes:
            _log.warning(
                "the file system of the arena %s has %d bytes, %d less than the budget: that is the budget now",
                self._arena.directory,
                self._arena.budget_bytes,
                self._arena.lacking_bytes,
            )

    def _on_change(self, artifact_id: str) -> None:
        self._observing.note(artifact_id)
        self._residency_map.note()

    def _on_ready(self, entry: Entry) -> None:
        self._leasing.announce_ready(entry)

    def _add_services(self, server: grpc.aio.Server) -> None:
        catalog_pb2_grpc.add_CatalogServiceServicer_to_server(
            CatalogServicer(self._shelf, self._leasing, self._observing), server
        )
        lease_pb2_grpc.add_LeaseServiceServicer_to_server(
            LeaseServicer(self._shelf, self._leasing, self._arena.directory, self._tracing), server
        )
        capabilities_pb2_grpc.add_CapabilitiesServiceServicer_to_server(
            CapabilitiesServicer(self._capabilities, self._observing, self._resizing), server
        )
        alias_pb2_grpc.add_AliasServiceServicer_to_server(AliasServicer(self._shelf.aliases), server)
        residency_pb2_grpc.add_ResidencyServiceServicer_to_server(
            ResidencyServicer(self._residency_map, self._shelf.aliases), server
        )
        push_pb2_grpc.add_PushServiceServicer_to_server(
            PushServicer(self._pushing, self._settings.stall_seconds), server
        )
        server.add_generic_rpc_handlers((self._transfer.handler(),))

    def _capabilities(self) -> Capabilities:
        return Capabilities(
            daemon_version=__version__,
            arena_size_bytes=self._arena.budget_bytes,
            arena_page_size_bytes=self._arena.page_size_bytes,
            pinning=self._arena.pinning,
            chunk_size_bytes_max=self._settings.chunk_bytes,
            source_schemes=self._sources.schemes,
            format_names=FORMAT_NAMES,
            arena_directory=self._arena.directory,
            arena_identity=directory_identity(self._arena.volume.directory_fd),
        )

    async def _tell_ready(self, addresses: Sequence[str]) -> None:
        """Print the one line on standard output once the preload has been tried, as ``/readyz`` has it."""
        await self._upkeep.preload_tried.wait()
        print(f"warmshelfd {__version__} ready: {self._places(addresses)}", flush=True)

    def _places(self, addresses: Sequence[str]) -> str:
        arena = self._arena
        return (
            f"address={','.join(addresses)} arena={arena.directory} "
            f"budget={arena.budget_bytes} page_size={arena.page_size_bytes} pinning={arena.pinning}"
            + ("" if arena.volume.is_memory else f" file_system={arena.volume.type_name} WARNING=not-in-memory")
            + (f" lacking={arena.lacking_bytes} WARNING=file-system-too-small" if arena.lacking_bytes else "")
            + (f" http={self._operating.address}" if self._operating.address else "")
        )

    # --- background ---------------------------------------------------------

    async def _keep_warm(self, warmth: Warmth) -> None:
        """Bring back what was in memory before, and remember what is from then on."""
        await self._upkeep.preload_tried.wait()
        if self._settings.restore:
            await warmth.restore()
        await warmth.remember()

    def _retiring(self, warmth: Warmth) -> list[asyncio.Task[None]]:
        idle_seconds = self._settings.base_idle_seconds
        return [asyncio.create_task(warmth.retire(idle_seconds))] if idle_seconds else []

    async def _check_adopted(self) -> None:
        """Check the blocks of adopted segments, one segment after another, before anybody asks."""
        for entry in self._shelf.catalog.in_state(ArtifactState.READY):
            segment_id = entry.segment_id
            if entry.state is not ArtifactState.READY:
                continue
            try:
                await self._shelf.residency.ensure_checked(segment_id)
            except SegmentCorrupt as error:
                self._shelf.withdraw_bytes(segment_id, error)
            if self._shelf.residency.is_of(segment_id, entry):
                self._hashing.start(entry)

    # --- the end ------------------------------------------------------------

    def _on_signals(self) -> asyncio.Event:
        stopped = asyncio.Event()

        def on_signal() -> None:
            self._hurried = stopped.is_set()
            stopped.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, on_signal)
        return stopped

    async def _drain(self, servers: Servers) -> None:
        """Say that we stop, and let calls under way end; a second signal ends the wait."""
        await servers.set_serving(False)
        self._leasing.announce_stop()
        loop = asyncio.get_running_loop()
        deadline = quiet_since = loop.time()
        deadline += self._settings.drain_seconds
        while not self._hurried and loop.time() < deadline and loop.time() - quiet_since < _QUIET_SECONDS:
            if not self._guard.calls and not self._shelf.leases.session_count:
                return
            if self._guard.calls:
                quiet_since = loop.time()
            await asyncio.sleep(0.05)
