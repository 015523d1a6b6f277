"""Taking in, at start, what an earlier daemon left in the arena."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from warmshelf.errors import WarmshelfError
from warmshelfd import failpoints
from warmshelfd.memory.arena import Arena
from warmshelfd.memory.segment import Segment


def adopt(arena: Arena, keep: Collection[str]) -> Iterator[tuple[str, Segment | WarmshelfError]]:
    """Adopt the segments named, in that order; remove all others and what was not finished.

    Yields each that is there, with the segment or why it could not be adopted; those
    are removed too. If the budget has become smaller, the first ones win.
    """
    arena.remove_orphans(keep)
    failpoints.hit("adopt.cleaned")
    there = set(arena.segment_ids())
    for segment_id in keep:
        if segment_id in there:
            failpoints.hit("adopt.segment")
            adopted = _adopt_or_discard(arena, segment_id)
            failpoints.hit("adopt.taken")
            yield segment_id, adopted


def _adopt_or_discard(arena: Arena, segment_id: str) -> Segment | WarmshelfError:
    try:
        return arena.adopt(segment_id)
    except WarmshelfError as error:
        arena.discard(segment_id)
        return error
