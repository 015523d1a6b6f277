"""What the daemon does by itself: preload, declared artifacts, following sources.

Each is a task on the event loop that never ends by an error: what fails is logged
and tried again at its time. Nothing here is waited for by a caller, but for the
registration of an ID that a pattern declares.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import stat
import sys
from collections.abc import Callable, Sequence

from warmshelf.errors import InvalidConfig, SpecMismatch, WarmshelfError
from warmshelf.types import ArtifactState, Source
from warmshelfd.domain.catalog import Entry
from warmshelfd.domain.declaration import NOTHING, Declaration, Declared, parse_declaration
from warmshelfd.leasing import Leasing
from warmshelfd.preloading import preload
from warmshelfd.registering import RegisterOptions
from warmshelfd.running import log_failure, side_by_side, stop
from warmshelfd.shelf import Shelf

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_log = logging.getLogger(__name__)

_DECLARATION_BYTES_MAX = 16 << 20
"""Longest declaration file: 100,000 artifacts with long names."""

DECLARE_COUNT = 8
"""Declared artifacts that are registered at once: as many as are inspected at once from one place."""

PRELOAD_COUNT = 8
"""Artifacts that are preloaded at once; how many of them load at once from one place, the threads of loads say."""

_LOOK_SECONDS = 2.0
"""How often the declaration file is looked at; a mounted ConfigMap changes by a rename, which is seen too."""


def read_declaration(path: str) -> Declaration:
    """Return what a file declares.

    Raises:
        InvalidConfig: it cannot be read, or not be understood.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:  # waits for no pipe
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidConfig(f"declaration {path} is no regular file", path=path)
            text = file.read(_DECLARATION_BYTES_MAX + 1)
        if len(text) > _DECLARATION_BYTES_MAX:
            raise InvalidConfig(f"declaration {path} is longer than {_DECLARATION_BYTES_MAX} bytes")
        return parse_declaration(tomllib.loads(text.decode()))
    except OSError as error:
        raise InvalidConfig(f"declaration {path} cannot be read: {error.strerror}", path=path) from error
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(f"declaration {path} is no TOML: {error}", path=path) from error


