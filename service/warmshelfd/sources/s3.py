"""S3 and what speaks its protocol as a source: one object, or the objects right below a prefix.

A prefix is meant as a directory: ``s3://bucket/loras/a`` has what is in
``loras/a/`` and nothing of ``loras/ab``. Whether a URI means an object or a directory
its text cannot tell: what looks like a file is looked for as an object first, all else
as a directory, and then the other way.

Every read asks for the object's ETag as it was when the source was opened, so bytes of
two versions never meet.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from warmshelf.errors import (
    InvalidSpec,
    SourceChangedDuringLoad,
    SourceNotAllowed,
    SourceNotFound,
    SourceTruncated,
    WarmshelfError,
)
from warmshelfd.sources.ahead import ReadAhead
from warmshelfd.sources.base import Known, OpenSource, Range, SourceOpener
from warmshelfd.sources.coroutines import LoopThread, Waits
from warmshelfd.sources.limits import GAP_BYTES, TimeLimits
from warmshelfd.sources.s3_store import S3Stores, error_of
from warmshelfd.sources.s3_uri import S3Place, parse_s3_uri
from warmshelfd.sources.settings import SourceSettings, is_below

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import S3Store

T = TypeVar("T")

ENTRIES_MAX = 65536
"""Most keys below a prefix, also those of directories in it: with more it holds no model but somebody's bucket."""

HEAD_BYTES = 288 << 10
"""Read of an object when it is opened: with its size comes the header of most files."""

_PAGE_KEYS = 1000
_PIECE_BYTES = 1 << 20
"""How much of an answer is copied at a time: smaller pieces cost more turns of the loop, larger ones more memory."""


@dataclass(frozen=True, slots=True)
class S3Object:
    """How an object looks. It differs after every write, also of equal bytes."""

    key: str
    size_bytes: int
    etag: str
    version: str
    modified: str


class S3Opener(SourceOpener):
    """Opens objects and directories under the allowed prefixes."""

    scheme = "s3"

    def __init__(
        self,
        allowed: Iterable[str],
        settings: Sequence[SourceSettings] = (),
        limits: TimeLimits | None = None,
        parallel_reads: int = 8,
    ) -> None:
        """Allow each of these ``s3://`` URIs, and everything below it in whole parts.

        Raises:
            InvalidSpec: one of them is none.
        """
        self._allowed = tuple(parse_s3_uri(prefix).uri for prefix in allowed)
        self._stores = S3Stores(settings, limits or TimeLimits())
        self._parallel_reads = parallel_reads
        self._thread = LoopThread()

    def canonical(self, uri: str) -> str:
        """Return the URI without a slash at its end."""
        return parse_s3_uri(uri).uri

    def place(self, uri: str) -> str:
        """Return the bucket, if anything in it is allowed."""
        place = parse_s3_uri(uri)
        return f"s3://{place.bucket}" if self._allows(place) else ""

    def open(self, uri: str, revision: str = "") -> OpenSource:
        """Check that the URI is allowed. Nothing is asked for before the files are."""
        place = parse_s3_uri(uri)
        if not self._allows(place):
            raise SourceNotAllowed(f"{place.uri} is outside the allowed prefixes", uri=place.uri)
        if revision:
            raise InvalidSpec(f"{place.uri}: objects are named by their keys alone", revision=revision)
        return S3Source(self._stores.store(place), place, Waits(self._thread), self._parallel_reads)

    def _allows(self, place: S3Place) -> bool:
        return any(is_below(place.uri, prefix) for prefix in self._allowed)


@dataclass(frozen=True, slots=True)
class _Found:
    """What was there at opening, and how to look again; ``objects`` and ``sizes`` by name."""

    look: Callable[[], Mapping[str, S3Object]]
    objects: Mapping[str, S3Object]
    sizes: Mapping[str, int]


