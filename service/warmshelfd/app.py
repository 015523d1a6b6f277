"""Assembles the daemon and runs it from its first line of output to its exit."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from functools import partial

import grpc

from warmshelfd import __version__
from warmshelfd.credentials import Credentials
from warmshelfd.examining import Examining
from warmshelfd.listening import Servers
from warmshelfd.memory.arena import Arena
from warmshelfd.operating import Kept, Operating
from warmshelfd.parts import admission_of, flight_of, metrics_of, sources_of, tracing_of, transport_of
from warmshelfd.pools import executor
from warmshelfd.running import log_failure
from warmshelfd.servicers.guard import Guard
from warmshelfd.settings import Settings
from warmshelfd.tenancies import Tenancies
from warmshelfd.tenancy import Common
from warmshelfd.tenant_settings import NOBODY
from warmshelfd.this_node import advertised_address

_log = logging.getLogger(__name__)

_QUIET_SECONDS = 1.0
"""A stopping daemon leaves when no call but sessions has been under way for so long."""

_MEMORY_THREADS = 8
"""Threads that unlink, map and probe segments."""

_STOP_GRACE_SECONDS = 0.2
"""What sessions get to end by themselves, at the very last."""


class Daemon:
    """One daemon. ``serve`` is its whole life."""

    def __init__(self, settings: Settings, arena: Arena) -> None:
        self._settings = settings
        self._arena = arena
        self.metrics = metrics_of(sources_of(settings).schemes, arena)
        self._tracing = tracing_of(settings.trace_endpoint)
        common = Common(
            self.metrics, self._tracing, executor(_MEMORY_THREADS, "memory"), flight_of(settings), settings.spool
        )
        self.tenancies = Tenancies(settings, arena, common)
        self._credentials = Credentials(settings, self.metrics)
        admission = admission_of(settings, self._credentials, self.tenancies.names)
        handlers = {one.name: one.handlers() for one in self.tenancies}
        self._guard = Guard(self.metrics, admission, handlers)
        self._handlers = handlers[NOBODY]
        self._operating = Operating(settings.http, self.metrics, self._kept(), settings.stuck_seconds)
        self._hurried = False  # a second signal came

    async def serve(self) -> None:
        """Start, say that we listen and that we are ready, serve until a signal, drain, and stop."""
        with self._operating.serving():
            await self._serve()

    async def _serve(self) -> None:
        self._warn_of_arena()
        await self.tenancies.start()
        certificates = self._credentials.certificates
        servers = Servers(
            self._settings.listen,
            transport_of(self._settings),
            [self._guard],
            self._add_services,
            certificates.credentials if certificates else None,
        )
        await servers.start()
        examining = Examining(servers.addresses[0], self._arena)
        self._operating.findings = examining.findings
        self._operating.started = True
        stopped = self._on_signals()
        _log.info("listening: %s", self._places(servers.addresses))
        background = [
            *self.tenancies.begin(advertised_address(self._settings, servers.addresses)),
            asyncio.create_task(self._tell_ready(servers.addresses)),
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
            await self.tenancies.stop()
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
                self._arena.whole_budget_bytes,
                self._arena.lacking_bytes,
            )

    def _add_services(self, server: grpc.aio.Server) -> None:
        """Add what answers where it is not a tenant that calls; the guard puts that tenant's in its place."""
        server.add_generic_rpc_handlers(self._handlers.generic)

    def _kept(self) -> dict[str, Kept]:
        share = self.tenancies.landlord.share_bytes
        return {one.name: Kept(one.shelf, one.upkeep, partial(share, one.name)) for one in self.tenancies}

    async def _tell_ready(self, addresses: Sequence[str]) -> None:
        """Print the one line on standard output once the preload has been tried, as ``/readyz`` has it."""
        for one in self.tenancies:
            await one.upkeep.preload_tried.wait()
        print(f"warmshelfd {__version__} ready: {self._places(addresses)}", flush=True)

    def _places(self, addresses: Sequence[str]) -> str:
        arena = self._arena
        return (
            f"address={','.join(addresses)} arena={arena.directory} "
            f"budget={arena.whole_budget_bytes} page_size={arena.page_size_bytes} pinning={arena.pinning}"
            + ("" if arena.volume.is_memory else f" file_system={arena.volume.type_name} WARNING=not-in-memory")
            + (f" lacking={arena.lacking_bytes} WARNING=file-system-too-small" if arena.lacking_bytes else "")
            + (f" http={self._operating.address}" if self._operating.address else "")
        )

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
        for one in self.tenancies:
            one.leasing.announce_stop()
        loop = asyncio.get_running_loop()
        deadline = quiet_since = loop.time()
        deadline += self._settings.drain_seconds
        while not self._hurried and loop.time() < deadline and loop.time() - quiet_since < _QUIET_SECONDS:
            if not self._guard.calls and not any(one.shelf.leases.session_count for one in self.tenancies):
                return
            if self._guard.calls:
                quiet_since = loop.time()
            await asyncio.sleep(0.05)
