"""Single flight: one load per artifact, however many callers ask for it.

Callers join a load and leave it again; the last to leave before it is done
stops it. A failure reaches every caller, and the next call tries anew. Runs on
the event loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from warmshelf.errors import DeadlineExceeded, Internal, LoadCancelled, WarmshelfError
from warmshelf.types import ArtifactState, Failure, LoadPhase
from warmshelfd import failpoints
from warmshelfd.domain.catalog import Catalog, Entry
from warmshelfd.domain.state import Event
from warmshelfd.load import Load
from warmshelfd.loading import Loader
from warmshelfd.metric_table import Outcome
from warmshelfd.metrics import Metrics
from warmshelfd.records import remember, to_registration
from warmshelfd.registry.base import Registration
from warmshelfd.residency import Residency
from warmshelfd.tracing import EndedLoad, Tracing
from warmshelfd.turns import Priority
from warmshelfd.wishes import Complete, Loaded, Wishes

_log = logging.getLogger(__name__)

ENDED_COUNT_MAX = 16
"""Loads that are remembered for people to look at."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A load that has ended; ``reason`` is why, if not well. Times are of the monotonic clock."""

    artifact_id: str
    outcome: Outcome
    reason: str
    begun: tuple[tuple[LoadPhase, float], ...]
    end_seconds: float


