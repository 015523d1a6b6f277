"""What other nodes of a fleet say of artifacts, taken up by this one.

An ID means the same everywhere: what others register, replace, remove or pin happens here
too, as if it had been asked for here, but loads nothing. Runs on the event loop; knows
neither how nor where registrations are shared.
"""

from __future__ import annotations

import dataclasses
import logging

from warmshelf.errors import SourceChanged, SpecMismatch
from warmshelf.types import Alias, ArtifactState
from warmshelfd.domain.catalog import RESIDENT, Entry, spec_conflict
from warmshelfd.records import forgotten, to_registration
from warmshelfd.registry.base import Heard, Listener, Registration, Registry
from warmshelfd.registry.shared import is_shared
from warmshelfd.shelf import Shelf

_log = logging.getLogger(__name__)


class Fleet(Listener):
    """Keeps this node's catalog as the fleet's."""

    def __init__(self, shelf: Shelf, registry: Registry) -> None:
        self._shelf = shelf
        self._registry = registry

    def start(self) -> None:
        """Begin, once the catalog is read."""
        for entry in self._shelf.catalog:
            entry.sync = self._registry.sync_of(entry.artifact_id)
        self._registry.start(self)

    def note_sync(self, artifact_id: str) -> None:
        """As the interface says: listings and watchers are told."""
        entry = self._shelf.catalog.find(artifact_id)
        if entry is not None and entry.sync != (sync := self._registry.sync_of(artifact_id)):
            entry.sync = sync
            self._shelf.catalog.changed(entry)

    def hear_alias(self, alias: Alias) -> None:
        """As the interface says."""
        self._shelf.aliases.take_up(alias)

    def hear_alias_removed(self, name: str) -> None:
        """As the interface says."""
        self._shelf.aliases.take_down(name)

    def is_free(self, artifact_id: str) -> bool:
        """As the interface says: so it is with an ID that is new here, unless somebody is registering it."""
        return artifact_id not in self._shelf.catalog and not self._shelf.registering.is_busy(artifact_id)

    async def hear(self, heard: Heard) -> bool | None:
        """As the interface says.

        Raises:
            WarmshelfError: this node cannot have it: its policy, its limits or its own pushed bytes forbid.
        """
        theirs = heard.registration
        async with self._shelf.registering.turn(heard.artifact_id):
            if not heard.holds():
                return None
            entry = self._shelf.catalog.find(heard.artifact_id)
            if entry is not None and not is_shared(to_registration(entry)):
                raise SpecMismatch(
                    f"{heard.artifact_id!r} was pushed to this node; to other nodes it is another artifact"
                )
            if theirs is None:
                if entry is not None:
                    await self._shelf.remove(heard.artifact_id)
                return True
            self._shelf.registering.check_canonical(theirs.spec)
            if entry is None or spec_conflict(entry.spec, theirs.spec) or entry.follow != theirs.follow:
                await self._shelf.registering.take_over(entry, theirs)
                return True
            return await self._agree(entry, theirs, heard.conflict)

    async def _agree(self, entry: Entry, theirs: Registration, conflict: str) -> bool:
        """Take up what else is known of an artifact with the same spec; say whether nothing is left open."""
        if entry.keep_resident != theirs.keep_resident:
            entry.keep_resident = theirs.keep_resident
            self._shelf.catalog.changed(entry)
            await self._shelf.registering.save(entry)
        if theirs.follow or theirs.digest in ("", entry.digest):
            return True
        is_here = entry.state in RESIDENT or entry.state is ArtifactState.LOADING
        if not entry.digest and is_here and not conflict:
            return False  # its own digest is being learned, and decides
        if entry.digest and not conflict:  # somebody accepted other bytes
            known = dataclasses.replace(forgotten(to_registration(entry)), fingerprint="", digest=theirs.digest)
            known = dataclasses.replace(known, files_digest=theirs.files_digest)
            await self._shelf.registering.take_over(entry, known)
            return True
        return await self._pin(entry, theirs.digest, theirs.files_digest)

    async def _pin(self, entry: Entry, digest: str, files_digest: str) -> bool:
        """Pin an artifact to the bytes that the fleet has; other ones that are here lose their name."""
        if entry.state is ArtifactState.READY:
            error = SourceChanged(
                f"{entry.artifact_id!r} holds other bytes here than those that other nodes pinned it to",
                artifact_id=entry.artifact_id,
                expected=digest,
                actual=entry.digest,
            )
            self._shelf.withdraw(entry, error)
        if entry.state in RESIDENT or entry.state is ArtifactState.LOADING:
            return False  # it ends by itself, or is decided when its digest is published
        # Nothing is known of these bytes here: the next load compares all of them.
        entry.digest, entry.segment_id, entry.fingerprint, entry.hashes_owed = digest, "", "", False
        entry.files_digest = files_digest
        self._shelf.catalog.changed(entry)
        await self._shelf.registering.save(entry)
        return True
