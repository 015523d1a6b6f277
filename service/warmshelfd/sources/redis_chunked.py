"""A directory of files that lies in Redis in our own layout, which ``warmshelf.redis_layout`` describes.

Every chunk that is read, also in part, is compared with its CRC32C. Chunks that lie
wholly in what is asked for are read straight to where they belong; others are read
whole and kept for a moment, since what is asked for next begins where this ended.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import crc32c

from warmshelf.errors import DigestMismatch
from warmshelf.redis_layout import (
    FIELD_BYTES_MAX,
    FIELDS,
    TABLE_BYTES_MAX,
    StoredFile,
    StoredManifest,
    as_fields,
    chunk_key,
    decode_manifest,
    manifest_key,
)
from warmshelf.redis_uri import RedisUri
from warmshelfd.redis_wire import RedisRefusedError, RedisTooLongError, RedisWire
from warmshelfd.sources.ahead import ReadAhead
from warmshelfd.sources.base import Known
from warmshelfd.sources.redis_pool import RedisPool
from warmshelfd.sources.redis_ranges import Want
from warmshelfd.sources.redis_stored import StoredSource

KEPT_BYTES = 16 << 20
"""Chunks kept of one open source: all of an adapter, or two for each thread that reads a base."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One chunk of a file, of which ``first`` to ``last`` are asked for."""

    file: StoredFile
    index: int
    size_bytes: int
    first: int
    last: int

    @property
    def is_whole(self) -> bool:
        return self.last - self.first == self.size_bytes


class ChunkedSource(StoredSource):
    """The files of one directory."""

    reads_one_version = True  # the keys of chunks have the manifest's ETag in them

    def __init__(self, uri: RedisUri, pool: RedisPool) -> None:
        """Read the manifest; the errors are those of ``SourceOpener.open``."""
        super().__init__(uri, pool)
        values = self._values()
        self._manifest: StoredManifest = decode_manifest(self.uri, as_fields(values))
        self._look = _digest(values)
        self._files = {file.name: file for file in self._manifest.files}
        self._sizes = MappingProxyType({file.name: file.size_bytes for file in self._manifest.files})
        self._lock = threading.Lock()  # guards the one below: the last chunks that were read in part, by file and index
        self._kept: OrderedDict[tuple[str, int], memoryview] = OrderedDict()
        self._ahead = ReadAhead(self.read)

    def hold(self, reads: Iterable[Known]) -> None:
        """Keep them: a header is read as a whole chunk otherwise, and before all other chunks."""
        for read in reads:
            self._ahead.hold(*read)

    def read_into(self, name: str, offset: int, view: memoryview) -> None:
        """Read the chunks that the range touches, and compare their CRCs."""
        self._check_range(name, offset, len(view))
        if self._ahead.copy_to(name, offset, view) or self._copy_kept(name, offset, view):
            return
        targets: list[tuple[_Chunk, memoryview]] = []
        try:
            for chunk in self._chunks(self._files[name], offset, offset + len(view)):
                at = chunk.index * self._manifest.chunk_bytes + chunk.first - offset
                targets.append((chunk, view[at : at + chunk.last - chunk.first]))
            self._read_chunks(targets)
        finally:  # an error keeps this frame, and no view may outlive the call
            for _, target in targets:
                target.release()

    def _look_now(self) -> str:
        return _digest(self._values())

    # --- chunks -------------------------------------------------------------

    def _copy_kept(self, name: str, offset: int, view: memoryview) -> bool:
        """Fill the view from one chunk that is kept, if it lies there: as most tensors of an adapter do."""
        index, first = divmod(offset, self._manifest.chunk_bytes)
        with self._lock:
            kept = self._kept.get((name, index))
        if kept is None or first + len(view) > len(kept):
            return False
        view[:] = kept[first : first + len(view)]
        return True

    def _read_chunks(self, targets: Sequence[tuple[_Chunk, memoryview]]) -> None:
        read: list[tuple[_Chunk, memoryview]] = []  # and where to
        for chunk, target in targets:
            kept = self._find(chunk)
            if kept is not None:
                target[:] = kept[chunk.first : chunk.last]
            else:
                read.append((chunk, target if chunk.is_whole else memoryview(bytearray(chunk.size_bytes))))
        self._read([Want(self._key(chunk), 0, whole) for chunk, whole in read])
        wholes = {chunk.index: whole for chunk, whole in read}
        for chunk, target in targets:
            whole = wholes.get(chunk.index)
            if whole is None:
                continue
            self._check(chunk, whole)
            if whole is not target:
                target[:] = whole[chunk.first : chunk.last]
                self._keep(chunk, whole)

    def _chunks(self, file: StoredFile, start: int, end: int) -> list[_Chunk]:
        size = self._manifest.chunk_bytes
        return [
            _Chunk(
                file,
                index,
                min(size, file.size_bytes - index * size),
                max(start - index * size, 0),
                min(end - index * size, size),
            )
            for index in range(start // size, -(-end // size) if end > start else 0)
        ]

    def _key(self, chunk: _Chunk) -> bytes:
        return chunk_key(self._name, self._manifest.etag, chunk.file.name, chunk.index)

    def _check(self, chunk: _Chunk, data: memoryview) -> None:
        expected, actual = chunk.file.crc(chunk.index), crc32c.crc32c(data)
        if actual != expected:
            raise DigestMismatch(
                f"{self.uri}: chunk {chunk.index} of {chunk.file.name} has CRC32C {actual:08x}, "
                f"its manifest says {expected:08x}",
                uri=self.uri,
                file=chunk.file.name,
                chunk_index=chunk.index,
                expected=f"{expected:08x}",
                actual=f"{actual:08x}",
            )

    def _find(self, chunk: _Chunk) -> memoryview | None:
        with self._lock:
            return self._kept.get((chunk.file.name, chunk.index))

    def _keep(self, chunk: _Chunk, whole: memoryview) -> None:
        with self._lock:
            self._kept[chunk.file.name, chunk.index] = whole
            while len(self._kept) > KEPT_BYTES // self._manifest.chunk_bytes:
                self._kept.popitem(last=False)

    # --- the manifest -------------------------------------------------------

    def _values(self) -> Sequence[bytes | None]:
        """Return the manifest's fields as they are now."""
        try:
            values = self._pool.run(lambda wire: _read_manifest(wire, self._name))
        except (RedisRefusedError, RedisTooLongError) as error:
            raise self._unfit(error) from None
        if not any(value is not None for value in values):
            raise self._gone()
        return values


def _read_manifest(wire: RedisWire, name: str) -> list[bytes | None]:
    wire.send([[b"HMGET", manifest_key(name), *FIELDS]])
    return wire.values(len(FIELDS), TABLE_BYTES_MAX + len(FIELDS) * FIELD_BYTES_MAX)


def _digest(values: Sequence[bytes | None]) -> str:
    digest = hashlib.sha256()
    for value in values:
        digest.update(b"-" if value is None else b"%d:%b" % (len(value), value))
    return digest.hexdigest()
