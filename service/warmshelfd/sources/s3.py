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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from warmshelf.errors import (
    InvalidSpec,
    SourceChangedDuringLoad,
    SourceNotAllowed,
    SourceNotFound,
    SourceTruncated,
    WarmshelfError,
)
from warmshelfd.sources.ahead import ReadAhead
from warmshelfd.sources.base import OpenSource, Range, SourceOpener
from warmshelfd.sources.limits import GAP_BYTES, RemoteLimits
from warmshelfd.sources.s3_store import S3Stores, error_of
from warmshelfd.sources.s3_uri import S3Place, parse_s3_uri
from warmshelfd.sources.settings import SourceSettings, is_below

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import S3Store

ENTRIES_MAX = 65536
"""Most keys below a prefix, also those of directories in it: with more it holds no model but somebody's bucket."""

HEAD_BYTES = 288 << 10
"""Read of an object when it is opened: with its size comes the header of most files."""

_PAGE_KEYS = 1000
_PIECE_BYTES = 256 << 10
"""How much of an answer is copied at a time: it is still in the processor's cache."""


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
        self, allowed: Iterable[str], settings: Sequence[SourceSettings] = (), limits: RemoteLimits | None = None
    ) -> None:
        """Allow each of these ``s3://`` URIs, and everything below it in whole parts.

        Raises:
            InvalidSpec: one of them is none.
        """
        self._allowed = tuple(parse_s3_uri(prefix).uri for prefix in allowed)
        self._limits = limits or RemoteLimits()
        self._stores = S3Stores(settings, self._limits)

    def canonical(self, uri: str) -> str:
        """Return the URI without a slash at its end."""
        return parse_s3_uri(uri).uri

    def open(self, uri: str, revision: str = "") -> OpenSource:
        """Look at an object, or list a directory."""
        place = parse_s3_uri(uri)
        if not any(is_below(place.uri, prefix) for prefix in self._allowed):
            raise SourceNotAllowed(f"{place.uri} is outside the allowed prefixes", uri=place.uri)
        if revision:
            raise InvalidSpec(f"{place.uri}: objects are named by their keys alone", revision=revision)
        return S3Source(self._stores.store(place), place, self._limits.reads_at_once)


