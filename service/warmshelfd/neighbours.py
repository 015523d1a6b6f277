"""Bytes from neighbours: which nodes a load may be taken from, in what order, and which are left alone for a while.

A neighbour is asked for what it says that it has, at an address in the networks that the operator
allows, and believed nothing before its bytes' digest is the one that the ID is pinned to. Of several, those of
the same zone come first, and the quicker is asked more often. Runs on the event loop, but for what reads.
Whoever takes nothing here takes the source.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from warmshelf._security import PLAIN, Security
from warmshelf.errors import (
    ArenaFull,
    Internal,
    LargerThanArena,
    LoadCancelled,
    OutOfMemory,
    PinningFailed,
    WarmshelfError,
)
from warmshelf.segment import HEADER_BYTES
from warmshelf.types import Node, Resident
from warmshelfd.formats.base import FormatLimits
from warmshelfd.formats.segment_image import inspect_image
from warmshelfd.inspecting import Examined, Origin
from warmshelfd.memo import Prepared, prepare
from warmshelfd.metric_table import NEIGHBOUR
from warmshelfd.metrics import Metrics
from warmshelfd.options import Network
from warmshelfd.registry.base import Registration
from warmshelfd.registry.residents import NODES_MAX, split_address
from warmshelfd.sealing import files_digest
from warmshelfd.sources.base import OpenSource
from warmshelfd.sources.neighbour import NeighbourFault, NeighbourSegment, Patience

Find: TypeAlias = "Callable[[str], Awaitable[list[Resident]]]"

TRIES_MAX = 4
"""Neighbours that a load tries, before it takes the source."""

LEFT_ALONE_SECONDS = {"dead": 30.0, "slow": 60.0, "lied": 600.0}
"""How long who was of no use is not asked again, by what was wrong. Who is busy may be asked again at once."""

_HEADS_AT_ONCE = 2
"""Layouts and manifests that are read at once: each may have some hundred MiB."""

_RATE_WEIGHT = 0.3
"""How much the latest load says of a neighbour's rate."""

_BUSY_PAUSE_SECONDS = (0.1, 0.5)
"""Between two looks for a neighbour while all are busy: those that have just loaded are new ones."""

_NOT_ITS_FAULT = (ArenaFull, LargerThanArena, PinningFailed, OutOfMemory, Internal)
_L = TypeVar("_L")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NeighbourRules:
    """What the operator says.

    Attributes:
        networks: where neighbours may be; none: nobody is asked.
        patience: how long each may take.
        wait_seconds: how long to wait for one that is not busy.
        holder: what they are told that this node is called.
        zone: where this node is; "" if nobody said.
        security: how they are known, and this node to them.
    """

    networks: Sequence[Network]
    patience: Patience
    wait_seconds: float
    holder: str
    zone: str = ""
    security: Security = PLAIN

    def allow(self, address: str) -> tuple[str, int] | None:
        """Return the IP and port behind an address, if it may be connected to."""
        try:
            host, port = split_address(address)
        except ValueError:
            return None
        ip = ipaddress.ip_address(host)
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped  # what is connected to
        return (host, port) if any(ip in network for network in self.networks) else None


class Neighbours:
    """The other nodes, as far as loads go. All state belongs to the event loop."""

    def __init__(self, rules: NeighbourRules, limits: FormatLimits, find: Find, metrics: Metrics) -> None:
        """``find`` says on which nodes content with a digest is resident."""
        self._rules = rules
        self._limits = limits
        self._find = find
        self._metrics = metrics
        self._heads = threading.BoundedSemaphore(_HEADS_AT_ONCE)
        self._rates: dict[str, float] = {}  # bytes a second by node ID, the latest last
        self._left_alone: dict[str, float] = {}  # until when, by node ID

    def may_take(self, node: Node) -> bool:
        """Say whether a node could be asked now."""
        is_there = bool(self._rules.networks and node.address and self._rules.allow(node.address))
        return is_there and not self._is_left_alone(node)

    async def offers(self, known: Registration, tried: set[str]) -> AsyncIterator[Offer]:
        """Yield neighbours to take an artifact from, each after the one before was of no use.

        ``tried`` are the IDs of those that were of none already; they are added there.
        """
        if not self._rules.networks or not _can_be_proven(known):
            return
        until = time.monotonic() + self._rules.wait_seconds
        busy: set[str] = set()  # since the last pause
        while len(tried) < TRIES_MAX:
            there = self._allowed(await self._find(known.digest))
            fresh = [one for one in there if one.node.node_id not in tried]
            free = [one for one in fresh if one.node.node_id not in busy]
            if free:
                resident = self._pick(nearest(free, self._rules.zone))
                offer = Offer(self, _Image(self._rules, self._limits, self._heads, resident, known))
                yield offer
                (busy if offer.outcome == "busy" else tried).add(offer.node.node_id)
            elif not fresh or time.monotonic() > until:
                return
            else:
                busy.clear()
                await asyncio.sleep(random.uniform(*_BUSY_PAUSE_SECONDS))  # noqa: S311 - spreads, guards nothing

    def _allowed(self, there: Sequence[Resident]) -> list[Resident]:
        asked = [one for one in there if one.node.address and not self._is_left_alone(one.node)]
        allowed = [one for one in asked if self._rules.allow(one.node.address)]
        if len(allowed) < len(asked):
            self._metrics.neighbour("not_allowed", len(asked) - len(allowed))
        return allowed

    def _is_left_alone(self, node: Node) -> bool:
        return self._left_alone.get(node.node_id, 0.0) >= time.monotonic()

    def _pick(self, there: Sequence[Resident]) -> Resident:
        """Return one of them: by chance, the quicker the likelier; of whom nothing is known, as if the quickest."""
        known = [self._rates.get(one.node.node_id) for one in there]
        best = max((rate for rate in known if rate), default=1.0)
        return random.choices(there, [rate or best for rate in known])[0]  # noqa: S311

    def note(self, node: Node, outcome: str, bytes_per_second: float = 0.0) -> None:
        """Take note of how taking something from a node went."""
        self._metrics.neighbour(outcome)
        if outcome == "ok":
            before = self._rates.pop(node.node_id, bytes_per_second)
            self._rates[node.node_id] = before + _RATE_WEIGHT * (bytes_per_second - before)
        if seconds := LEFT_ALONE_SECONDS.get(outcome):
            self._left_alone.pop(node.node_id, None)
            self._left_alone[node.node_id] = time.monotonic() + seconds
        for kept in (self._rates, self._left_alone):
            if len(kept) > NODES_MAX:
                del kept[next(iter(kept))]