class S3Source(OpenSource):
    """The objects that one URI names, as they were when they were first asked for."""

    gap_bytes = GAP_BYTES

    def __init__(self, store: S3Store, place: S3Place, waits: Waits, parallel_reads: int) -> None:
        self.uri = place.uri
        self.parallel_reads_min = parallel_reads
        self._store = store
        self._place = place
        self._waits = waits
        self._ahead = ReadAhead(self._fetch)
        self._lock = threading.Lock()  # guards _found, and is held while it is looked for
        self._found: _Found | None = None
        self._is_fresh = True  # until the first fingerprint

    def files(self) -> Mapping[str, int]:
        """Return the sizes at opening."""
        return self._opened().sizes

    def expect(self, ranges: Iterable[Range]) -> None:
        """Read the ranges at once, each cut to its object."""
        sizes = self._opened().sizes
        self._ahead.expect((name, at, min(size, sizes[name] - at)) for name, at, size in ranges if at < sizes[name])

    def read_into(self, name: str, offset: int, view: memoryview) -> None:
        """Read, on condition that the object is still what it was at opening."""
        found = self._object(name)
        if offset + len(view) > found.size_bytes:
            raise _too_short(self._uri(found), found.size_bytes, offset + len(view))
        if not view.nbytes or self._ahead.copy_to(name, offset, view):
            return
        self._read(found, offset, view)

    def hold(self, reads: Iterable[Known]) -> None:
        """Keep them as what is read ahead is kept."""
        for read in reads:
            self._ahead.hold(*read)

    def as_opened(self, names: Collection[str]) -> str:
        """Return a digest of what was listed; "" if it lacks a name or an ETag."""
        objects = self._opened().objects
        return self._digest(names, objects) if _all_have_etags(names, objects) else ""

    def fingerprint(self, names: Sequence[str]) -> str:
        """Return a digest of how the named objects looked at opening.

        Every read was on the condition that they still have the ETag of then. Objects without one are looked at again,
        but for the first time: asking costs a round trip of each registration and load.
        """
        opened = self._opened()
        is_sure = self._is_fresh or _all_have_etags(names, opened.objects)
        self._is_fresh = False
        return self._digest(names, opened.objects if is_sure else opened.look())

    def _digest(self, names: Collection[str], now: Mapping[str, S3Object]) -> str:
        digest = hashlib.sha256()
        for name in sorted(names):
            if name not in now:
                raise SourceNotFound(f"{self.uri} has no object {name!r} any more", uri=self.uri, file=name)
            found = now[name]
            text = f"{name}\0{found.size_bytes} {found.etag} {found.version} {found.modified}\0"
            digest.update(text.encode())
        return f"s3:{digest.hexdigest()}"

    def stop(self) -> None:
        """Give up the requests under way."""
        self._waits.stop()

    def close(self) -> None:
        """Forget what was read ahead; the connections are kept for the next source."""
        self._ahead.clear()

    # --- what is there ----------------------------------------------------------

    def _opened(self) -> _Found:
        with self._lock:
            if self._found is None:
                self._found = self._find()
            return self._found

    def _find(self) -> _Found:
        """Return what one way to look finds, or the other."""
        looks = [(self._list, self._list), (self._head, self._open_object)]
        if not self._place.key:
            looks.pop()
        elif self._place.is_file_like:
            looks.reverse()
        refused: SourceNotAllowed | None = None
        for again, first in looks:
            try:
                found = first()
            except SourceNotAllowed as error:  # one may list but not read, or read but not list
                refused = refused or error
                continue
            if found:
                sizes = {name: one.size_bytes for name, one in found.items()}
                return _Found(again, found, MappingProxyType(sizes))
        raise refused or SourceNotFound(f"{self.uri}: no object has this key, and none is right below", uri=self.uri)

    def _list(self) -> Mapping[str, S3Object]:
        """Return the objects right below the prefix."""
        found: dict[str, S3Object] = {}
        start = f"{self._place.key}/" if self._place.key else ""
        for meta in self._call(self._place.key, self._list_all):
            name = meta["path"].removeprefix(start)
            if meta["path"].startswith(start) and "/" not in name and not _is_marker(name, meta["size"]):
                found[name] = _object_of(meta)
        return found

    async def _list_all(self) -> list[ObjectMeta]:
        import obstore  # noqa: PLC0415 - as in s3_store

        found: list[ObjectMeta] = []
        async for page in obstore.list(self._store, self._place.key or None, chunk_size=_PAGE_KEYS):
            found += page
            if len(found) > ENTRIES_MAX:
                raise InvalidSpec(f"{self.uri} has more than {ENTRIES_MAX} keys below it", entry_count=len(found))
        return found

    def _open_object(self) -> Mapping[str, S3Object]:
        """Return the object with the key, if there is one, and keep its beginning."""
        try:
            meta, head = self._call(self._place.key, self._read_head)
        except SourceNotFound as error:
            if "code" in error.details:  # not the object is missing but the bucket
                raise
            return {}
        except SourceTruncated:  # it has no first byte
            return self._head()
        self._ahead.hold(self._name, 0, head)
        return {self._name: _object_of(meta)}

    async def _read_head(self) -> tuple[ObjectMeta, bytes]:
        import obstore  # noqa: PLC0415

        result = await obstore.get_async(self._store, self._place.key, options={"range": (0, HEAD_BYTES)})
        return result.meta, bytes(await result.bytes_async())

    def _head(self) -> Mapping[str, S3Object]:
        import obstore  # noqa: PLC0415

        meta = self._call(self._place.key, lambda: obstore.head_async(self._store, self._place.key))
        return {self._name: _object_of(meta)}

    @property
    def _name(self) -> str:
        return self._place.key.rpartition("/")[2]

    # --- its bytes ----------------------------------------------------------------

    def _fetch(self, name: str, offset: int, size: int) -> bytes:
        """Read a range ahead."""
        buffer = bytearray(size)
        self._read(self._object(name), offset, memoryview(buffer))
        return bytes(buffer)

    def _read(self, found: S3Object, offset: int, view: memoryview) -> None:
        done = self._call(found.key, lambda: self._copy(found, offset, view))
        if done < len(view):
            raise _too_short(self._uri(found), offset + done, offset + len(view))

    async def _copy(self, found: S3Object, offset: int, view: memoryview) -> int:
        """Copy a range to the view as it comes; return how much came."""
        import obstore  # noqa: PLC0415

        options: dict[str, Any] = {"range": (offset, offset + len(view))}
        if found.etag:
            options["if_match"] = found.etag
        result = await obstore.get_async(self._store, found.key, options=options)  # type: ignore[arg-type]
        self._check_unchanged(found, result.meta)
        done = 0
        async for piece in result.stream(min_chunk_size=_PIECE_BYTES):
            with memoryview(piece) as data:
                end = done + len(data)
                if end > len(view):
                    raise SourceChangedDuringLoad(f"{self._uri(found)}: more came than was asked for", uri=self.uri)
                view[done:end] = data
                done = end
        return done

    def _check_unchanged(self, found: S3Object, meta: ObjectMeta) -> None:
        """Hold an answer against what was opened, for servers that ignore the condition."""
        if meta["size"] != found.size_bytes or _plain(meta["e_tag"]) != _plain(found.etag):
            uri = self._uri(found)
            raise SourceChangedDuringLoad(f"{uri} is not what it was when it was opened", uri=uri)

    def _object(self, name: str) -> S3Object:
        objects = self._opened().objects
        if name not in objects:
            raise SourceNotFound(f"{self.uri} has no object {name!r}", uri=self.uri, file=name)
        return objects[name]

    def _uri(self, found: S3Object) -> str:
        return S3Place(self._place.bucket, found.key).uri

    def _call(self, key: str, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait for obstore; give every failure of it in our words, and none in its own."""
        try:
            return self._waits.call(make)
        except WarmshelfError:
            raise
        except Exception as error:  # noqa: BLE001 - all that it raises
            raise error_of(error, S3Place(self._place.bucket, key).uri) from None


def _all_have_etags(names: Collection[str], objects: Mapping[str, S3Object]) -> bool:
    """Say whether each has one, and none is weak: such a one may stay where bytes change."""
    return all(name in objects and objects[name].etag.startswith('"') for name in names)


def _is_marker(name: str, size_bytes: int) -> bool:
    """Say whether an entry stands for a directory: an object without bytes, and without a suffix as files have."""
    return not name or (size_bytes == 0 and "." not in name)


def _object_of(meta: ObjectMeta) -> S3Object:
    return S3Object(
        meta["path"],
        meta["size"],
        meta["e_tag"] or "",
        meta["version"] or "",
        meta["last_modified"].isoformat(timespec="seconds"),
    )


def _plain(etag: str | None) -> str:
    """Return an ETag without what servers write differently in listings and answers."""
    return (etag or "").removeprefix("W/").strip('"')


def _too_short(uri: str, size: int, expected: int) -> SourceTruncated:
    return SourceTruncated(
        f"{uri} ends at byte {size}, {expected} are needed", uri=uri, size_bytes=size, expected_bytes=expected
    )
