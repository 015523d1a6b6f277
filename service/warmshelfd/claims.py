"""Who reads a source that several nodes want at once: one of them, and the others take the bytes from that one.

A load that is about to read says so in the registry that nodes share, and how far it is.
Who finds another there waits for as long as that one gets on, and looks meanwhile whether a node has the bytes.
Nothing hangs on it: whoever cannot ask, or sees nobody get on, reads the source itself.
Runs on the event loop. Knows neither how bytes are read nor where claims are kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from warmshelf.types import LoadPhase, Node
from warmshelfd.load import Load
from warmshelfd.metrics import Metrics
from warmshelfd.pools import executor
from warmshelfd.registry.base import Registration
from warmshelfd.registry.claims import Claim, ClaimStore
from warmshelfd.registry.fields import BadRecord
from warmshelfd.registry.residents import StoreAwayError
from warmshelfd.registry.shared import is_shared
from warmshelfd.running import log_failure, run_to_the_end

CLAIM_BYTES_MIN = 16 << 20
"""Smaller artifacts are read sooner than they are waited for."""

CLAIMANTS_MAX = 3
"""Nodes that a load waits for, one after the other: what fails or dies everywhere is found out side by side then."""

DONE = "done-0"
"""How far a load is that has come to its end."""

PATIENCE_FACTOR = 1.5
"""Of a claim's life, a load waits so long: who stops getting on loses its claim first, to one of those who wait."""

LOOK_SECONDS = (0.1, 0.3)
"""Between two looks at how far another node is; at random, so that many nodes spread."""

TELL_SECONDS = 1.0
"""How often a node says how far it is; a quiet one has nothing to say."""

DONE_SECONDS = 10.0
"""How long a claim stands after its load: until others have heard of the digest, and of who has the bytes."""

TOLD_SECONDS = 5.0
"""How long to wait then: several times what that takes. Else it was evicted meanwhile."""

AFTER_SECONDS_MAX = 600.0
"""How long others wait for what comes after reading, digest and all: bytes of 300 GB are hashed by then."""

AWAY_SECONDS = 2.0
"""After the store was away it is not asked for so long: each load would wait half a second for it."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ClaimRules:
    """What the operator says.

    Attributes:
        life_seconds: how long a load may come no further before others go on without it.
        bytes_per_second_min: what is too slow to be waited for.
        may_take: says whether this node could take bytes from another one.
    """

    life_seconds: float
    bytes_per_second_min: int
    may_take: Callable[[Node], bool]

    @property
    def tell_seconds(self) -> float:
        """How often to say how far a load is: often enough for a claim to outlive a late word."""
        return min(TELL_SECONDS, self.life_seconds / 3)

    @property
    def step_bytes(self) -> int:
        """How far a load has to come to have come further."""
        return max(1, int(self.bytes_per_second_min * self.life_seconds / 2))


class Claims:
    """Claims of this node, and its looks at others'. All state belongs to the event loop."""

    def __init__(self, store: ClaimStore | None, node: Callable[[], Node], rules: ClaimRules, metrics: Metrics) -> None:
        """``store`` is where claims are, None where nobody shares anything; ``node`` says who this one is now."""
        self.rules = rules
        self.metrics = metrics
        self._store = store
        self._node = node
        self._thread = executor(1, "claims")
        self._keeping: set[asyncio.Task[None]] = set()
        self._away_until = 0.0  # by the monotonic clock; the thread's

    def turn(self, load: Load, is_owed: Callable[[], bool]) -> Turn:
        """Return a load's way to its source; ``is_owed`` says whether what it loaded still has to get its digest."""
        node = self._node()
        return Turn(self, load, is_owed, Claim(node.node_id, secrets.token_hex(8), "inspect-0", node.address))

    def concern(self, known: Registration) -> bool:
        """Say whether others may read the same source for the same bytes, and be worth waiting for."""
        return self._store is not None and is_takable(known) and _size_bytes(known) >= CLAIM_BYTES_MIN

    async def hold(self, name: str, mine: Claim, life_seconds: float) -> Claim | None:
        """Claim a load, or say how far it is; return the claim that stands. A node that nobody can reach only looks."""
        if not mine.address:
            return await self._ask(lambda store: store.look(name))
        return await self._ask(lambda store: store.hold(name, mine, life_seconds))

    async def standing(self, known: Registration) -> Claim | None:
        """Return the claim of an artifact's source, if a load under way has one; raises as the store does."""
        if not self.concern(known):
            return None
        name = name_of(known)
        claim = await self._ask(lambda store: store.look(name))
        return claim if claim is not None and claim.progress != DONE else None

    async def drop(self, name: str, mine: Claim) -> None:
        """Claim a load no longer."""
        with suppress(StoreAwayError, BadRecord):
            await self._ask(lambda store: store.drop(name, mine))

    def keep(self, claim: Keeping) -> None:
        """Say how far a load is from now on."""
        task = asyncio.get_running_loop().create_task(claim.run(self))
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)
        task.add_done_callback(log_failure)

    async def close(self) -> None:
        """Take every claim back, if that can be done at once."""
        tasks = list(self._keeping)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        store = self._store
        if store is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, store.close)
        self._thread.shutdown(wait=False)

    async def _ask(self, ask: Callable[[ClaimStore], _T]) -> _T:
        """Ask the store. To the end, whoever is cancelled: what was claimed has to be known."""
        store = self._store
        if store is None:
            raise StoreAwayError("away")
        try:
            return await run_to_the_end(self._thread, lambda: self._asked(store, ask))
        except StoreAwayError as error:
            self.metrics.fleet_failed(error.reason)
            raise
        except BadRecord:
            self.metrics.fleet_failed("bad_record")
            raise

    def _asked(self, store: ClaimStore, ask: Callable[[ClaimStore], _T]) -> _T:
        """Ask, on the thread; whoever has queued behind a store that is away learns it at once."""
        if time.monotonic() < self._away_until:
            raise StoreAwayError("away")
        try:
            return ask(store)
        except StoreAwayError:
            self._away_until = time.monotonic() + AWAY_SECONDS
            raise


