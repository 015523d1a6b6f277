"""Writes the files of a push into Redis, in the layout that sources in Redis are read in.

Chunks first, which end by themselves, then the manifest: until then nobody sees anything.
The number of the push is the manifest's etag, so that the keys of a push that was cut off
are known to whoever cleans up. Knows no push but by its number.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import crc32c

from warmshelf.errors import LoadCancelled, SpoolFull, SpoolUnavailable, WarmshelfError
from warmshelf.redis_layout import (
    CHUNK_BYTES,
    FIELD_BYTES_MAX,
    FIELDS,
    TABLE_BYTES_MAX,
    StoredFile,
    StoredManifest,
    as_fields,
    chunk_count,
    chunk_key,
    chunk_keys,
    decode_manifest,
    encode_manifest,
    manifest_key,
)
from warmshelf.redis_uri import parse_store
from warmshelfd.redis_wire import Command, Patience, RedisRefusedError, RedisWire, Reply
from warmshelfd.sources.redis_chunked import ChunkedSource
from warmshelfd.sources.redis_pool import Access, RedisPool, settings_of
from warmshelfd.sources.settings import SourceSettings, settings_for

T = TypeVar("T")

Cancelled = Callable[[], bool]

ABANDONED_SECONDS = 24 * 3600
"""How long chunks stay that never got a manifest: longer than any writing takes."""

BATCH_COUNT = 8
"""Chunks of one round trip: 8 MiB, so that stopping is quick and neither side holds more."""

KEYS_COUNT = 512
"""Keys of one round trip of short commands."""

INFO_BYTES_MAX = 64 << 10
"""Longest answer about the server; its two sections have some 2 KB."""

SYNC_SECONDS = 5.0
"""How long the server may take to bring what was written to its disk."""

_POLICY = re.compile(rb"maxmemory_policy:([a-z-]+)")
_APPENDS = re.compile(rb"aof_enabled:1")

_log = logging.getLogger(__name__)


class RedisWriter:
    """Keeps pushes below one place in Redis. For several threads."""

    def __init__(self, prefix: str, settings: Sequence[SourceSettings], patience: Patience | None = None) -> None:
        """Take a place such as ``redis://cache:6379/0/pushed``.

        Raises:
            InvalidSpec: it is none.
        """
        self._place = parse_store(prefix)
        self._settings = settings_of(self._place.scheme, settings)
        self._patience = patience or Patience()

    @property
    def prefix(self) -> str:
        """What every URI of a push lies below."""
        return str(self._place)

    def uri(self, push_id: str) -> str:
        """Return the URI of a push as a source."""
        return str(self._place.below(push_id))

    def check(self, cancelled: Cancelled) -> None:
        """See whether the server keeps what it is given.

        Raises:
            SpoolUnavailable: it may drop anything when its memory is full.
        """
        with self._link(cancelled) as link:
            told = link.run(_told)
        policy = _POLICY.search(told)
        if policy and policy[1].startswith(b"allkeys-"):
            name = policy[1].decode()
            raise SpoolUnavailable(f"the spool's Redis drops keys when its memory is full (maxmemory-policy {name})")
        if not _APPENDS.search(told):
            _log.warning("the spool's Redis writes no append-only file: what is pushed is lost if it loses its memory")

    def write(self, push_id: str, files: Mapping[str, str], cancelled: Cancelled) -> None:
        """Write files, by name and path, and at last the manifest."""
        name = self._place.below(push_id).name
        with self._link(cancelled) as link:
            stored = tuple(_write_file(link, name, push_id, file, path) for file, path in files.items())
            manifest = StoredManifest(push_id, CHUNK_BYTES, stored)
            fields = encode_manifest(manifest)
            for keys in _grouped(chunk_keys(name, manifest)):
                link.ask([[b"PERSIST", key] for key in keys])
                if link.ask([[b"EXISTS", *keys]]) != [len(keys)]:
                    raise SpoolUnavailable("the spool's Redis lost chunks before all were written")
            _publish(link, [b"HSET", manifest_key(name), *(part for field in fields.items() for part in field)])

    def hash(self, push_id: str, names: Sequence[str], cancelled: Cancelled) -> list[bytes]:
        """Read the files back as a source does, and return the SHA-256 of each."""
        with self._link(cancelled) as link:
            source = ChunkedSource(self._place.below(push_id), link.pool)
            return [_hash(source, name, cancelled) for name in names]

    def remove(self, push_id: str, sizes: Mapping[str, int] | None, cancelled: Cancelled) -> None:
        """Remove a push: the manifest first, so that nobody sees a part of it; ``sizes`` of its files, if known."""
        name = self._place.below(push_id).name
        with self._link(cancelled) as link:
            manifest = _manifest(link, self.prefix, name) if sizes is None else _bare(push_id, sizes)
            link.ask([[b"UNLINK", manifest_key(name)]])
            if manifest is not None:
                for keys in _grouped(chunk_keys(name, manifest)):
                    link.ask([[b"UNLINK", *keys]])

    @contextmanager
    def _link(self, cancelled: Cancelled) -> Iterator[_Link]:
        """Give a connection; every failure is one of the spool."""
        try:
            pool = RedisPool(self._place, Access.of(settings_for(self._place.path, self._settings)), self._patience)
            try:
                yield _Link(pool, cancelled)
            finally:
                pool.close()
        except RedisRefusedError as error:
            raise SpoolUnavailable(f"the spool's Redis refuses ({error.code})", code=error.code) from None
        except (LoadCancelled, SpoolFull, SpoolUnavailable):
            raise
        except WarmshelfError as error:
            raise _failure(error) from None


@dataclass(frozen=True)
class _Link:
    """The connections of one piece of work, for as long as somebody wants it."""

    pool: RedisPool
    cancelled: Cancelled

    def run(self, work: Callable[[RedisWire], T]) -> T:
        """Do something with a connection."""
        if self.cancelled():
            raise LoadCancelled("writing to the spool was stopped")
        return self.pool.run(work)

    def ask(self, commands: Sequence[Command]) -> list[bytes | int]:
        """Send commands, and return what is answered to each."""

        def ask(wire: RedisWire) -> list[bytes | int]:
            wire.send(commands)
            return [wire.answer() for _ in commands]

        return self.run(ask)


def _write_file(link: _Link, name: str, etag: str, file: str, path: str) -> StoredFile:
    crcs, size = bytearray(), 0
    with open(path, "rb", buffering=0) as source:
        for first, batch in _batches(source.fileno()):
            commands: list[Command] = []
            for index, chunk in enumerate(batch, first):
                crcs += crc32c.crc32c(chunk).to_bytes(4, "little")
                commands.append([b"SET", chunk_key(name, etag, file, index), chunk, b"EX", b"%d" % ABANDONED_SECONDS])
            link.ask(commands)
            size += sum(map(len, batch))
    return StoredFile(file, size, bytes(crcs))


def _manifest(link: _Link, where: str, name: str) -> StoredManifest | None:
    """Return what the server has of a push, if it is whole."""

    def read(wire: RedisWire) -> list[bytes | None]:
        wire.send([[b"HMGET", manifest_key(name), *FIELDS]])
        return wire.values(len(FIELDS), TABLE_BYTES_MAX + len(FIELDS) * FIELD_BYTES_MAX)

    values = link.run(read)
    return decode_manifest(where, as_fields(values)) if any(value is not None for value in values) else None


def _publish(link: _Link, manifest: Command) -> None:
    """Write the manifest, and have the server bring all up to it to its disk, if it can say when that is done.

    Both on one connection: a server waits for what came on the same one, and on another for nothing.
    """

    def publish(wire: RedisWire) -> Reply:
        wire.send([manifest])
        wire.answer()
        return _reply(wire, [b"WAITAOF", b"1", b"0", b"%d" % (SYNC_SECONDS * 1000)])

    answer = link.run(publish)
    if isinstance(answer, list) and answer and answer[0] == 0:
        raise SpoolUnavailable(f"the spool's Redis did not write to its disk within {SYNC_SECONDS:g} s")


def _hash(source: ChunkedSource, name: str, cancelled: Cancelled) -> bytes:
    hasher, step = hashlib.sha256(), BATCH_COUNT * CHUNK_BYTES
    size = source.files().get(name, 0)
    for start in range(0, size, step):
        if cancelled():
            raise LoadCancelled("reading the spool was stopped")
        hasher.update(source.read(name, start, min(step, size - start)))
    return hasher.digest()


def _bare(etag: str, sizes: Mapping[str, int]) -> StoredManifest:
    """Return a manifest that knows the keys, and no CRC."""
    return StoredManifest(etag, CHUNK_BYTES, tuple(StoredFile(name, size, b"") for name, size in sizes.items()))


def _batches(fd: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yield a file's chunks, some at a time, with the number of the first."""
    size, step = os.fstat(fd).st_size, BATCH_COUNT * CHUNK_BYTES
    for start in range(0, size, step):
        count = chunk_count(min(step, size - start), CHUNK_BYTES)
        yield start // CHUNK_BYTES, [os.pread(fd, CHUNK_BYTES, start + i * CHUNK_BYTES) for i in range(count)]


def _grouped(keys: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for first in range(0, len(keys), KEYS_COUNT):
        yield keys[first : first + KEYS_COUNT]


def _told(wire: RedisWire) -> bytes:
    """Return what the server says of its memory and its disk; nothing where it does not tell."""
    answers = [_reply(wire, [b"INFO", section]) for section in (b"memory", b"persistence")]
    return b"\n".join(answer for answer in answers if isinstance(answer, bytes))


def _reply(wire: RedisWire, command: Command) -> Reply:
    wire.send([command])
    return wire.reply(INFO_BYTES_MAX)


def _failure(error: WarmshelfError) -> WarmshelfError:
    """Return an error of a source as one of the spool."""
    code = str(error.details.get("code", ""))
    if code == "OOM":
        return SpoolFull("the spool's Redis has no memory left", code=code)
    if code in ("MISCONF", "READONLY"):
        return SpoolUnavailable(f"the spool's Redis takes no writes now ({code})", code=code)
    return SpoolUnavailable(f"the spool cannot be reached: {error.message}", code=code)
