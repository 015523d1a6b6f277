"""What is computed over resident bytes behind everything else: digests, and hashes too slow for a load.

Runs on the event loop; hashing goes to a thread, one artifact at a time.
"""

from __future__ import annotations

import asyncio

from warmshelf.errors import DigestMismatch, SegmentCorrupt
from warmshelf.types import ArtifactState
from warmshelfd.digesting import Cancelled, by_sha256, check_hashes, content_digest
from warmshelfd.domain.catalog import Entry
from warmshelfd.inspecting import config_of
from warmshelfd.residency import Shelved
from warmshelfd.running import log_failure, run_stoppable
from warmshelfd.shelf import Shelf


class Hashing:
    """Learns the digests of resident artifacts."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def start(self, entry: Entry) -> asyncio.Task[None] | None:
        """Compare the format's slow hashes and learn the digest, if not done yet; return the work under way."""
        if entry.state is not ArtifactState.READY:
            return None
        shelved = self._shelf.residency.get(entry.segment_id)
        if entry.digest and shelved.unverified is None:
            return None
        if shelved.hashing is None or shelved.hashing.done():
            shelved.hashing = asyncio.get_running_loop().create_task(self._hash(entry, shelved))
            shelved.hashing.add_done_callback(log_failure)
        return shelved.hashing

    async def _hash(self, entry: Entry, shelved: Shelved) -> None:
        segment, unverified = shelved.segment, shelved.unverified
        config = config_of(shelved.kind, {file.name: file.data for file in segment.manifest.small_files})

        def work(stopped: Cancelled) -> str:
            tensors = segment.layout.tensors
            if unverified is not None:
                check_hashes(unverified, tensors, segment.read, by_sha256, stopped, threads=1)
            return entry.digest or content_digest(tensors, segment.read, config, stopped)

        try:
            digest = await run_stoppable(self._shelf.hash_threads, work)
        except DigestMismatch as error:
            if shelved.entries.get(entry.artifact_id) is entry and entry.state is ArtifactState.READY:
                self._shelf.withdraw(entry, error)
            return
        except SegmentCorrupt as error:
            self._shelf.withdraw_bytes(segment.segment_id, error)
            return
        shelved.unverified = None
        if shelved.entries.get(entry.artifact_id) is entry and not entry.digest:
            await self._shelf.learn_digest(entry, digest)
