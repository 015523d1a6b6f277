"""What is in memory outlives a reboot: remembered in the registry, and loaded again behind all else.

Also gives back bases that nobody has used for long. Runs on the event loop. What
is remembered holds for this node alone, whoever else shares its registry.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from warmshelf.errors import WarmshelfError
from warmshelf.types import ArtifactKind, ArtifactState
from warmshelfd.domain.catalog import RESIDENT, Entry
from warmshelfd.domain.warmth import Idle, Used, choose_restored, watch_idle
from warmshelfd.leasing import Leasing
from warmshelfd.preloading import preload
from warmshelfd.shelf import Shelf

_log = logging.getLogger(__name__)

_SAVE_SECONDS = 15.0
"""How often uses are written, if there were any: a node that loses power forgets no more than that."""

_LOOKS_PER_TIME_OUT = 8
"""A base leaves at most an eighth later than its time-out says."""


class Warmth:
    """Remembers what is warm, and restores it."""

    def __init__(self, shelf: Shelf, leasing: Leasing, *, restores: bool) -> None:
        """Once the shelf has started; ``restores`` says that ``restore`` will be called."""
        self._shelf = shelf
        self._leasing = leasing
        # Event loop only: the uses as the registry has them.
        self._kept = dict(shelf.uses)
        # Event loop only: what may still come back, and is not to be forgotten should the daemon stop before.
        self._awaited = set(shelf.uses) if restores else set()

    # --- remember -----------------------------------------------------------

    async def remember(self) -> None:
        """Write down, for as long as the daemon runs, what is in memory and when it was last used."""
        while True:
            await asyncio.sleep(_SAVE_SECONDS)
            await self.save()

    async def save(self, *, is_last: bool = False) -> None:
        """Write what has changed since the last time; at the end all of it, whatever has become of the file."""
        now = {e.artifact_id: e.last_use_time or e.register_time for e in self._resident()}
        before = {} if is_last else self._kept
        changed = {artifact_id: when for artifact_id, when in now.items() if before.get(artifact_id) != when}
        gone = self._kept.keys() - now.keys() - self._awaited
        if not changed and not gone:
            return
        try:
            await self._shelf.registry.keep_uses(changed, gone)
            self._kept = {**{id_: self._kept[id_] for id_ in self._awaited if id_ in self._kept}, **now}
        except WarmshelfError as error:
            _log.warning("what is in memory cannot be remembered: %s", error)

    def _resident(self) -> Sequence[Entry]:
        return [entry for state in RESIDENT for entry in self._shelf.catalog.in_state(state)]

    # --- restore ------------------------------------------------------------

    async def restore(self) -> None:
        """Load again what was in memory when the node went down, as far as it fits without evicting anybody."""
        chosen = choose_restored(self._missing(), self._shelf.residency.arena.usage().free_bytes)
        if chosen:
            _log.info("%d artifacts were in memory before: loading them again", len(chosen))
        adapters = [used for used in chosen if used.kind is ArtifactKind.ADAPTER]
        others = [used for used in chosen if used.kind is not ArtifactKind.ADAPTER]
        await asyncio.gather(self._load(adapters), self._load(others))
        self._awaited.clear()
        self._shelf.catalog.order_by_time([used.artifact_id for used in chosen])

    def _missing(self) -> list[Used]:
        found = []
        for artifact_id, use_time in self._shelf.uses.items():
            entry = self._shelf.catalog.find(artifact_id)
            if entry is not None and entry.state is ArtifactState.REGISTERED and entry.size_bytes:
                found.append(Used(artifact_id, entry.kind, entry.segment_id, entry.size_bytes, use_time))
        return found

    async def _load(self, chosen: Sequence[Used]) -> None:
        """Load one after another; what others have loaded, removed or taken the room of meanwhile is left."""
        for used in chosen:
            entry = self._shelf.catalog.find(used.artifact_id)
            free = self._shelf.residency.arena.usage().free_bytes
            if entry is not None and entry.state is ArtifactState.REGISTERED and used.size_bytes <= free:
                try:
                    await preload(self._shelf, self._leasing, used.artifact_id)
                except WarmshelfError as error:
                    _log.warning("%s was in memory before, and is not again: %s", used.artifact_id, error)

    # --- idle bases ---------------------------------------------------------

    async def retire(self, idle_seconds: float) -> None:
        """Give back, for as long as the daemon runs, bases that nobody has used or held for so long."""
        idle: dict[str, Idle] = {}
        while True:
            await asyncio.sleep(idle_seconds / _LOOKS_PER_TIME_OUT)
            now = time.monotonic()
            idle = watch_idle(self._shelf.residency.residents(), idle, now)
            for segment_id, one in list(idle.items()):
                if now - one.since_seconds >= idle_seconds:
                    del idle[segment_id]  # gone, or mapped by somebody: then its time begins anew
                    await self._shelf.residency.evict_idle(segment_id, "idle")
            self._shelf.residency.probe_again()
