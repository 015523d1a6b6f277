"""What a node knows of the store, by ID and with its numbers, and that it is kept in the copy. For the event loop."""

from __future__ import annotations

from collections.abc import Sequence

from warmshelfd.registry.shared import Shared, essence
from warmshelfd.registry.sqlite import SqliteRegistry
from warmshelfd.registry.synced import REMOVED, Known, keep_known, load_known
from warmshelfd.registry.telling import Numbers


class Book:
    """What is known. ``known`` belongs to the event loop; ``revisions`` has the numbers for other threads too."""

    def __init__(self, copy: SqliteRegistry) -> None:
        self.known: dict[str, Known] = {}
        self.revisions = Numbers()
        self._copy = copy

    async def load(self) -> None:
        """Read what was kept."""
        self.known.update(await self._copy.run(load_known))
        self.revisions.update({artifact_id: known.revision for artifact_id, known in self.known.items()})

    async def keep(self, ids: Sequence[str]) -> None:
        """Keep what is known of some IDs, which may be nothing."""
        kept = {artifact_id: self.known[artifact_id] for artifact_id in ids if artifact_id in self.known}
        gone = [artifact_id for artifact_id in ids if artifact_id not in self.known]
        if ids:
            await self._copy.run(lambda connection: keep_known(connection, kept, gone))

    def know(self, shared: Shared, conflict: str = "", digest: str = "", *, is_dirty: bool) -> None:
        """Take note of what the store has; ``is_dirty``: this node has something of the ID to publish."""
        artifact_id = shared.artifact_id
        if shared.registration is None:
            self.revisions.set(artifact_id, shared.revision)  # until the removal is done with
            self.known.pop(artifact_id, None)
            return
        before = self.known.get(artifact_id)
        is_removed = before is not None and before.is_removed and is_dirty  # since the change that was written now
        seen = (REMOVED if is_removed else "") + essence(shared.registration)
        self.set(artifact_id, Known(shared.revision, seen, digest, conflict))

    def set(self, artifact_id: str, known: Known) -> None:
        """Know this of an ID."""
        self.known[artifact_id] = known
        self.revisions.set(artifact_id, known.revision)

    def forget_removed(self, artifact_id: str) -> None:
        """Forget the number of a removal that is done with, or a node would remember every ID there ever was."""
        if artifact_id not in self.known:
            self.revisions.drop(artifact_id)
