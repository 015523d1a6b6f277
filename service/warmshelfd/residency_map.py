"""What is resident on which node: this one tells the others, and answers who asks.

Nobody but who asks waits for it. Runs on the event loop; what blocks goes to a thread of its
own. Knows neither how nor where nodes tell each other.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from warmshelf.types import ArtifactState, Node, Resident
from warmshelfd.domain.catalog import Catalog, Entry
from warmshelfd.metrics import Metrics
from warmshelfd.pools import executor
from warmshelfd.registry.residents import LIFE_SECONDS, NodeResidents, ResidentStore, Seen, StoreAwayError, to_value
from warmshelfd.running import log_failure, stop, wait_at_most

HEARTBEAT_SECONDS = 6.0
"""How often a quiet node says that it is there: one command each time. A third of what the store keeps it for."""

_AGAIN_COUNT = 4
"""Every so many heartbeats there is a second command, for a store that drops what it likes."""

LOOK_SECONDS = 0.5
"""What others told is looked at anew when it is asked for and was looked at longer ago."""

LOOK_WAIT_SECONDS = 1.0
"""How long who asks waits for that; then the answer is what was known, and says so."""

_GATHER_SECONDS = 0.02
"""Changes that come together are told together."""

_PAUSE_SECONDS = 1.0
_PAUSE_BYTES_PER_SECOND = 256 << 10
"""Between two tellings: at least the first, and more where there is much to tell."""

_AGAIN_SECONDS = 2.0
"""Before the store is tried again; between half and one and a half of it, so that many nodes spread."""

_STEP_COUNT = 500
"""Artifacts that are looked at before the event loop turns again; less than a millisecond."""

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResidencyPage:
    """Part of what is resident; ``next_after`` is the node and the ID to go on after, None at the end."""

    residents: list[Resident]
    nodes: list[Node]
    next_after: tuple[str, str] | None
    is_partial: bool


class ResidencyMap:
    """Tells and asks. All state belongs to the event loop."""

    def __init__(self, catalog: Catalog, store: ResidentStore | None, node: Node, metrics: Metrics) -> None:
        """``store`` is where nodes tell each other, None where there is no such thing."""
        self.node = node
        self._catalog = catalog
        self._store = store
        self._metrics = metrics
        self._thread = executor(1, "residency")
        self._changed = asyncio.Event()
        self._told = b""  # what the store has of this node, without its revision
        self._life = secrets.token_hex(8)  # of this process: the beginning of its revisions
        self._told_count = self._beat_count = 0
        self._said = ""  # the refusal that is in the log
        self._seen = Seen()
        self._seen_time = float("-inf")  # by the monotonic clock
        self._not_before = 0.0  # by the same clock: who asks soon after a look that failed is not kept waiting
        self._looking: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, address: str) -> None:
        """Begin to tell; ``address`` is where others reach this node, "" if nobody said."""
        self.node = replace(self.node, address=address)
        if self._store is not None:
            self._changed.set()
            self._task = asyncio.get_running_loop().create_task(self._tell(self._store))
            self._task.add_done_callback(log_failure)

    def note(self) -> None:
        """Something of an artifact has changed."""
        self._changed.set()

    async def close(self) -> None:
        """Take back what was told, if that can be done at once."""
        await stop(self._task)
        await stop(self._looking)
        store = self._store
        if store is not None:
            if self._task is not None and self._told:
                with suppress(StoreAwayError):
                    await self._in_thread(lambda: store.leave(self.node.node_id))
            await self._in_thread(store.close)
        self._thread.shutdown(wait=False)

    # --- telling ------------------------------------------------------------

    async def _tell(self, store: ResidentStore) -> None:
        while True:
            with suppress(asyncio.TimeoutError):
                await wait_at_most(self._changed.wait(), HEARTBEAT_SECONDS * random.uniform(0.9, 1.1))  # noqa: S311
            try:
                if self._changed.is_set() or not await self._beat(store):
                    await self._publish(store)
            except StoreAwayError as error:
                self._metrics.fleet_failed(error.reason)
                self._say(error.reason)
                self._told = b""
                self._changed.set()
                await asyncio.sleep(_AGAIN_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311 - spreads, guards nothing

    async def _beat(self, store: ResidentStore) -> bool:
        self._beat_count += 1
        again = self._beat_count % _AGAIN_COUNT == 0
        return await self._in_thread(lambda: store.beat(self.node.node_id, again=again))

    def _say(self, reason: str) -> None:
        """Log a refusal, once; that the registry is away is said by who keeps it."""
        if reason not in ("away", self._said):
            self._said = reason
            _log.warning("other nodes are not told what is resident here: the registry refuses (%s)", reason)

    async def _publish(self, store: ResidentStore) -> None:
        is_lost = not self._changed.is_set()
        await asyncio.sleep(_GATHER_SECONDS)
        self._changed.clear()
        residents = await self._residents()
        self._told_count += 1
        revision = f"{self._life}-{self._told_count:x}"
        value, count = await self._in_thread(lambda: to_value(revision, self.node, residents))
        told = value.partition(b" ")[2]
        if told != self._told or is_lost:
            await self._in_thread(lambda: store.publish(self.node.node_id, value))
            self._told = told
            self._metrics.residency_told(count, len(residents) - count)
        await asyncio.sleep(max(_PAUSE_SECONDS, len(value) / _PAUSE_BYTES_PER_SECOND))

    async def _residents(self) -> list[Resident]:
        """Return what is resident here, the most important first."""
        found: list[tuple[bool, int, Resident]] = []
        entries = self._catalog.in_state(ArtifactState.READY)
        for start in range(0, len(entries), _STEP_COUNT):
            found += [(e.keep_resident, e.last_use_order, self._of(e)) for e in entries[start : start + _STEP_COUNT]]
            await asyncio.sleep(0)
        found.sort(key=lambda one: one[:2], reverse=True)
        return [resident for _, _, resident in found]

    def _of(self, entry: Entry) -> Resident:
        return Resident(self.node, entry.artifact_id, entry.digest, entry.size_bytes, entry.pinned, entry.keep_resident)

    # --- asking -------------------------------------------------------------

    async def look(self) -> bool:
        """Look what others have told, unless that was done just now; say whether what is known is all of it."""
        if self._store is None:
            return True
        if time.monotonic() - self._seen_time > LOOK_SECONDS and time.monotonic() > self._not_before:
            if self._looking is None or self._looking.done():
                self._looking = asyncio.get_running_loop().create_task(self._look(self._store))
                self._looking.add_done_callback(log_failure)
            await asyncio.wait([self._looking], timeout=LOOK_WAIT_SECONDS)
        return time.monotonic() - self._seen_time <= LOOK_SECONDS + LOOK_WAIT_SECONDS and not self._seen.is_partial

    async def _look(self, store: ResidentStore) -> None:
        known = self._seen.nodes
        began = time.monotonic()
        try:
            self._seen = await self._in_thread(lambda: store.look(known))
        except StoreAwayError as error:
            self._metrics.fleet_failed(error.reason)
            self._not_before = time.monotonic() + _AGAIN_SECONDS
            if began - self._seen_time > LIFE_SECONDS:  # nobody said that they are still there
                self._seen = Seen()
            return
        self._seen_time = time.monotonic()
        self._metrics.residency_seen(len(self._others()) + 1, self._seen.bad_count)

    def _others(self) -> list[NodeResidents]:
        """Return what the other nodes told, by node ID."""
        told = [told for _, told in self._seen.nodes.values() if told and told.node.node_id != self.node.node_id]
        return sorted(told, key=lambda one: one.node.node_id)

    async def holders(self, digest: str) -> list[Resident]:
        """Return where else content is resident, one artifact for each node."""
        await self.look()
        others = self._others()
        found = await asyncio.to_thread(lambda: [one.with_digest(digest) for one in others])
        return [resident for resident in found if resident is not None]

    async def page(self, artifact_id: str, after: tuple[str, str] | None, page_size: int) -> ResidencyPage:
        """Return part of what is resident: this node's first, then node by node; of one artifact if that is said."""
        is_all = await self.look()
        others = self._others()
        mine = await self._mine()
        everybody = [mine, *others]
        is_partial = not is_all or any(told.is_cut for told in others)
        found = await asyncio.to_thread(lambda: list(islice(_residents(everybody, artifact_id, after), page_size + 1)))
        page = found[:page_size]
        next_after = (page[-1].node.node_id, page[-1].artifact_id) if len(found) > len(page) else None
        return ResidencyPage(page, [told.node for told in everybody], next_after, is_partial)

    async def _mine(self) -> NodeResidents:
        residents = sorted(await self._residents(), key=lambda one: one.artifact_id)
        return NodeResidents.of(self.node, residents)

    async def _in_thread(self, function: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)


def _residents(everybody: list[NodeResidents], artifact_id: str, after: tuple[str, str] | None) -> Iterator[Resident]:
    """Return what nodes have, in their order, after a node and an ID."""
    places: Mapping[str, int] = {told.node.node_id: place for place, told in enumerate(everybody)}
    first = places.get(after[0], len(everybody)) if after else 0
    for place, told in enumerate(everybody[first:], first):
        last_id = after[1] if after and place == first else ""
        if not artifact_id:
            yield from told.after(last_id)
        elif not last_id and (resident := told.find(artifact_id)):
            yield resident
