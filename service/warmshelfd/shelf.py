"""The use cases of the catalog: register, get, list, evict, remove; and adoption at start.

All state lives on the event loop; what blocks goes to threads. What an ID means is changed
in ``registering``; leases and loads are in ``leasing``. Knows no gRPC.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone

from warmshelf.errors import (
    Draining,
    Leased,
    SegmentCorrupt,
    WarmshelfError,
)
from warmshelf.types import Artifact, ArtifactSpec, ArtifactState, Failure
from warmshelfd import failpoints
from warmshelfd.aliasing import Aliases
from warmshelfd.domain.catalog import Catalog, Entry
from warmshelfd.domain.leases import LeaseTable
from warmshelfd.domain.state import Event
from warmshelfd.flights import Flights
from warmshelfd.inspecting import Sources
from warmshelfd.loading import Loader
from warmshelfd.matching import Matching
from warmshelfd.memory.adoption import adopt
from warmshelfd.memory.segment import Segment
from warmshelfd.metrics import Metrics
from warmshelfd.pools import executor
from warmshelfd.records import to_artifact, to_entry
from warmshelfd.registering import Registering, RegisterOptions
from warmshelfd.registry.base import Registry
from warmshelfd.residency import Residency
from warmshelfd.shelved import Waiters
from warmshelfd.tracing import NO_TRACING, Tracing

_log = logging.getLogger(__name__)


class Shelf:
    """What the daemon knows and keeps."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        leases: LeaseTable,
        residency: Residency,
        registry: Registry,
        sources: Sources,
        loader: Loader,
        on_ready: Callable[[Entry], None],
        metrics: Metrics,
        tracing: Tracing = NO_TRACING,
        clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        self.catalog = catalog
        self.leases = leases
        self.residency = residency
        self.matching = Matching(catalog, residency, loader, registry, self.withdraw)
        self.registering = Registering(
            catalog=catalog,
            residency=residency,
            registry=registry,
            sources=sources,
            loader=loader,
            matching=self.matching,
            abandon=self._abandon,
            clock=clock,
        )
        save = self.registering.save
        self.flights = Flights(catalog, residency, loader, self.matching.complete, save, on_ready, metrics, tracing)
        self.aliases = Aliases(catalog, registry, clock)
        self.draining = False
        self.uses: Mapping[str, datetime] = {}  # when what was in memory before the start was last used
        self.hash_threads = executor(1, "hash")
        self.clock = clock
        self.metrics = metrics
        self.registry = registry
        self._loader = loader

    # --- start and stop -----------------------------------------------------

    async def start(self) -> None:
        """Read the registry, adopt the segments it names, and clean up all others."""
        await self.aliases.start()
        for registration in await self.registry.load_all():
            self.catalog.add(to_entry(registration))
        self.uses = await self.registry.load_uses()
        for artifact_id, use_time in sorted(self.uses.items(), key=lambda use: use[1]):
            if (entry := self.catalog.find(artifact_id)) is not None:
                self.catalog.touch(entry, use_time)
        owners: dict[str, list[Entry]] = {}  # the last used first: should the budget be smaller now, they stay
        for entry in sorted(self.catalog, key=lambda entry: -entry.last_use_order):
            if entry.segment_id:
                owners.setdefault(entry.segment_id, []).append(entry)
        self.matching.bases_missing()
        for segment_id, outcome in await self.residency.in_thread(lambda: list(adopt(self.residency.arena, owners))):
            self._adopted(owners[segment_id], outcome)

    def _adopted(self, entries: Sequence[Entry], outcome: Segment | WarmshelfError) -> None:
        if isinstance(outcome, WarmshelfError):
            _log.warning("segment of %s was not adopted: %s", entries[0].artifact_id, outcome)
            self.metrics.adopted(outcome.reason)
            return
        self.metrics.adopted()
        self.residency.add(outcome, entries[0], Waiters())
        for entry in entries:
            self.residency.share(outcome.segment_id, entry)
            self.catalog.apply(entry.artifact_id, Event.ADOPTED)
            entry.pinned = outcome.pinned

    async def stop(self) -> None:
        """Stop loads and forget nothing: segments stay for the next start."""
        self.draining = True
        await self.matching.close()
        await self.flights.close()
        await self.residency.close()
        await self.registry.close()
        self._loader.close()
        self.hash_threads.shutdown()

    # --- register -----------------------------------------------------------

    async def register(self, artifact_id: str, spec: ArtifactSpec, options: RegisterOptions) -> Artifact:
        """Make an artifact known; see CatalogService.RegisterArtifact for the errors."""
        if self.draining:
            raise Draining("the daemon is stopping")
        return await self.registering.register(artifact_id, spec, options)

    async def source_sha256(self, entry: Entry) -> tuple[str, str]:
        """Return the sha256 digest of the one file that an artifact comes from, and how its source looks now."""
        return await self._loader.source_sha256(entry.spec.source)

    def _abandon(self, artifact_id: str, *, is_replaced: bool = False) -> None:
        """Stop a load whose outcome nobody could use."""
        self.flights.abandon(artifact_id, is_replaced=is_replaced)

    # --- look ---------------------------------------------------------------

    def get(self, artifact_id: str) -> Artifact:
        """Return one artifact. Does not count as use."""
        return to_artifact(self.catalog.get(artifact_id))

    def page(self, after_id: str, page_size: int, base_id: str) -> tuple[list[Artifact], str]:
        """Return up to ``page_size`` artifacts after an ID, and the ID to go on after ("" at the end)."""
        page = self.catalog.page(after_id, page_size, base_id)
        return [to_artifact(entry) for entry in page.entries], page.next_after_id

    # --- let go -------------------------------------------------------------

    async def evict(self, artifact_id: str, *, drain: bool) -> Artifact:
        """Give the artifact's memory back; it stays registered. Idempotent."""
        entry = self.catalog.get(artifact_id)
        if entry.state is ArtifactState.LOADING or self.flights.find(artifact_id):
            raise Leased(f"{artifact_id!r} is being loaded; evict it when that is done", artifact_id=artifact_id)
        if entry.state is ArtifactState.READY:
            holders = self._holders(entry)
            if holders and not drain:
                raise Leased(
                    f"{artifact_id!r} is held by {holders} lease{'s' * (holders > 1)}",
                    artifact_id=artifact_id,
                    lease_count=holders,
                )
            self.catalog.apply(artifact_id, Event.DRAIN_STARTED if holders else Event.EVICTED)
            if not holders:
                self.residency.forget_name(entry.segment_id, artifact_id, "explicit")
                await self.residency.let_go(entry.segment_id)
        return to_artifact(entry)

    def _holders(self, entry: Entry) -> int:
        """Return how many leases are on the artifact's current bytes."""
        return sum(record.segment_id == entry.segment_id for record in self.leases.of_artifact(entry.artifact_id))

    def settle(self, artifact_id: str, segment_id: str) -> None:
        """A lease on a segment ended: finish a drain, let nameless bytes go."""
        entry = self.catalog.find(artifact_id)
        drains = entry is not None and entry.segment_id == segment_id and entry.state is ArtifactState.EVICTING
        if entry is not None and drains and not self._holders(entry):
            self.catalog.apply(artifact_id, Event.DRAINED)
            self.residency.forget_name(segment_id, artifact_id, "explicit")
        self.residency.settle(segment_id)
        self.residency.notify()

    async def remove(self, artifact_id: str) -> None:
        """Forget the artifact at once; holders keep their bytes."""
        entry = self.catalog.get(artifact_id)
        self.flights.abandon(artifact_id)
        self.catalog.apply(artifact_id, Event.REMOVED)
        self.residency.forget_name(entry.segment_id, artifact_id, "removed")
        self.registering.forget(artifact_id)
        doubted = self.matching.gone(entry)
        try:
            await self.registry.delete(artifact_id)
            failpoints.hit("remove.recorded")
            await self.matching.keep(doubted)
        finally:
            self.residency.notify()
            await self.residency.let_go(entry.segment_id)
        failpoints.hit("remove.unlinked")
        await self.registering.source_left(entry.spec.source)

    def withdraw(self, entry: Entry, error: WarmshelfError) -> None:
        """The resident bytes turned out to be wrong: they lose their name at once."""
        _log.error("withdrew %s: %s", entry.artifact_id, error)
        self.catalog.apply(entry.artifact_id, Event.WITHDRAWN, Failure(error.reason, error.message))
        self.residency.forget_name(entry.segment_id, entry.artifact_id, "withdrawn")
        self.residency.settle(entry.segment_id)
        self.residency.notify()

    def withdraw_bytes(self, segment_id: str, error: WarmshelfError) -> None:
        """Bytes turned out not to be those that were sealed: every artifact whose they are loses them at once."""
        owners = [entry for entry in self.residency.owners(segment_id) if entry.state is ArtifactState.READY]
        if owners and isinstance(error, SegmentCorrupt):
            self.metrics.segment_changed()
        for entry in owners:
            self.withdraw(entry, error)

    # --- digests and changes ------------------------------------------------

    async def learn_digest(self, entry: Entry, digest: str) -> None:
        """Pin the digest of a generation whose bytes are right; bytes that are there twice become one."""
        twin_id, old_id = self.residency.find_content(digest, entry.kind), entry.segment_id
        entry.digest, entry.hashes_owed = digest, False
        if twin_id and twin_id != old_id:
            entry.segment_id = twin_id
            self.residency.share(twin_id, entry)
            self.residency.forget_name(old_id, entry.artifact_id, "duplicate")
        self.catalog.changed(entry)
        try:
            await self.registering.save(entry)
        finally:
            await self.residency.let_go(old_id)