class Offer:
    """A neighbour that an artifact may be taken from."""

    def __init__(self, neighbours: Neighbours, origin: _Image) -> None:
        self.origin = origin
        self.node = origin.resident.node
        self.outcome = ""
        self._neighbours = neighbours

    async def taken(self, load: Awaitable[_L]) -> _L | None:
        """Return what a load from this neighbour gives; None if it gives nothing that can be used."""
        began = time.monotonic()
        try:
            loaded = await load
        except LoadCancelled:
            raise
        except NeighbourFault as fault:
            self._failed(fault.outcome, str(fault))
        except _NOT_ITS_FAULT as error:
            self._failed("failed", error.message)
        except WarmshelfError as error:  # what it sent is not what the ID is pinned to, or nothing at all
            self._failed("lied", error.message)
        except Exception:  # noqa: BLE001 - a bug in here must not keep anybody from the source
            _log.exception("taking %s from a neighbour", self.origin.resident.artifact_id)
            self._failed("failed", "a bug")
        else:
            self.outcome = "ok"
            rate = self.origin.read_bytes / max(time.monotonic() - began, 1e-3)
            self._neighbours.note(self.node, "ok", rate)
            return loaded
        return None

    def _failed(self, outcome: str, why: str) -> None:
        self.outcome = outcome
        self._neighbours.note(self.node, outcome)
        say = _log.info if outcome in ("busy", "gone") else _log.warning
        say("%s was not taken from node %s (%s: %s)", self.origin.resident.artifact_id, self.node.name, outcome, why)


class _Image(Origin):
    """An artifact in a neighbour's memory."""

    place = NEIGHBOUR

    def __init__(
        self,
        rules: NeighbourRules,
        limits: FormatLimits,
        heads: threading.BoundedSemaphore,
        resident: Resident,
        known: Registration,
    ) -> None:
        self.resident = resident
        self._rules = rules
        self._limits = limits
        self._heads = heads
        self._known = known
        self._segment: NeighbourSegment | None = None

    @property
    def read_bytes(self) -> int:
        """What was read of it."""
        return self._segment.read_bytes if self._segment else 0

    def open(self) -> OpenSource:
        """As the interface says; connects to nothing that is not allowed."""
        where = self._rules.allow(self.resident.node.address)
        if where is None:
            raise NeighbourFault("not_allowed", "is at no address that may be connected to")
        self._segment = NeighbourSegment(self.resident.node.address, *where, self._rules.patience, self._rules.security)
        self._segment.looks = self._known.fingerprint
        return self._segment

    def examine(self, opened: OpenSource, cancelled: Callable[[], bool]) -> Examined:
        """As the interface says."""
        segment = self._segment
        if segment is None or segment is not opened or cancelled():
            raise LoadCancelled("the load was stopped")
        segment.lease(f"neighbour {self._rules.holder}", self.resident.artifact_id, self._known.digest)
        with self._heads:
            header, layout, manifest = segment.head()
            inspected, small = inspect_image(header.data, layout, manifest, self._limits)
            prepared = prepare(inspected)
        _check_as_known(self._known, prepared, header.data.size)
        if files_digest(inspected.kind, small) != self._known.files_digest:
            raise NeighbourFault("lied", "has other small files than those that the ID is pinned to")
        segment.small_files = small
        small_bytes = sum(len(data) + len(name.encode()) + 16 for name, data in small.items())
        return Examined(prepared, self._known.fingerprint, small_bytes, is_hearsay=True)


# --- pure parts -------------------------------------------------------------


def nearest(there: Sequence[Resident], zone: str) -> Sequence[Resident]:
    """Return those of the same zone, or all if there are none."""
    return [one for one in there if zone and one.node.zone == zone] or there


def _can_be_proven(known: Registration) -> bool:
    """Say whether bytes from anywhere can be told from others: all that counts of them is pinned."""
    expected = known.spec.source.expected_digest
    is_pinned = bool(known.digest and known.files_digest) and not known.follow
    return is_pinned and expected in ("", known.digest)


def _check_as_known(known: Registration, prepared: Prepared, data_bytes: int) -> None:
    """Refuse what is larger than it can be, before room is made for it."""
    inspection = known.inspection
    is_other = inspection is not None and (
        (inspection.tensor_count, inspection.tensor_bytes)
        != (prepared.inspection.tensor_count, prepared.inspection.tensor_bytes)
    )
    if (
        is_other
        or prepared.inspected.kind is not known.kind
        or data_bytes + HEADER_BYTES > (known.size_bytes or 1 << 62)
    ):
        raise NeighbourFault("lied", "holds other tensors than those that the ID is pinned to")
