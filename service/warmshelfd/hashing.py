"""What is computed over resident bytes behind everything else: digests, and hashes too slow for a load.

Runs on the event loop; hashing goes to a thread, one artifact at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from warmshelf.errors import DigestMismatch, SegmentCorrupt, SourceChanged
from warmshelf.types import ArtifactState
from warmshelf.v1 import manifest_pb2
from warmshelfd import failpoints
from warmshelfd.digesting import Cancelled, check_sha256s, content_digest
from warmshelfd.domain.catalog import Entry
from warmshelfd.formats.tensorizer_hashes import HashedTensor
from warmshelfd.inspecting import config_of
from warmshelfd.running import log_failure, run_stoppable
from warmshelfd.shelf import Shelf
from warmshelfd.shelved import Shelved


class Hashing:
    """Learns the digests of resident artifacts."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def start(self, entry: Entry) -> asyncio.Task[None] | None:
        """Compare the format's slow hashes and learn the digest, if not done yet; return the work under way."""
        if entry.state is not ArtifactState.READY:
            return None
        shelved = self._shelf.residency.get(entry.segment_id)
        if entry.digest and not entry.hashes_owed:
            return None
        if shelved.hashing is None or shelved.hashing.done():
            shelved.hashing = asyncio.get_running_loop().create_task(self._hash(entry, shelved))
            shelved.hashing.add_done_callback(log_failure)
        return shelved.hashing

    async def source_sha256(self, entry: Entry) -> str:
        """Return the sha256 digest of the file that the resident bytes came from, which only the source tells.

        Raises:
            SourceChanged: the source is no longer that file.
            UnsupportedFormat: the artifact comes from several files.
        """
        fingerprint = entry.fingerprint
        actual, found = await self._shelf.source_sha256(entry)
        if found != fingerprint:
            raise SourceChanged(
                f"the source of {entry.artifact_id!r} changed since it was loaded, and only it tells a sha256",
                artifact_id=entry.artifact_id,
            )
        return actual

    async def _hash(self, entry: Entry, shelved: Shelved) -> None:
        segment, known, hashes_owed = shelved.segment, entry.digest, entry.hashes_owed

        def work(stopped: Cancelled) -> str:
            manifest, tensors = segment.manifest, segment.layout.tensors
            if hashes_owed:
                check_sha256s(_checks(manifest), tensors, segment.read, stopped, threads=1)
            config = config_of(shelved.kind, {file.name: file.data for file in manifest.small_files})
            return known or content_digest(tensors, segment.read, config, stopped)

        try:
            digest = await run_stoppable(self._shelf.hash_threads, work)
        except (DigestMismatch, SegmentCorrupt) as error:
            self._shelf.withdraw_bytes(segment.segment_id, error)
            return
        failpoints.hit("digest.computed")
        for owner in [one for one in shelved.entries.values() if one.hashes_owed or not one.digest]:
            await self._shelf.learn_digest(owner, digest)
            failpoints.hit("digest.recorded")


def _checks(manifest: manifest_pb2.Manifest) -> Iterator[HashedTensor]:
    """Return the hashes that a manifest keeps until they have been compared."""
    return (HashedTensor(one.name, None, one.sha256, one.prefix) for one in manifest.hashes)