class Upkeep:
    """The daemon's own work. Runs on the event loop."""

    def __init__(
        self,
        shelf: Shelf,
        leasing: Leasing,
        *,
        declare: str | None,
        follow_seconds: float,
        place: Callable[[Source], str],
    ) -> None:
        self._shelf = shelf
        self._place = place
        self._leasing = leasing
        self._path = declare
        self._follow_seconds = follow_seconds
        # What is in force: the last version of the file that could be understood, and how that file looked.
        self._declaration = NOTHING
        self._looked = _look(declare)
        self.preload_tried = asyncio.Event()  # set once every artifact to preload has been
        if declare is not None:
            self._declaration = read_declaration(declare)

    # --- declared artifacts -------------------------------------------------

    async def declare_and_preload(self, preload: Sequence[str]) -> None:
        """Register what is declared, preload, and go on whenever the file changes, for as long as the daemon runs."""
        await self._begin(preload)
        while self._path is not None:
            await asyncio.sleep(_LOOK_SECONDS)
            looks = _look(self._path)
            if looks != self._looked:
                self._looked = looks
                await self._reload(self._path)

    async def _begin(self, preload: Sequence[str]) -> None:
        """Register and preload side by side: a source that hangs keeps nothing else from being there."""
        others = [artifact_id for artifact_id in self._declaration.artifacts if artifact_id not in preload]
        await asyncio.gather(side_by_side(self._declare, others, DECLARE_COUNT), self._preload(preload))

    async def _reload(self, path: str) -> None:
        before = self._declaration
        try:
            self._declaration = await asyncio.to_thread(read_declaration, path)
        except InvalidConfig as error:
            _log.error("the declaration stays as it was: %s", error)
            return
        _log.info("declaration read again: %d artifacts", len(self._declaration.artifacts))
        await self._apply(before)

    async def _apply(self, before: Declaration) -> None:
        """Register what is new or declared otherwise than before.

        What is declared no longer stays registered, but is neither kept nor followed any more.
        """
        await self._end_wishes(before)
        now = self._declaration.artifacts
        changed = [artifact_id for artifact_id in now if before.artifacts.get(artifact_id) != now[artifact_id]]
        await side_by_side(self._declare, changed, DECLARE_COUNT)

    async def _declare(self, artifact_id: str) -> None:
        """Register one that is declared by itself; if that is refused, it is logged."""
        try:
            await self._register(artifact_id, self._declaration.artifacts[artifact_id])
        except WarmshelfError as error:
            _log.warning("declared artifact %s: %s", artifact_id, error)

    async def _end_wishes(self, before: Declaration) -> None:
        """End what was declared to be kept or followed, and is not any more."""
        for artifact_id in [entry.artifact_id for entry in self._shelf.catalog]:
            old, now = before.find(artifact_id), self._declaration.find(artifact_id)
            if old is not None:
                keep = old.keep_resident and not (now and now.keep_resident)
                follow = old.follow and not (now and now.follow)
                await self._end(artifact_id, old, keep_resident=keep, follow=follow)

    async def _end(self, artifact_id: str, declared: Declared, *, keep_resident: bool, follow: bool) -> None:
        """End one's wishes; if that is refused, it is logged."""
        try:
            if keep_resident or follow:
                await self._shelf.registering.end_wishes(
                    artifact_id, declared.spec, keep_resident=keep_resident, follow=follow
                )
        except WarmshelfError as error:
            _log.warning("declared artifact %s: %s", artifact_id, error)

    async def register_unknown(self, artifact_id: str) -> None:
        """Register an ID that nobody knows, if a pattern declares it; errors as RegisterArtifact."""
        declared = self._declaration.match(artifact_id)
        if declared is not None and self._shelf.catalog.find(artifact_id) is None:
            await self._register(artifact_id, declared)

    async def _register(self, artifact_id: str, declared: Declared) -> None:
        """Register as declared. Another spec than before replaces it; other bytes alone do not."""
        options = RegisterOptions(keep_resident=declared.keep_resident, follow=declared.follow)
        try:
            await self._shelf.register(artifact_id, declared.spec, options)
        except SpecMismatch:
            options = dataclasses.replace(options, replace=True)
            await self._shelf.register(artifact_id, declared.spec, options)

    # --- preload ------------------------------------------------------------

    async def _preload(self, artifact_ids: Sequence[str]) -> None:
        """Make artifacts resident, begun in this order."""
        await side_by_side(self._preload_one, artifact_ids, PRELOAD_COUNT)
        self.preload_tried.set()

    async def _preload_one(self, artifact_id: str) -> None:
        """Make an artifact resident; if that cannot be, it is logged."""
        if artifact_id in self._declaration.artifacts:
            await self._declare(artifact_id)
        try:
            await self.register_unknown(artifact_id)
            await preload(self._shelf, self._leasing, artifact_id)
        except WarmshelfError as error:
            _log.warning("preload of %s: %s", artifact_id, error)

    # --- follow -------------------------------------------------------------

    async def follow(self) -> None:
        """Look at the sources of followed artifacts now and then, for as long as the daemon runs."""
        rounds: dict[str, asyncio.Task[None]] = {}  # by place: one that hangs delays no other
        try:
            while True:
                await asyncio.sleep(self._follow_seconds)
                for place, entries in self._followed().items():
                    if place not in rounds or rounds[place].done():
                        rounds[place] = asyncio.create_task(self._look_again(entries))
                        rounds[place].add_done_callback(log_failure)
        finally:
            for one in rounds.values():
                await stop(one)

    def _followed(self) -> dict[str, list[Entry]]:
        """Return the followed artifacts by the place of their sources."""
        followed: dict[str, list[Entry]] = {}
        for entry in self._shelf.catalog:
            if entry.follow:
                followed.setdefault(self._place(entry.spec.source), []).append(entry)
        return followed

    async def _look_again(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if self._shelf.catalog.find(entry.artifact_id) is not entry or not entry.follow:
                continue  # changed by somebody meanwhile
            was_ready, generation = entry.state is ArtifactState.READY, entry.generation
            try:
                await self._shelf.register(entry.artifact_id, entry.spec, RegisterOptions(follow=True))
                if was_ready and entry.generation != generation:  # who acquires next finds the new bytes there
                    await preload(self._shelf, self._leasing, entry.artifact_id)
            except WarmshelfError as error:
                _log.warning("followed artifact %s: %s", entry.artifact_id, error)


def _look(path: str | None) -> tuple[int, int, int] | None:
    """Return how a file looks, to notice that it changed; None if it cannot be seen."""
    try:
        stat = os.stat(path) if path is not None else None
    except OSError:
        return None
    return (stat.st_ino, stat.st_mtime_ns, stat.st_size) if stat else None
