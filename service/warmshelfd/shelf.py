"""The use cases of the catalog: register, get, list, evict, remove; and adoption at start.

All state lives on the event loop; what blocks goes to threads. Leases and loads
are in ``leasing``. Knows no gRPC.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timezone

from warmshelf.digest import check_digest
from warmshelf.errors import (
    Draining,
    InvalidSpec,
    Leased,
    SourceChanged,
    SourceNotFound,
    SourceUnavailable,
    SpecMismatch,
    WarmshelfError,
)
from warmshelf.types import Artifact, ArtifactSpec, ArtifactState, Failure, check_id
from warmshelfd import failpoints
from warmshelfd.domain.catalog import Catalog, Entry, spec_conflict
from warmshelfd.domain.leases import LeaseTable
from warmshelfd.domain.state import Event
from warmshelfd.flights import Flights
from warmshelfd.inspecting import Examined, Sources, check_kind
from warmshelfd.loading import Loader, executor
from warmshelfd.matching import Matching
from warmshelfd.memory.adoption import adopt
from warmshelfd.memory.segment import Segment
from warmshelfd.metrics import Metrics
from warmshelfd.records import forgotten, merged, remember, to_artifact, to_entry, to_registration
from warmshelfd.registry.base import Registration, Registry
from warmshelfd.residency import Residency, Waiters

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class RegisterOptions:
    """How to register; see RegisterArtifactRequest."""

    replace: bool = False
    defer_inspection: bool = False
    keep_resident: bool = False
    follow: bool = False


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
        clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        self.catalog = catalog
        self.leases = leases
        self.residency = residency
        self.matching = Matching(catalog, residency, loader, registry, self.withdraw)
        self.flights = Flights(catalog, residency, loader, self.matching.complete, self._save, on_ready, metrics)
        self.draining = False
        self.hash_threads = executor(1, "hash")
        self.clock = clock
        self.metrics = metrics
        self._registry = registry
        self._sources = sources
        self._loader = loader
        # Event loop only: who registers an ID now, and how many wait to.
        self._registering: dict[str, tuple[asyncio.Lock, int]] = {}
        # Event loop only: IDs whose last change may not have reached the registry.
        self._unsaved: set[str] = set()

    # --- start and stop -----------------------------------------------------

    async def start(self) -> None:
        """Read the registry, adopt the segments it names, and clean up all others."""
        owners: dict[str, list[Entry]] = {}
        for registration in await self._registry.load_all():
            self.catalog.add(entry := to_entry(registration))
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
        await self._registry.close()
        self._loader.close()
        self.hash_threads.shutdown()

    # --- register -----------------------------------------------------------

    async def register(self, artifact_id: str, spec: ArtifactSpec, options: RegisterOptions) -> Artifact:
        """Make an artifact known; see CatalogService.RegisterArtifact for the errors."""
        check_id(artifact_id)
        if self.draining:
            raise Draining("the daemon is stopping")
        spec = self._checked(spec)
        async with self._turn(artifact_id):
            entry = self.catalog.find(artifact_id)
            if entry is None:
                entry = await self._register_new(artifact_id, spec, options)
            else:
                await self._register_again(entry, spec, options)
            return to_artifact(entry)

    def _checked(self, spec: ArtifactSpec) -> ArtifactSpec:
        if not spec.source.uri:
            raise InvalidSpec("the spec names no source")
        if spec.base_id:
            check_id(spec.base_id)
        if spec.source.expected_digest:
            check_digest(spec.source.expected_digest)
        return dataclasses.replace(spec, source=self._sources.canonical(spec.source))

    async def _register_new(self, artifact_id: str, spec: ArtifactSpec, options: RegisterOptions) -> Entry:
        self.catalog.check_room()
        registration = Registration(
            artifact_id=artifact_id,
            spec=spec,
            kind=spec.kind,
            register_time=self.clock(),
            keep_resident=options.keep_resident,
            follow=options.follow,
        )
        if not options.defer_inspection:
            registration = await self._complete(registration, await self._inspect(spec))
        failpoints.hit("register.inspected")
        entry = to_entry(registration)
        self.catalog.add(entry)
        try:
            await self._save(entry)
        except WarmshelfError:  # but not if the caller stops waiting: then it is registered all the same
            if self._is_known(entry):
                self.flights.abandon(artifact_id)
                self.catalog.apply(artifact_id, Event.REMOVED)
            raise
        failpoints.hit("register.recorded")
        self.matching.base_came(entry)
        return entry

    async def _inspect(self, spec: ArtifactSpec) -> Examined:
        examined = await self._loader.inspect(spec.source)
        check_kind(spec, examined.inspected.kind)
        return examined

    async def _register_again(self, entry: Entry, spec: ArtifactSpec, options: RegisterOptions) -> None:
        conflict = spec_conflict(entry.spec, spec)
        if conflict and not options.replace:
            raise SpecMismatch(
                f"{entry.artifact_id!r} is registered with another {conflict}; replace it to change that",
                field=conflict,
            )
        examined = await self._look(spec, must_exist=bool(conflict))
        known = to_registration(entry)
        wanted = _asked(known, spec, options)
        if examined is not None:
            changed = bool(known.fingerprint) and examined.fingerprint != known.fingerprint
            if conflict or (changed and (options.replace or not await self._is_same(wanted))):
                await self._replace(entry, await self._complete(forgotten(wanted), examined))
                return
            wanted = await self._complete(wanted, examined)
        now = to_registration(entry)
        better = merged(now, known, wanted)
        if self._is_known(entry) and (better != now or entry.artifact_id in self._unsaved):
            remember(entry, better)
            self.catalog.changed(entry)
            await self._save(entry)

    def _is_known(self, entry: Entry) -> bool:
        """Say whether an entry was not removed while somebody waited."""
        return self.catalog.find(entry.artifact_id) is entry

    async def _save(self, entry: Entry) -> None:
        """Let the registry know an entry as it is now, in the same breath in which it changed.

        So the registry sees all changes in their order, and a removed ID does not come back.
        """
        self._unsaved.add(entry.artifact_id)
        await self._registry.put(to_registration(entry))
        self._unsaved.discard(entry.artifact_id)

    async def _complete(self, known: Registration, examined: Examined) -> Registration:
        """Return the registration with what an inspection found."""
        found = await self.matching.complete(known, examined)
        return dataclasses.replace(found, size_bytes=known.size_bytes or examined.size_bytes)

    async def _look(self, spec: ArtifactSpec, *, must_exist: bool) -> Examined | None:
        """Inspect; a source that cannot be seen now is no change of it."""
        try:
            return await self._inspect(spec)
        except (SourceNotFound, SourceUnavailable):
            if must_exist:
                raise
            return None

    async def _is_same(self, known: Registration) -> bool:
        """The fingerprint differs: let the digest decide.

        Raises:
            SourceChanged: the source holds other bytes, and the artifact does not follow it.
        """
        actual = await self._loader.digest_source(known.spec.source) if known.digest else ""
        if known.digest and actual == known.digest:
            return True
        if known.follow:
            return False
        raise SourceChanged(
            f"the source of {known.artifact_id!r} holds other bytes than those it was pinned to; "
            "replace it to accept them",
            artifact_id=known.artifact_id,
            expected=known.digest,
            actual=actual,
        )

    async def _replace(self, entry: Entry, found: Registration) -> None:
        """Begin the next generation, of which only what its headers told is known."""
        if not self._is_known(entry):
            return
        self.flights.abandon(entry.artifact_id)
        old = entry.segment_id
        if entry.state is ArtifactState.EVICTING:
            self.catalog.apply(entry.artifact_id, Event.DRAINED)  # its holders keep bytes without a name
        elif entry.state in (ArtifactState.READY, ArtifactState.FAILED):
            self.catalog.apply(entry.artifact_id, Event.REPLACED)
        self.residency.forget_name(old, entry.artifact_id, "replaced")
        generation = entry.generation + 1 if entry.generation else 0
        remember(entry, dataclasses.replace(found, generation=generation))
        self.catalog.changed(entry)
        self.residency.notify()
        try:
            await self._save(entry)
        finally:
            await self.residency.let_go(old)
        self.matching.base_came(entry)

    @asynccontextmanager
    async def _turn(self, artifact_id: str) -> AsyncIterator[None]:
        """One registration of an ID at a time; the table holds only IDs in use."""
        lock, count = self._registering.get(artifact_id, (asyncio.Lock(), 0))
        self._registering[artifact_id] = (lock, count + 1)
        try:
            async with lock:
                yield
        finally:
            count = self._registering[artifact_id][1] - 1
            if count:
                self._registering[artifact_id] = (lock, count)
            else:
                del self._registering[artifact_id]

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
        self._unsaved.discard(artifact_id)
        doubted = self.matching.base_gone(artifact_id)
        try:
            await self._registry.delete(artifact_id)
            failpoints.hit("remove.recorded")
            await self.matching.keep(doubted)
        finally:
            self.residency.notify()
            await self.residency.let_go(entry.segment_id)

    def withdraw(self, entry: Entry, error: WarmshelfError) -> None:
        """The resident bytes turned out to be wrong: they lose their name at once."""
        _log.error("withdrew %s: %s", entry.artifact_id, error)
        self.catalog.apply(entry.artifact_id, Event.WITHDRAWN, Failure(error.reason, error.message))
        self.residency.forget_name(entry.segment_id, entry.artifact_id, "withdrawn")
        self.residency.settle(entry.segment_id)
        self.residency.notify()

    def withdraw_bytes(self, segment_id: str, error: WarmshelfError) -> None:
        """Bytes turned out not to be those that were sealed: every artifact whose they are loses them at once."""
        for entry in [e for e in self.residency.owners(segment_id) if e.state is ArtifactState.READY]:
            self.withdraw(entry, error)

    # --- digests and changes ------------------------------------------------

    async def learn_digest(self, entry: Entry, digest: str) -> None:
        """Pin the digest of a resident generation; bytes that are there twice become one."""
        twin_id, old_id = self.residency.find_content(digest, entry.kind), entry.segment_id
        entry.digest = digest
        if twin_id and twin_id != old_id:
            entry.segment_id = twin_id
            self.residency.share(twin_id, entry)
            self.residency.forget_name(old_id, entry.artifact_id, "duplicate")
        self.catalog.changed(entry)
        try:
            await self._save(entry)
        finally:
            await self.residency.let_go(old_id)

    async def notice_change(self, entry: Entry) -> None:
        """Look at the source of a resident artifact; if it is followed and holds other bytes now, let the old ones go.

        A source that cannot be seen now is no change of it.

        Raises:
            SourceChanged: other bytes, and the artifact does not follow its source.
        """
        async with self._turn(entry.artifact_id):
            examined = await self._look(entry.spec, must_exist=False)
            known = to_registration(entry)
            changed = examined is not None and bool(known.fingerprint) and examined.fingerprint != known.fingerprint
            if examined is not None and changed and not await self._is_same(known):
                await self._replace(entry, await self._complete(forgotten(known), examined))


def _asked(known: Registration, spec: ArtifactSpec, options: RegisterOptions) -> Registration:
    """Return the registration as a caller wants it."""
    return dataclasses.replace(
        known,
        spec=spec,
        keep_resident=options.keep_resident or (known.keep_resident and not options.replace),
        follow=options.follow or (known.follow and not options.replace),
    )
