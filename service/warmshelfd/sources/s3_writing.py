"""Writes the files of a push into S3 and what speaks its protocol, beside what reads them there.

Each push is a directory of its own below one prefix, so that it is a source as any other.
An object appears whole or not at all, and is read back before anybody counts on it. Knows
no push but by its number; the connections are those of sources.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from warmshelf.errors import LoadCancelled, SourceNotFound, SpoolFull, SpoolUnavailable, WarmshelfError
from warmshelfd.sources.coroutines import LoopThread
from warmshelfd.sources.limits import TimeLimits
from warmshelfd.sources.s3_store import READ_BYTES_MAX, S3Stores, error_of
from warmshelfd.sources.s3_uri import parse_s3_uri
from warmshelfd.sources.settings import SourceSettings

if TYPE_CHECKING:
    from obstore.store import S3Store

T = TypeVar("T")

Cancelled = Callable[[], bool]

PART_BYTES = READ_BYTES_MAX
"""What one request sends or reads back; how long it may take depends on it."""

PART_COUNT_MAX = 10_000
"""Most parts that S3 makes one object of."""

PARALLEL_COUNT = 4
"""Requests of one push at once: with their parts, 32 MiB."""

LOOK_SECONDS = 0.1
"""How often it is looked whether anybody still wants it."""

KEYS_MAX = 65536
"""Most keys that a directory of one push is believed to have."""

_FULL = frozenset({"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage"})


class S3Writer:
    """Keeps pushes below one prefix. For several threads."""

    def __init__(self, prefix: str, settings: Sequence[SourceSettings], limits: TimeLimits) -> None:
        """Take a place such as ``s3://bucket/pushed``.

        Raises:
            InvalidSpec: it is none.
        """
        self._place = parse_s3_uri(prefix)
        self._stores = S3Stores(settings, limits)
        self._thread = LoopThread()

    @property
    def prefix(self) -> str:
        """What every URI of a push lies below."""
        return self._place.uri

    def uri(self, push_id: str) -> str:
        """Return the URI of a push as a source."""
        return f"{self.prefix}/{push_id}"

    def check(self, cancelled: Cancelled) -> None:
        """Do nothing: what a server of S3 has stored, stays."""

    def write(self, push_id: str, files: Mapping[str, str], cancelled: Cancelled) -> None:
        """Write files, by name and path, but those that are there with their size from a try before."""
        there = self._sizes(push_id, cancelled)
        for name, path in files.items():
            size = Path(path).stat().st_size
            if there.get(name) != size:
                self._put(f"{self._key(push_id)}{name}", path, size, cancelled)

    def hash(self, push_id: str, names: Sequence[str], cancelled: Cancelled) -> list[bytes]:
        """Read the files back, and return the SHA-256 of each."""
        sizes = self._sizes(push_id, cancelled)
        return [self._hash(f"{self._key(push_id)}{name}", sizes.get(name, 0), cancelled) for name in names]

    def remove(self, push_id: str, sizes: Mapping[str, int] | None, cancelled: Cancelled) -> None:  # noqa: ARG002
        """Remove what there is of a push; a listing says what that is."""
        import obstore  # noqa: PLC0415 - the daemon may start without it

        store = self._store()
        keys = [f"{self._key(push_id)}{name}" for name in self._sizes(push_id, cancelled)]
        if keys:
            self._call(lambda: obstore.delete_async(store, keys), cancelled)

    # --- objects ----------------------------------------------------------------

    def _key(self, push_id: str) -> str:
        return f"{self._place.key}/{push_id}/" if self._place.key else f"{push_id}/"

    def _store(self) -> S3Store:
        try:
            return self._stores.store(self._place)
        except WarmshelfError as error:
            raise SpoolUnavailable(error.message) from error

    def _sizes(self, push_id: str, cancelled: Cancelled) -> dict[str, int]:
        """Return the size of each object of a push, by its name."""
        import obstore  # noqa: PLC0415

        store, start = self._store(), self._key(push_id)

        async def list_all() -> dict[str, int]:
            found: dict[str, int] = {}
            async for page in obstore.list(store, start.rstrip("/")):
                found |= {meta["path"].removeprefix(start): meta["size"] for meta in page}
                if len(found) > KEYS_MAX:
                    raise SpoolUnavailable(f"{self.uri(push_id)} has more than {KEYS_MAX} keys", key_count=len(found))
            return found

        return self._call(list_all, cancelled)

    def _put(self, key: str, path: str, size: int, cancelled: Cancelled) -> None:
        import obstore  # noqa: PLC0415

        store, part = self._store(), part_bytes(size)
        many = size > part
        self._call(
            lambda: obstore.put_async(
                store, key, Path(path), use_multipart=many, chunk_size=part, max_concurrency=PARALLEL_COUNT
            ),
            cancelled,
        )

    def _hash(self, key: str, size: int, cancelled: Cancelled) -> bytes:
        hasher = hashlib.sha256()
        for piece in self._pieces(key, size, cancelled):
            hasher.update(piece)
        return hasher.digest()

    def _pieces(self, key: str, size: int, cancelled: Cancelled) -> Iterator[Any]:
        """Read an object in parts, some at a time."""
        import obstore  # noqa: PLC0415

        store, window = self._store(), PART_BYTES * PARALLEL_COUNT
        for first in range(0, size, window):
            starts = list(range(first, min(first + window, size), PART_BYTES))
            ends = [min(start + PART_BYTES, size) for start in starts]

            async def read(starts: list[int] = starts, ends: list[int] = ends) -> list[Any]:
                return list(await obstore.get_ranges_async(store, key, starts=starts, ends=ends, coalesce=0))

            yield from self._call(read, cancelled)

    def _call(self, make: Callable[[], Coroutine[Any, Any, T]], cancelled: Cancelled) -> T:
        """Wait for obstore, but no longer than somebody wants it; give every failure of it in our words."""
        future = asyncio.run_coroutine_threadsafe(_awaited(make), self._thread.loop())
        while not wait([future], LOOK_SECONDS).done:
            if cancelled():
                future.cancel()
                raise LoadCancelled("writing to the spool was stopped")
        try:
            return future.result()
        except WarmshelfError:
            raise
        except Exception as error:  # noqa: BLE001 - all that it raises
            raise _failure(error_of(error, self.prefix)) from None


async def _awaited(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return await make()


def part_bytes(size: int) -> int:
    """Return how long the parts of an object are: longer only where there would be too many."""
    count = -(-size // PART_BYTES)
    return PART_BYTES * max(1, -(-count // PART_COUNT_MAX))


def _failure(error: WarmshelfError) -> WarmshelfError:
    """Return an error of a source as one of the spool."""
    code = str(error.details.get("code", ""))
    if code in _FULL:
        return SpoolFull(f"the spool's store is full ({code})", code=code)
    if isinstance(error, SourceNotFound) and code:
        return SpoolUnavailable(f"the spool's bucket is not there ({code})", code=code)
    return SpoolUnavailable(f"the spool cannot be reached: {error.message}", code=code)