class Turn:
    """One load's way to its source."""

    def __init__(self, claims: Claims, load: Load, is_owed: Callable[[], bool], mine: Claim) -> None:
        self._claims = claims
        self._load = load
        self._is_owed = is_owed
        self._mine = mine
        self._waited_for: dict[tuple[str, str], str] = {}  # how far each claimant was when last looked at
        self._until = 0.0  # when the latest of them is given up, by the monotonic clock

    async def is_mine(self, known: Registration) -> bool:
        """Say whether to read the source now; if not, another node does, and comes further. Takes a moment then."""
        if not self._claims.concern(known):
            return True
        name = name_of(known)
        try:
            standing = await self._claims.hold(name, self._mine, self._claims.rules.life_seconds)
        except (StoreAwayError, BadRecord):
            return self._counted("away")
        if standing is None or standing.is_of(self._mine):
            if standing is not None:
                self._claims.keep(Keeping(name, self._mine, self._load, self._is_owed))
            return self._counted("first")
        if standing.node_id == self._mine.node_id:  # of this node before it was started again, or of a load that ended
            await self._claims.drop(name, standing)
            return False
        if not self._gets_on(standing):
            return self._counted("given_up")
        await asyncio.sleep(random.uniform(*LOOK_SECONDS))  # noqa: S311 - spreads, guards nothing
        return False

    def _gets_on(self, other: Claim) -> bool:
        """Say whether another node's load is worth waiting for."""
        if not self._claims.rules.may_take(other.node):
            return False
        who, now = (other.node_id, other.load), time.monotonic()
        if not self._waited_for:
            self._claims.metrics.source_turn("waited")
        if self._waited_for.get(who) != other.progress:
            self._waited_for[who] = other.progress
            patience = PATIENCE_FACTOR * self._claims.rules.life_seconds
            self._until = now + (TOLD_SECONDS if other.progress == DONE else patience)
        claimants = [progress for progress in self._waited_for.values() if progress != DONE]
        return len(claimants) <= CLAIMANTS_MAX and now < self._until

    def _counted(self, outcome: str) -> bool:
        self._claims.metrics.source_turn(outcome)
        return True


class Keeping:
    """What is told of a claimed load, to its end and until its digest is known."""

    def __init__(self, name: str, mine: Claim, load: Load, is_owed: Callable[[], bool]) -> None:
        self._name = name
        self._told = mine
        self._load = load
        self._is_owed = is_owed
        self._read_time = 0.0  # when all was read, by the monotonic clock

    async def run(self, claims: Claims) -> None:
        """Tell how far the load is. What comes no further is not told, and others stop waiting for it."""
        is_well = False
        try:
            while not self._is_over():
                await self._moment(claims.rules.tell_seconds)
                if not await self._tell(claims, self._progress(claims.rules), claims.rules.life_seconds):
                    return
            is_well = self._load.error is None
        finally:
            if is_well:
                await self._tell(claims, DONE, DONE_SECONDS)
            else:
                await claims.drop(self._name, self._told)

    def _is_over(self) -> bool:
        has_ended = self._load.task is None or self._load.task.done()
        return has_ended and (self._load.error is not None or not self._is_owed())

    async def _moment(self, seconds: float) -> None:
        task = self._load.task
        if task is None or task.done():
            await asyncio.sleep(seconds)
        else:
            await asyncio.wait([task], timeout=seconds)

    def _progress(self, rules: ClaimRules) -> str:
        now = time.monotonic()
        if _is_read(self._load):
            self._read_time = self._read_time or now
        return progress_of(self._load, rules.step_bytes, now - self._read_time if self._read_time else 0.0)

    async def _tell(self, claims: Claims, progress: str, life_seconds: float) -> bool:
        """Say how far it is, if that is news; say whether the claim is still this load's."""
        if progress == self._told.progress:
            return True
        mine = replace(self._told, progress=progress)
        try:
            standing = await claims.hold(self._name, mine, life_seconds)
        except StoreAwayError:
            return True  # told the next time
        except BadRecord:
            return False
        self._told = mine
        return standing is not None and standing.is_of(mine)


# --- pure parts ---------------------------------------------------------------


def is_takable(known: Registration) -> bool:
    """Say whether bytes of another node's would do, once their digest is pinned."""
    return is_shared(known) and not known.follow and known.spec.source.expected_digest in ("", known.digest)


def name_of(known: Registration) -> str:
    """Return what nodes call the reading of this source under this ID; the ID may stand for another source later."""
    source = known.spec.source
    text = repr((known.artifact_id, source.uri, source.revision, source.expected_digest))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def progress_of(load: Load, step_bytes: int, after_seconds: float) -> str:
    """Return how far a load is, as a word that stays the same while it does not get on.

    Waiting for room is no progress. After reading, time alone is, for a while.
    """
    if load.phase is LoadPhase.READ:
        return f"read-{load.done_bytes // step_bytes}"
    return f"{load.phase.value}-{int(10 * min(after_seconds, AFTER_SECONDS_MAX))}"


def _is_read(load: Load) -> bool:
    return load.phase in (LoadPhase.VERIFY, LoadPhase.SEAL, LoadPhase.PIN)


def _size_bytes(known: Registration) -> int:
    return known.inspection.tensor_bytes if known.inspection else CLAIM_BYTES_MIN
