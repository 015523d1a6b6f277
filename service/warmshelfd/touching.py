"""Before bytes are handed out: has somebody touched the file that they lie in?

Looks at the file from outside, for microseconds; reads no byte of it. Knows nothing of what follows.
"""

from __future__ import annotations

from warmshelfd.residency import Residency


async def ensure_untouched(residency: Residency, segment_id: str) -> None:
    """Return if the file of a segment is as it was sealed, as far as the kernel tells.

    Raises:
        SegmentCorrupt: somebody has changed, replaced or taken it away.
    """
    arena, segment = residency.arena, residency.get(segment_id).segment
    if arena.volume.is_memory:  # the kernel answers from memory
        arena.check_look(segment)
    else:
        await residency.in_thread(arena.check_look, segment)