class Flights:
    """The loads under way."""

    def __init__(
        self,
        catalog: Catalog,
        residency: Residency,
        loader: Loader,
        complete: Complete,
        save: Callable[[Entry], Awaitable[None]],
        on_ready: Callable[[Entry], None],
        metrics: Metrics,
        tracing: Tracing,
    ) -> None:
        self._catalog = catalog
        self._residency = residency
        self._loader = loader
        self._complete = complete
        self._save = save
        self._on_ready = on_ready
        self._metrics = metrics
        self._tracing = tracing
        # Event loop only: the load under way of each artifact that has one.
        self._loads: dict[str, Load] = {}
        # Event loop only: the last loads that ended, the latest last.
        self.ended: deque[Ended] = deque(maxlen=ENDED_COUNT_MAX)
        # Loads that were stopped and have not ended yet, beside those above.
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def loads(self) -> Collection[Load]:
        """The loads under way."""
        return self._loads.values()

    def find(self, artifact_id: str) -> Load | None:
        """Return the artifact's load under way, if any."""
        return self._loads.get(artifact_id)

    def join(self, entry: Entry, priority: Priority) -> Load:
        """Want the artifact: share its load, or start one. Each join needs one ``leave``."""
        load = self._loads.get(entry.artifact_id)
        if load is None:
            load = self._loads[entry.artifact_id] = Load(entry.artifact_id)
            load.task = asyncio.get_running_loop().create_task(self._run(entry, load))
            self._tasks.add(load.task)
            load.task.add_done_callback(self._tasks.discard)
        load.waiters.count += 1
        load.priority = min(load.priority, priority)
        return load

    def leave(self, load: Load) -> None:
        """Want it no longer; nobody left stops a load under way."""
        load.waiters.count -= 1
        if load.waiters.count == 0:
            self._stop(load)
        self._residency.notify()

    async def wait(self, load: Load, timeout: float) -> None:
        """Return when the load is done.

        Raises:
            ArenaFull: it still waited for room when the time was up.
            DeadlineExceeded: it was under way when the time was up; says how far it was.
            WarmshelfError: it failed.
        """
        task = load.task
        if task is not None:
            await asyncio.wait([task], timeout=max(timeout, 0))
        if task is None or not task.done():
            raise load.room or _too_slow(load)
        if load.error is not None:
            raise load.error

    def abandon(self, artifact_id: str, *, is_replaced: bool = False) -> None:
        """Stop the artifact's load, whoever waits for it; a new one may start at once.

        ``is_replaced``: what it loads is replaced, so that who waits for it may wait for the next one.
        """
        load = self._loads.get(artifact_id)
        if load is not None:
            load.is_replaced = is_replaced
            self._stop(load)

    def _stop(self, load: Load) -> None:
        """Stop a load and let a new one begin; the old one's clean-up goes on behind it."""
        if self._loads.get(load.artifact_id) is not load or load.task is None:
            return
        del self._loads[load.artifact_id]
        load.error = LoadCancelled(f"the load of {load.artifact_id!r} was stopped", artifact_id=load.artifact_id)
        load.task.cancel()
        entry = self._catalog.find(load.artifact_id)
        if entry is not None and entry.state is ArtifactState.LOADING:
            self._catalog.apply(load.artifact_id, Event.LOAD_CANCELLED)

    async def close(self) -> None:
        """Stop every load and wait until all have ended."""
        for load in list(self._loads.values()):
            self._stop(load)
        if self._tasks:
            await asyncio.wait(self._tasks)

    # --- one flight ---------------------------------------------------------

    async def _run(self, entry: Entry, load: Load) -> None:
        try:
            loaded = await self._loader.run(self._wishes(entry, load))
            failpoints.hit("load.ready")
            await self._land(entry, load, loaded)
        except asyncio.CancelledError:
            pass  # who stopped it has said so
        except WarmshelfError as error:
            self._fail(entry, load, error)
        except Exception as error:  # noqa: BLE001 - a bug must not leave the artifact LOADING
            _log.exception("load of %s failed", entry.artifact_id)
            self._fail(entry, load, Internal(f"{type(error).__name__} in the load; see the daemon's log"))
        finally:
            if self._loads.get(entry.artifact_id) is load:
                del self._loads[entry.artifact_id]
            self._residency.notify()
            self._count(entry, load)

    def _wishes(self, entry: Entry, load: Load) -> Wishes:
        return Wishes(
            known=lambda: to_registration(entry),
            load=load,
            reserved=lambda: self._begin(entry, load),
            complete=self._complete,
            as_asked=lambda found: _as_asked(found, entry),
            is_owed=lambda: entry.state is ArtifactState.READY and not entry.digest,
        )

    def _count(self, entry: Entry, load: Load) -> None:
        """Tell metrics and traces how a load went; in its task, which inherited the span of who began it."""
        uri, outcome, now = load.scheme or entry.spec.source.uri, _outcome(load.error), time.monotonic()
        scheme = self._metrics.scheme(uri)
        ended = EndedLoad(entry.artifact_id, entry.kind.value, scheme, outcome, load.begun, now)
        self._metrics.load_ended(entry.kind, uri, outcome, load.begun, now, self._tracing.load_ended(ended))
        self.ended.append(Ended(entry.artifact_id, outcome, _reason(load.error), tuple(load.begun), now))

    def _begin(self, entry: Entry, load: Load) -> None:
        """Space is reserved: the artifact is LOADING from now on."""
        if self._current(entry, load) and entry.state is not ArtifactState.LOADING:
            self._catalog.apply(entry.artifact_id, Event.LOAD_STARTED)

    async def _land(self, entry: Entry, load: Load, loaded: Loaded) -> None:
        segment_id = loaded.segment.segment_id
        if not self._current(entry, load):  # removed or replaced meanwhile: nobody can name these bytes
            if loaded.is_shared:
                self._residency.end_stream(segment_id)
            else:
                await self._residency.discard(loaded.segment)
            raise asyncio.CancelledError
        is_other = to_registration(entry) != loaded.known  # and may have been saved after what the load wrote
        remember(entry, _as_asked(loaded.registration, entry))
        self._begin(entry, load)
        if loaded.is_shared:
            self._residency.share(segment_id, entry)
            self._residency.end_stream(segment_id)
        else:
            self._residency.add(loaded.segment, entry, load.waiters)
        self._catalog.apply(entry.artifact_id, Event.SEALED)
        entry.pinned = loaded.segment.pinned
        self._catalog.touch(entry, entry.last_use_time or loaded.registration.register_time)
        self._on_ready(entry)
        failpoints.hit("load.landed")
        if is_other:
            await self._save(entry)

    def _fail(self, entry: Entry, load: Load, error: WarmshelfError) -> None:
        load.error = error
        if not self._current(entry, load):
            return
        if entry.state is not ArtifactState.LOADING:  # it failed before space was reserved
            self._catalog.apply(entry.artifact_id, Event.LOAD_STARTED)
        failure = Failure(error.reason, error.message, {k: str(v) for k, v in error.details.items()})
        self._catalog.apply(entry.artifact_id, Event.LOAD_FAILED, failure)

    def _current(self, entry: Entry, load: Load) -> bool:
        """Say whether this load is still the artifact's own."""
        return self._catalog.find(entry.artifact_id) is entry and self._loads.get(entry.artifact_id) is load


def _as_asked(found: Registration, entry: Entry) -> Registration:
    """Return what a load found, with what callers asked for since it began."""
    return dataclasses.replace(found, spec=entry.spec, keep_resident=entry.keep_resident, follow=entry.follow)


def _outcome(error: Exception | None) -> Outcome:
    if error is None:
        return "ok"
    return "cancelled" if isinstance(error, LoadCancelled) else "failed"


def _reason(error: Exception | None) -> str:
    return error.reason if isinstance(error, WarmshelfError) else ""


def _too_slow(load: Load) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"{load.artifact_id!r} was not ready in time; phase {load.phase.value}, "
        f"{load.done_bytes} of {load.total_bytes} bytes",
        artifact_id=load.artifact_id,
        phase=load.phase.value,
        done_bytes=load.done_bytes,
        total_bytes=load.total_bytes,
    )
