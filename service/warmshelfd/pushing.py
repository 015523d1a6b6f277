"""The use cases of a push: begin, write, finish, abandon; and what becomes of pushes that nobody finishes.

Runs on the event loop; what touches the spool goes to threads. It says how much room
pushes may take and which are still wanted; where their bytes are is the spool's matter, and
what the ID means then is registering's. Knows no gRPC.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import crc32c

from warmshelf.errors import (
    Cancelled,
    ChunkCorrupt,
    DigestMismatch,
    Draining,
    InvalidRequest,
    SpecMismatch,
    SpoolFull,
    SpoolUnavailable,
    WarmshelfError,
)
from warmshelf.types import Artifact, ArtifactKind, ArtifactSpec, Source, check_id
from warmshelfd import failpoints
from warmshelfd.domain.catalog import Entry
from warmshelfd.loading import Loader
from warmshelfd.pools import executor
from warmshelfd.pushes import Chunk, Push, PushBook, PushLimits, check_chunk, check_whole, not_found
from warmshelfd.registering import RegisterOptions, check_base
from warmshelfd.running import run_stoppable, run_to_the_end, wait_at_most
from warmshelfd.shelf import Shelf
from warmshelfd.spool.base import Announcement, Spool, check_files, check_push_id

T = TypeVar("T")

WRITE_THREADS = 4
"""Threads that write chunks: a disk is no faster with more."""

HASH_THREADS = 2
"""Threads that prove pushed files, so that no chunk waits behind a large one; one reads 1 to 2 GB/s."""

STORE_THREADS = 4
"""Threads that bring files to a store or delete them there: one that hangs keeps nothing else waiting."""

DISK_RESERVE_BYTES = 64 << 20
"""What a push leaves free on the spool's disk, which others of the node may need too."""

SWEEP_SECONDS = 30.0
"""How often it is looked for pushes that nobody finishes; or more often, where they may be idle for less."""

_log = logging.getLogger(__name__)