class S3Source(OpenSource):
    """The objects that one URI names, as they were when it was opened."""

    def __init__(self, store: S3Store, place: S3Place, reads_at_once: int) -> None:
        """Look at what the URI names; the errors are those of ``SourceOpener.open``."""
        self.uri = place.uri
        self.gap_bytes = GAP_BYTES
        self.reads_at_once = reads_at_once
        self._store = store
        self._place = place
        self._ahead = ReadAhead(self._fetch)
        self._look, self._objects = self._find()  # by name; not changed after this
        self._is_fresh = True  # until the first fingerprint
        self._sizes = MappingProxyType({name: found.size_bytes for name, found in self._objects.items()})

    def files(self) -> Mapping[str, int]:
        """Return the sizes at opening."""
        return self._sizes

    def expect(self, ranges: Iterable[Range]) -> None:
        """Read the ranges at once, each cut to its object."""
        sizes = self._sizes
        self._ahead.expect((name, at, min(size, sizes[name] - at)) for name, at, size in ranges if at < sizes[name])

    def read_into(self, name: str, offset: int, view: memoryview) -> None:
        """Read, on condition that the object is still what it was at opening."""
        found = self._object(name)
        if offset + len(view) > found.size_bytes:
            raise _too_short(self._uri(found), found.size_bytes, offset + len(view))
        if not view.nbytes or self._ahead.copy_to(name, offset, view):
            return
        with self._said(found.key):
            self._read(found, offset, view)

    def fingerprint(self, names: Sequence[str]) -> str:
        """Return a digest of how the named objects look now.

        The first time that is how they looked at opening: all that was read until then was read on that
        condition, and asking again costs a round trip of each registration and load.
        """
        now = self._objects if self._is_fresh else self._look()
        self._is_fresh = False
        digest = hashlib.sha256()
        for name in sorted(names):
            if name not in now:
                raise SourceNotFound(f"{self.uri} has no object {name!r} any more", uri=self.uri, file=name)
            found = now[name]
            text = f"{name}\0{found.size_bytes} {found.etag} {found.version} {found.modified}\0"
            digest.update(text.encode())
        return f"s3:{digest.hexdigest()}"

    def close(self) -> None:
        """Forget what was read ahead; the connections are kept for the next source."""
        self._ahead.clear()

    # --- what is there ----------------------------------------------------------

    def _find(self) -> tuple[Callable[[], Mapping[str, S3Object]], Mapping[str, S3Object]]:
        """Return the way to look that finds something, and what it finds."""
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
                return again, found
        raise refused or SourceNotFound(f"{self.uri}: no object has this key, and none is right below", uri=self.uri)

    def _list(self) -> Mapping[str, S3Object]:
        """Return the objects right below the prefix."""
        import obstore  # noqa: PLC0415 - as in s3_store

        found: dict[str, S3Object] = {}
        start = f"{self._place.key}/" if self._place.key else ""
        with self._said(self._place.key):
            pages = obstore.list(self._store, self._place.key or None, chunk_size=_PAGE_KEYS)
            for meta in self._counted(pages):
                name = meta["path"].removeprefix(start)
                if meta["path"].startswith(start) and "/" not in name and not _is_marker(name, meta["size"]):
                    found[name] = _object_of(meta)
        return found

    def _counted(self, pages: Iterable[Sequence[ObjectMeta]]) -> Iterator[ObjectMeta]:
        count = 0
        for page in pages:
            count += len(page)
            if count > ENTRIES_MAX:
                raise InvalidSpec(f"{self.uri} has more than {ENTRIES_MAX} keys below it", entry_count=count)
            yield from page

    def _open_object(self) -> Mapping[str, S3Object]:
        """Return the object with the key, if there is one, and keep its beginning."""
        import obstore  # noqa: PLC0415

        try:
            with self._said(self._place.key):
                result = obstore.get(self._store, self._place.key, options={"range": (0, HEAD_BYTES)})
                head = bytes(result.bytes())
        except SourceNotFound as error:
            if "code" in error.details:  # not the object is missing but the bucket
                raise
            return {}
        except SourceTruncated:  # it has no first byte
            return self._head()
        self._ahead.hold(self._name, 0, head)
        return {self._name: _object_of(result.meta)}

    def _head(self) -> Mapping[str, S3Object]:
        import obstore  # noqa: PLC0415

        with self._said(self._place.key):
            return {self._name: _object_of(obstore.head(self._store, self._place.key))}

    @property
    def _name(self) -> str:
        return self._place.key.rpartition("/")[2]

    # --- its bytes ----------------------------------------------------------------

    def _fetch(self, name: str, offset: int, size: int) -> bytes:
        """Read a range ahead."""
        found, buffer = self._object(name), bytearray(size)
        with self._said(found.key):
            self._read(found, offset, memoryview(buffer))
        return bytes(buffer)

    def _read(self, found: S3Object, offset: int, view: memoryview) -> None:
        import obstore  # noqa: PLC0415

        options: dict[str, Any] = {"range": (offset, offset + len(view))}
        if found.etag:
            options["if_match"] = found.etag
        result = obstore.get(self._store, found.key, options=options)  # type: ignore[arg-type]
        self._check_unchanged(found, result.meta)
        done = 0
        for piece in result.stream(min_chunk_size=_PIECE_BYTES):
            with memoryview(piece) as data:
                end = done + len(data)
                if end > len(view):
                    raise SourceChangedDuringLoad(f"{self._uri(found)}: more came than was asked for", uri=self.uri)
                view[done:end] = data
                done = end
        if done < len(view):
            raise _too_short(self._uri(found), offset + done, offset + len(view))

    def _check_unchanged(self, found: S3Object, meta: ObjectMeta) -> None:
        """Hold an answer against what was opened, for servers that ignore the condition."""
        if meta["size"] != found.size_bytes or _plain(meta["e_tag"]) != _plain(found.etag):
            uri = self._uri(found)
            raise SourceChangedDuringLoad(f"{uri} is not what it was when it was opened", uri=uri)

    def _object(self, name: str) -> S3Object:
        if name not in self._objects:
            raise SourceNotFound(f"{self.uri} has no object {name!r}", uri=self.uri, file=name)
        return self._objects[name]

    def _uri(self, found: S3Object) -> str:
        return S3Place(self._place.bucket, found.key).uri

    @contextmanager
    def _said(self, key: str) -> Iterator[None]:
        """Give every failure of obstore in our words, and none in its own."""
        try:
            yield
        except WarmshelfError:
            raise
        except Exception as error:  # noqa: BLE001 - all that it raises
            raise error_of(error, S3Place(self._place.bucket, key).uri) from None


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
