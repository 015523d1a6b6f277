"""Which nodes are about to have an artifact: this one by its loads, another by its claim of the source.

Runs on the event loop. Knows neither how far a load is nor where claims are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from warmshelf.types import Node
from warmshelfd.claims import Claims
from warmshelfd.domain.catalog import Entry
from warmshelfd.records import to_registration
from warmshelfd.registry.claims import Claim
from warmshelfd.registry.fields import BadRecord
from warmshelfd.registry.residents import StoreAwayError
from warmshelfd.residency_map import ResidencyMap
from warmshelfd.shelf import Shelf


@dataclass(frozen=True, slots=True)
class LoadsSeen:
    """Who loads an artifact: IDs of nodes, the own first; ``is_partial``: nobody could say whether another does."""

    node_ids: tuple[str, ...] = ()
    is_partial: bool = False

    def among(self, nodes: Iterable[Node]) -> list[str]:
        """Return those of them that are nodes which are there: another one, dead or made up, loads nothing."""
        there = {node.node_id for node in nodes}
        return [node_id for node_id in self.node_ids if node_id in there]


class Underway:
    """Says who loads what.

    Event loop only: the looks at claims under way, by ID. Who asks for the same meanwhile waits for the same.
    """

    def __init__(self, shelf: Shelf, residency_map: ResidencyMap, claims: Claims) -> None:
        """``residency_map`` says which node this is."""
        self._shelf = shelf
        self._map = residency_map
        self._claims = claims
        self._looks: dict[str, asyncio.Task[Claim | None]] = {}

    def _look(self, entry: Entry) -> asyncio.Task[Claim | None]:
        artifact_id = entry.artifact_id
        if artifact_id not in self._looks:
            look = asyncio.get_running_loop().create_task(self._claims.standing(to_registration(entry)))
            self._looks[artifact_id] = look
            look.add_done_callback(partial(self._looked, artifact_id))
        return self._looks[artifact_id]

    def _looked(self, artifact_id: str, look: asyncio.Task[Claim | None]) -> None:
        del self._looks[artifact_id]
        if not look.cancelled():
            look.exception()  # whoever waited was told; nobody may wait any more

    async def look(self, artifact_id: str) -> LoadsSeen:
        """Return who loads an artifact; nobody loads what is not known here, or "" for none."""
        entry = self._shelf.catalog.find(artifact_id) if artifact_id else None
        if entry is None:
            return LoadsSeen()
        mine = (self._map.node.node_id,) if self._shelf.flights.find(artifact_id) else ()
        try:
            claim = await asyncio.shield(self._look(entry))
        except StoreAwayError:
            return LoadsSeen(mine, is_partial=True)
        except BadRecord:
            return LoadsSeen(mine)
        if claim is None or claim.node_id == self._map.node.node_id:  # its own says nothing that is not known
            return LoadsSeen(mine)
        return LoadsSeen((*mine, claim.node_id))