class Pushing:
    """The pushes that the spool has: unfinished ones, and those that artifacts use."""

    def __init__(self, spool: Spool, shelf: Shelf, loader: Loader, limits: PushLimits) -> None:
        self.limits = limits
        self._spool = spool
        self._shelf = shelf
        self._loader = loader
        self._threads = executor(WRITE_THREADS, "spool")
        self._hash_threads = executor(HASH_THREADS, "spool-hash")
        self._store_threads = executor(STORE_THREADS, "spool-store")
        self._book = PushBook(limits, counts_kept=not spool.is_remote)  # event loop only
        self._left_over: set[str] = set()  # event loop only: pushes whose bytes are still to be deleted
        self._has_left_over = asyncio.Event()
        shelf.registering.is_own = spool.owns
        self._opening: asyncio.Task[None] | None = None

    # --- start and stop -----------------------------------------------------

    async def start(self) -> None:
        """Take the spool; what it has is found out behind everything else.

        Without a spool the daemon serves all the same, and refuses pushes.

        Raises:
            DaemonInUse: another daemon has it.
        """
        try:
            await self._in_thread(self._spool.open)
        except (SpoolUnavailable, SpoolFull) as error:
            _log.error("nothing can be pushed: %s", error)
            return
        self._shelf.registering.source_left = self._source_left
        self._opening = asyncio.get_running_loop().create_task(self._take_stock())

    async def _take_stock(self) -> None:
        for held in await self._in_thread(lambda: list(self._spool.held())):
            self._book.add(Push(held.push_id, held.announcement, [*held.received_bytes], is_kept=held.is_kept))
        self._book.share_disk(await self._in_thread(self._spool.free_bytes))

    async def _opened(self) -> None:
        """Wait until it is known what the spool has."""
        if self._shelf.draining:
            raise Draining("the daemon is stopping")
        if self._opening is None:
            raise SpoolUnavailable("this daemon has no spool to push to; its log says why")
        await asyncio.shield(self._opening)

    async def stop(self) -> None:
        """Let go of the spool; what is unfinished stays for the next start."""
        if self._opening is not None:
            await asyncio.wait([self._opening])
        for push in self._book:
            if push.writer is not None:
                push.writer.cancel()
                async with push.lock:
                    pass
        self._spool.stop()
        for threads in (self._threads, self._hash_threads, self._store_threads):
            threads.shutdown()
        self._spool.close()

    async def sweep(self) -> None:
        """Drop what nobody finishes and what nobody uses, for as long as the daemon runs."""
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await wait_at_most(self._has_left_over.wait(), self._sweep_seconds())
            await self._delete_left_over()
            for push in self._book:
                await self._drop_forsaken(push)

    async def _drop_forsaken(self, push: Push) -> None:
        try:
            if not push.lock.locked() and await self._is_forsaken(push):
                _log.warning("push %s of %s was dropped: nobody finished it", push.push_id[:8], _name(push))
                await self._drop(push)
        except WarmshelfError as error:
            _log.warning("push %s cannot be dropped: %s", push.push_id[:8], error)

    def _sweep_seconds(self) -> float:
        return min(SWEEP_SECONDS, self.limits.push_idle_seconds, self.limits.spool_orphan_seconds)

    async def _delete_left_over(self) -> None:
        """Delete what could not be, or was not waited for; what still cannot be is tried again."""
        self._has_left_over.clear()
        for push_id in list(self._left_over):
            self._left_over.discard(push_id)
            await self._try_discard(push_id)

    async def _is_forsaken(self, push: Push) -> bool:
        if not push.is_kept:
            return time.monotonic() - push.last_byte > self.limits.push_idle_seconds
        if self._user(push) is not None:
            return False
        age = await self._in_thread(lambda: self._spool.orphan_seconds(push.push_id))
        return age > self.limits.spool_orphan_seconds and self._user(push) is None and not push.lock.locked()

    # --- what clients ask for -----------------------------------------------

    async def begin(self, push_id: str, announcement: Announcement) -> list[int]:
        """Begin a push, or go on with one; return how far each file is. See PushService for the errors."""
        check_push_id(push_id)
        check_id(announcement.artifact_id)
        if announcement.base_id:
            check_id(announcement.base_id)
        check_base(announcement.artifact_id, announcement.base_id)
        check_files(announcement.files, self.limits.push_files_max)
        await self._opened()
        push = self._book.find(push_id)
        if push is None:
            push = await self._begin_new(push_id, announcement)
        elif push.announcement != announcement:
            raise InvalidRequest("push_id is that of another push", field="push_id")
        async with self._writing(push):
            push.last_byte = time.monotonic()
            return list(push.received)

    async def _begin_new(self, push_id: str, announcement: Announcement) -> Push:
        self._check_target(announcement)
        self._book.check_room(announcement.size_bytes)
        push = Push(push_id, announcement, [0] * len(announcement.files))
        self._book.add(push)
        async with push.lock:
            try:
                await self._check_disk()
                await self._to_the_end(lambda: self._spool.begin(push_id, announcement))
                failpoints.hit("push.begun")
            except BaseException:
                self._book.drop(push)
                raise
        return push

    async def write(self, push_id: str, chunks: AsyncIterator[Chunk]) -> list[int]:
        """Take chunks until there are no more; return how far each file is."""
        await self._opened()
        push = self._book.get(push_id)
        async with self._writing(push):
            try:
                async for chunk in chunks:
                    await self._take(push, chunk)
            except SpoolFull:
                await self._drop(push)
                raise
            return list(push.received)

    async def finish(self, push_id: str, hashes: Sequence[bytes]) -> Artifact:
        """Prove the files, keep them, and register the artifact."""
        await self._opened()
        push = self._book.get(push_id)
        async with self._writing(push):
            user = self._user(push)
            if user is not None:  # it was finished, and the answer lost
                return self._shelf.get(user.artifact_id)
            try:
                artifact = await self._finish(push, hashes)
            except WarmshelfError as error:
                if not error.retryable and not isinstance(error, InvalidRequest):
                    await self._drop(push)
                raise
            if artifact.spec.source.uri != self._spool.uri(push_id):  # the same content is there already
                await self._drop(push)
            return artifact

    async def abandon(self, push_id: str) -> None:
        """Drop an unfinished push."""
        await self._opened()
        push = self._book.find(push_id)
        if push is not None and not push.is_kept:
            async with self._writing(push):
                if not push.is_kept:
                    await self._drop(push)

    # --- one push -----------------------------------------------------------

    @asynccontextmanager
    async def _writing(self, push: Push) -> AsyncIterator[None]:
        """Have a push to oneself: whose stream wrote it until now has to let go, be it alive or half dead."""
        if push.writer is not None:
            push.is_taken_over = True
            push.writer.cancel()
        async with push.lock:
            if push.is_dropped:
                raise not_found(push.push_id)
            push.writer, push.is_taken_over = asyncio.current_task(), False
            try:
                yield
            except asyncio.CancelledError:
                if push.is_taken_over:
                    raise Cancelled("another stream has taken this push over") from None
                raise
            finally:
                push.writer = None

    async def _take(self, push: Push, chunk: Chunk) -> None:
        """Check a chunk and write it."""
        check_chunk(push, chunk, self.limits.push_chunk_bytes)
        failpoints.hit("push.chunk")

        def check_and_append() -> None:
            if crc32c.crc32c(chunk.data) != chunk.crc32c:
                offset = chunk.offset_bytes
                raise ChunkCorrupt(f"the chunk at byte {offset} has another CRC than sent", offset_bytes=offset)
            file = push.announcement.files[chunk.file_index]
            self._spool.append(push.push_id, file, chunk.offset_bytes, chunk.data)

        await self._to_the_end(check_and_append)
        failpoints.hit("push.written")
        push.took(chunk)

    async def _finish(self, push: Push, hashes: Sequence[bytes]) -> Artifact:
        announcement, push_id = push.announcement, push.push_id
        check_whole(push, hashes)
        if not push.is_kept:
            await self._prove(push, hashes)
            failpoints.hit("push.proven")
            await run_stoppable(self._store_threads, partial(self._spool.store, push_id, announcement.files, hashes))
            failpoints.hit("push.stored")
            await self._to_the_end(lambda: self._spool.keep(push_id))
            self._book.keep(push)
        failpoints.hit("push.kept")
        kind = ArtifactKind.ADAPTER if announcement.base_id else ArtifactKind.UNKNOWN
        spec = ArtifactSpec(Source(self._spool.uri(push_id)), kind, announcement.base_id)
        options = RegisterOptions(replace=announcement.replace, keep_resident=announcement.keep_resident)
        digest = await self._loader.digest_source(spec.source)
        artifact = await self._shelf.registering.register_pushed(
            announcement.artifact_id, spec, options, digest, self._is_pushed
        )
        failpoints.hit("push.registered")
        return artifact

    async def _prove(self, push: Push, hashes: Sequence[bytes]) -> None:
        files = push.announcement.files
        hash_all = partial(self._spool.hash, push.push_id, files)
        actual = await run_stoppable(self._hash_threads, hash_all)
        for file, found, sent in zip(files, actual, hashes, strict=True):
            if found != sent:
                raise DigestMismatch(
                    f"file {file.name!r} came with SHA-256 {found.hex()}, sent was {sent.hex()}",
                    expected=f"sha256:{sent.hex()}",
                    actual=f"sha256:{found.hex()}",
                )

    async def _drop(self, push: Push) -> None:
        """Forget a push and its bytes."""
        self._book.drop(push)
        await self._discard(push.push_id)

    async def _discard(self, push_id: str) -> None:
        threads = self._store_threads if self._spool.is_remote else self._threads
        try:
            await run_to_the_end(threads, lambda: self._spool.discard(push_id))
        except WarmshelfError:
            self._left_over.add(push_id)  # the sweep tries again
            raise

    async def _source_left(self, source: Source) -> None:
        """An artifact that was pushed is removed, or means another source now: nobody else can use its bytes."""
        if self._opening is not None:
            await asyncio.shield(self._opening)
        push, push_id = self._of(source), self._spool.push_of(source.uri)
        if not push_id or (push is not None and self._user(push) is not None):
            return
        if push is not None:
            self._book.drop(push)
        if self._spool.is_remote:  # also what another node pushed; nobody waits for a store
            self._left_over.add(push_id)
            self._has_left_over.set()
        elif push is not None:
            await self._try_discard(push_id)

    async def _try_discard(self, push_id: str) -> None:
        """Delete the bytes of a push that nobody means any more; if that cannot be done now, the sweep does."""
        try:
            await self._discard(push_id)
        except WarmshelfError as error:
            _log.warning("push %s stays in the spool: %s", push_id[:8], error)

    # --- what there is ------------------------------------------------------

    def _of(self, source: Source) -> Push | None:
        push_id = self._spool.push_of(source.uri)
        return self._book.find(push_id) if push_id else None

    def _is_pushed(self, source: Source) -> bool:
        """Say whether a source is what was pushed, here or to another node."""
        return self._of(source) is not None or (self._spool.is_remote and bool(self._spool.push_of(source.uri)))

    def _user(self, push: Push) -> Entry | None:
        """Return the artifact whose bytes these are, if there is one."""
        entry = self._shelf.catalog.find(push.announcement.artifact_id)
        return entry if entry is not None and entry.spec.source.uri == self._spool.uri(push.push_id) else None

    def _check_target(self, announcement: Announcement) -> None:
        """Refuse before its bytes come what would be refused after them."""
        entry = self._shelf.catalog.find(announcement.artifact_id)
        if entry is None or announcement.replace:
            return
        if entry.spec.base_id != announcement.base_id or not self._is_pushed(entry.spec.source):
            raise SpecMismatch(
                f"{entry.artifact_id!r} is known with another base or from another source; replace it to change that",
                artifact_id=entry.artifact_id,
            )

    async def _check_disk(self) -> None:
        """Refuse what the disk has no room for, with all that is still to come of other pushes."""
        needed = self._book.missing_bytes() + DISK_RESERVE_BYTES
        free = await self._in_thread(self._spool.free_bytes)
        if needed > free:
            raise SpoolFull(
                f"{needed} bytes are needed with what is still to come, the spool's disk has {free} free",
                needed_bytes=needed,
                free_bytes=free,
            )

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    async def _to_the_end(self, function: Callable[[], T]) -> T:
        return await run_to_the_end(self._threads, function)


def _name(push: Push) -> str:
    return push.announcement.artifact_id
