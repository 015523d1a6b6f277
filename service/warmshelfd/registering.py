"""Registering: how an ID comes to mean a source, and another one later.

What happens to an ID while others wait for it is decided here: one registration of
an ID at a time, and the registry hears of changes in their order. All state lives on
the event loop. Loads nothing; knows no gRPC.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime

from warmshelf.digest import check_digest
from warmshelf.errors import (
    InvalidSpec,
    SourceChanged,
    SourceNotAllowed,
    SourceNotFound,
    SourceUnavailable,
    SpecMismatch,
    WarmshelfError,
)
from warmshelf.types import Artifact, ArtifactSpec, ArtifactState, Source, check_id
from warmshelfd import failpoints
from warmshelfd.domain.catalog import Catalog, Entry, spec_conflict
from warmshelfd.domain.state import Event
from warmshelfd.inspecting import Examined, Sources, check_kind
from warmshelfd.loading import Loader
from warmshelfd.matching import Matching
from warmshelfd.records import forgotten, merged, remember, to_artifact, to_entry, to_registration
from warmshelfd.registry.base import Registration, Registry
from warmshelfd.residency import Residency
from warmshelfd.turns import NamedTurns

SourceLeft = Callable[[Source], Awaitable[None]]


@dataclasses.dataclass(frozen=True, slots=True)
class RegisterOptions:
    """How to register; see RegisterArtifactRequest."""

    replace: bool = False
    defer_inspection: bool = False
    keep_resident: bool = False
    follow: bool = False


class Registering:
    """Changes what IDs mean. Runs on the event loop."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        residency: Residency,
        registry: Registry,
        sources: Sources,
        loader: Loader,
        matching: Matching,
        abandon: Callable[..., None],
        clock: Callable[[], datetime],
    ) -> None:
        self.source_left: SourceLeft = _nothing  # told when an ID no longer means a source
        self.is_own: Callable[[str], bool] = lambda _: False  # whether a URI is of what was pushed
        self._catalog = catalog
        self._residency = residency
        self._registry = registry
        self._sources = sources
        self._loader = loader
        self._matching = matching
        self._abandon = abandon
        self._clock = clock
        self._turns = NamedTurns()  # one registration of an ID at a time
        # Event loop only: IDs whose last change may not have reached the registry.
        self._unsaved: set[str] = set()

    # --- what callers ask for -----------------------------------------------

    async def register(self, artifact_id: str, spec: ArtifactSpec, options: RegisterOptions) -> Artifact:
        """Make an artifact known; see CatalogService.RegisterArtifact for the errors."""
        check_id(artifact_id)
        spec = self._checked(spec)
        check_base(artifact_id, spec.base_id)
        if self.is_own(spec.source.uri):
            raise SourceNotAllowed("what was pushed belongs to the ID it was pushed as, no other can mean it")
        async with self._turns.turn(artifact_id):
            entry = self._catalog.find(artifact_id)
            if entry is None:
                entry = await self._register_new(artifact_id, spec, options)
            else:
                await self._register_again(entry, spec, options)
            return to_artifact(entry)

    async def register_pushed(
        self,
        artifact_id: str,
        spec: ArtifactSpec,
        options: RegisterOptions,
        digest: str,
        is_pushed: Callable[[Source], bool],
    ) -> Artifact:
        """Make an artifact known whose bytes were pushed; if the ID was pushed with equal content, it stays as it is.

        Raises:
            SpecMismatch: the ID is known otherwise, and is not to be replaced.
        """
        async with self._turns.turn(artifact_id):
            entry = self._catalog.find(artifact_id)
            if entry is None:
                return to_artifact(await self._register_new(artifact_id, spec, options, digest))
            is_same = entry.digest == digest and entry.spec.base_id == spec.base_id and is_pushed(entry.spec.source)
            if not is_same and not options.replace:
                raise SpecMismatch(
                    f"{artifact_id!r} is known with other content, another base or from another source; replace it to "
                    "change that",
                    artifact_id=artifact_id,
                    expected=entry.digest,
                    actual=digest,
                )
            wanted = _asked(to_registration(entry), spec, options)
            if not is_same:
                found = await self._complete(forgotten(wanted), await self._inspect(spec, needs_key=True))
                await self._replace(entry, dataclasses.replace(found, digest=digest))
            elif wanted.keep_resident != entry.keep_resident or artifact_id in self._unsaved:
                entry.keep_resident = wanted.keep_resident
                self._catalog.changed(entry)
                await self.save(entry)
            return to_artifact(entry)

    async def end_wishes(self, artifact_id: str, spec: ArtifactSpec, *, keep_resident: bool, follow: bool) -> None:
        """Stop keeping or following an artifact of this spec; nothing happens if there is none.

        Raises:
            InvalidSpec, RegistryUnavailable: as ``register``.
        """
        spec = self._checked(spec)
        async with self._turns.turn(artifact_id):
            entry = self._catalog.find(artifact_id)
            if entry is not None and not spec_conflict(entry.spec, spec):
                entry.keep_resident &= not keep_resident
                entry.follow &= not follow
                self._catalog.changed(entry)
                self._residency.notify()
                await self.save(entry)

    def turn(self, artifact_id: str) -> AbstractAsyncContextManager[None]:
        """Keep others from changing what an ID means meanwhile."""
        return self._turns.turn(artifact_id)

    def is_busy(self, artifact_id: str) -> bool:
        """Say whether somebody has or awaits such a turn."""
        return artifact_id in self._turns

    def _checked(self, spec: ArtifactSpec) -> ArtifactSpec:
        if not spec.source.uri:
            raise InvalidSpec("the spec names no source")
        if spec.base_id:
            check_id(spec.base_id)
        if spec.source.expected_digest:
            check_digest(spec.source.expected_digest)
        source = self._sources.canonical(spec.source)
        return spec if source is spec.source else dataclasses.replace(spec, source=source)

    async def take_over(self, entry: Entry | None, found: Registration) -> None:
        """Have an ID mean what other nodes say it does, as a new generation; in its turn.

        Raises:
            CatalogFull: as many are known as may be.
        """
        numbered = self._matching.numbered(found, entry)
        if entry is not None:
            await self._replace(entry, numbered)
            return
        entry = to_entry(numbered)
        self._catalog.add(entry)
        await self._record(numbered, self._registry.put)
        self._base_came(entry)

    def check_canonical(self, spec: ArtifactSpec) -> None:
        """Return if a spec is one that this node would keep as it stands; errors as RegisterArtifact."""
        if self._checked(spec) != spec:
            raise InvalidSpec("the source's URI is not in its one spelling", uri=spec.source.uri)

    async def _register_new(
        self, artifact_id: str, spec: ArtifactSpec, options: RegisterOptions, digest: str = ""
    ) -> Entry:
        self._catalog.check_room()
        registration = Registration(
            artifact_id=artifact_id,
            spec=spec,
            kind=spec.kind,
            register_time=self._clock(),
            keep_resident=options.keep_resident,
            follow=options.follow,
            digest=digest,
        )
        if not options.defer_inspection:
            registration = await self._complete(registration, await self._inspect(spec, needs_key=True))
        failpoints.hit("register.inspected")
        entry = to_entry(registration)
        self._catalog.add(entry)
        try:
            await self.save(entry, is_new=True)
        except WarmshelfError:  # but not if the caller stops waiting: then it is registered all the same
            if self._is_known(entry):
                self._abandon(artifact_id)
                self._catalog.apply(artifact_id, Event.REMOVED)
                self.forget(artifact_id)
            raise
        failpoints.hit("register.recorded")
        self._base_came(entry)
        return entry

    async def _inspect(self, spec: ArtifactSpec, *, needs_key: bool) -> Examined:
        examined = await self._loader.inspect(spec.source, needs_key=needs_key)
        check_kind(spec, examined.inspected.kind)
        return examined

    async def _register_again(self, entry: Entry, spec: ArtifactSpec, options: RegisterOptions) -> None:
        conflict = spec_conflict(entry.spec, spec)
        if conflict and not options.replace:
            raise SpecMismatch(
                f"{entry.artifact_id!r} is registered with another {conflict}; replace it to change that",
                field=conflict,
            )
        examined = None if options.defer_inspection else await self._look(spec, must_exist=bool(conflict))
        known = to_registration(entry)
        wanted = _asked(known, spec, options)
        if examined is None:
            if conflict:
                await self._replace(entry, _unseen(wanted))
                return
        elif conflict or await self._has_changed(known, wanted, examined, replace=options.replace):
            await self._replace(entry, await self._complete(forgotten(wanted), examined))
            return
        else:
            wanted = await self._complete(wanted, examined)
            if known.segment_id and not known.fingerprint:  # another node's bytes, never compared with this source
                wanted = dataclasses.replace(wanted, fingerprint="")
        await self._take_over(entry, known, wanted)

    async def _has_changed(
        self, known: Registration, wanted: Registration, examined: Examined, *, replace: bool
    ) -> bool:
        """Say whether the source looks otherwise and is: the digest decides, unless it is to be replaced anyhow."""
        looks_changed = bool(known.fingerprint) and examined.fingerprint != known.fingerprint
        return looks_changed and (replace or not await self._is_same(wanted))

    async def _take_over(self, entry: Entry, known: Registration, wanted: Registration) -> None:
        """Give an entry what is wanted otherwise than was known, beside what changed while somebody waited."""
        now = to_registration(entry)
        better = merged(now, known, wanted)
        if self._is_known(entry) and (better != now or entry.artifact_id in self._unsaved):
            remember(entry, better)
            self._catalog.changed(entry)
            await self.save(entry)

    def _is_known(self, entry: Entry) -> bool:
        """Say whether an entry was not removed while somebody waited."""
        return self._catalog.find(entry.artifact_id) is entry

    def forget(self, artifact_id: str) -> None:
        """Note that the registry need not hear of an ID any more, which was removed."""
        self._unsaved.discard(artifact_id)

    async def save(self, entry: Entry, *, is_new: bool = False) -> None:
        """Let the registry know an entry as it is now, in the same breath in which it changed.

        So the registry sees all changes in their order, and a removed ID does not come back.
        """
        await self._record(to_registration(entry), self._registry.put_new if is_new else self._registry.put)

    async def _record(self, registration: Registration, put: Callable[[Registration], Awaitable[None]]) -> None:
        self._unsaved.add(registration.artifact_id)
        await put(registration)
        self._unsaved.discard(registration.artifact_id)

    async def _complete(self, known: Registration, examined: Examined) -> Registration:
        """Return the registration with what an inspection found."""
        found = await self._matching.complete(known, examined)
        return dataclasses.replace(found, size_bytes=known.size_bytes or examined.size_bytes)

    async def _look(self, spec: ArtifactSpec, *, must_exist: bool) -> Examined | None:
        """Inspect; a source that cannot be seen now is no change of it."""
        try:
            return await self._inspect(spec, needs_key=must_exist)
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
        found = dataclasses.replace(found, generation=entry.generation + 1 if entry.generation else 0)
        if not self._is_known(entry):  # its removal came after this: nothing shows it any more but the answer
            remember(entry, found)
            return
        self._abandon(entry.artifact_id, is_replaced=True)
        old, old_source = entry.segment_id, entry.spec.source
        if entry.state is ArtifactState.EVICTING:
            self._catalog.apply(entry.artifact_id, Event.DRAINED)  # its holders keep bytes without a name
        elif entry.state in (ArtifactState.READY, ArtifactState.FAILED):
            self._catalog.apply(entry.artifact_id, Event.REPLACED)
        self._residency.forget_name(old, entry.artifact_id, "replaced")
        remember(entry, found)
        self._catalog.changed(entry)
        self._residency.notify()
        failpoints.hit("replace.begun")
        try:
            await self.save(entry)
            failpoints.hit("replace.recorded")
        finally:
            await self._residency.let_go(old)
        if old_source.uri != found.spec.source.uri:
            await self.source_left(old_source)
        self._base_came(entry)

    def _base_came(self, entry: Entry) -> None:
        """Have adapters compared with a new base; one whose inspection is deferred is not looked at for their sake."""
        if entry.inspection is not None:
            self._matching.base_came(entry)

    async def notice_change(self, entry: Entry) -> None:
        """Look at the source of a resident artifact; if it is followed and holds other bytes now, let the old ones go.

        A source that cannot be seen now is no change of it.

        Raises:
            SourceChanged: other bytes, and the artifact does not follow its source.
        """
        async with self._turns.turn(entry.artifact_id):
            examined = await self._look(entry.spec, must_exist=False)
            known = to_registration(entry)
            changed = examined is not None and bool(known.fingerprint) and examined.fingerprint != known.fingerprint
            if examined is not None and changed and not await self._is_same(known):
                await self._replace(entry, await self._complete(forgotten(known), examined))


# --- pure parts -------------------------------------------------------------


def check_base(artifact_id: str, base_id: str) -> None:
    """Raise InvalidSpec if an adapter is said to be its own base."""
    if artifact_id == base_id:
        raise InvalidSpec(f"{artifact_id!r} cannot be its own base", artifact_id=artifact_id)


def _asked(known: Registration, spec: ArtifactSpec, options: RegisterOptions) -> Registration:
    """Return the registration as a caller wants it."""
    return dataclasses.replace(
        known,
        spec=spec,
        keep_resident=options.keep_resident or (known.keep_resident and not options.replace),
        follow=options.follow or (known.follow and not options.replace),
    )


def _unseen(known: Registration) -> Registration:
    """Return the registration with nothing of what its source holds."""
    return dataclasses.replace(
        forgotten(known), kind=known.spec.kind, inspection=None, adapter_shapes=None, fingerprint=""
    )


async def _nothing(_: Source) -> None:
    """Take note of nothing."""
