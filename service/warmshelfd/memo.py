"""Remembers inspections, so that equal headers are parsed once.

An inspection depends on nothing but the files' names and sizes and the bytes it
reads of them. So a remembered one holds exactly if the same reads give the same
bytes again. That is so for an artifact that was evicted and is loaded again, and
for adapters that were trained by one recipe, whose headers are equal.

A source that tells without a further question that it looks as it did then need not
even be asked for those bytes: it is given them.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from warmshelf._wire import layout_to_proto
from warmshelf.layout import Layout, TensorSpec
from warmshelf.types import ArtifactKind, Inspection
from warmshelfd import stopping
from warmshelfd.domain.extents import SegmentPlan, plan_segment
from warmshelfd.formats.base import Files, FormatLimits, Inspected, Range, expect
from warmshelfd.sources.base import Known, OpenSource

_HASH_SLACK_BYTES = 32
"""What the manifest's encoding adds to one hash."""

_SEEN_MAX = 16384
"""Sources whose looks are remembered; each takes some 300 bytes."""

_RECORD_BYTES, _TENSOR_BYTES = 2 << 10, 480
"""What the objects of a record take, and of each of its tensors, beside the bytes read and the encoded layout: a little
more than was measured."""

_SHARE_MAX = 2
"""The largest record that is remembered takes one part of so many: one large model must not push out all adapters."""

_TABLE_STEP_COUNT = 4096
"""Tensors whose layout is encoded between two looks at whether anybody still wants it; some 20 ms."""

_Listing = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """An inspection, and what follows from it alone.

    ``tensor_table`` is the encoded layout without its segment: the rest can be put before it.
    ``hashes_bytes`` bounds the format's slow hashes in a manifest.
    """

    inspected: Inspected
    inspection: Inspection
    plan: SegmentPlan
    tensor_table: bytes
    hashes_bytes: int


@dataclass(frozen=True, slots=True)
class _Record:
    number: int
    reads: tuple[Known, ...]
    prepared: Prepared
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Seen:
    """Which record a source had, by its number: this keeps none alive; and how the source looked."""

    listing: _Listing
    number: int
    fingerprint: str


class InspectionMemo:
    """The latest inspections, by the listing of their files. May be used by several threads."""

    def __init__(self, inspect: Callable[[Files, FormatLimits], Inspected], *, bytes_max: int) -> None:
        """``bytes_max`` bounds the memory of what is remembered: the bytes read, and what they meant."""
        self._inspect = inspect
        self._bytes_max = bytes_max
        self._lock = threading.Lock()  # guards all below; the last used come last
        self._records: OrderedDict[_Listing, _Record] = OrderedDict()
        self._seen: OrderedDict[str, _Seen] = OrderedDict()  # by URI
        self._numbers = itertools.count()
        self._size_bytes = 0

    def inspect(self, files: Files, limits: FormatLimits) -> Prepared:
        """Return what the files hold; errors as ``Format.inspect``."""
        listing = _listing(files)
        with self._lock:
            known = self._records.get(listing)
            if known is not None:
                self._records.move_to_end(listing)
        if known is not None:
            expect(files, ((name, at, len(data)) for name, at, data in known.reads))
        if known is not None and all(files.read(name, at, len(data)) == data for name, at, data in known.reads):
            return known.prepared
        recorder = _Recorder(files)
        prepared = prepare(self._inspect(recorder, limits))
        size_bytes = recorder.size_bytes + _size_bytes(prepared)
        self._keep(listing, _Record(next(self._numbers), tuple(recorder.reads), prepared, size_bytes))
        return prepared

    def recall(self, source: OpenSource) -> bool:
        """Give a source what was read of it before, if it looks as it did then; say whether it does."""
        with self._lock:
            seen = self._seen.get(source.uri)
            record = self._records.get(seen.listing) if seen else None
        if seen is None or record is None or record.number != seen.number:
            return False
        if source.as_opened(record.prepared.inspected.all_names) != seen.fingerprint:
            return False
        source.hold(record.reads)
        return True

    def note(self, source: OpenSource, prepared: Prepared, fingerprint: str) -> None:
        """Remember that a source that looks so was inspected with this result."""
        if source.as_opened(prepared.inspected.all_names) != fingerprint:
            return
        listing = _listing(source)
        with self._lock:
            record = self._records.get(listing)
            if record is None or record.prepared is not prepared:  # too large, or others of this listing came since
                return
            self._seen[source.uri] = _Seen(listing, record.number, fingerprint)
            self._seen.move_to_end(source.uri)
            if len(self._seen) > _SEEN_MAX:
                self._seen.popitem(last=False)

    def _keep(self, listing: _Listing, record: _Record) -> None:
        with self._lock:
            self._forget(listing)
            if record.size_bytes > self._bytes_max // _SHARE_MAX:
                return
            self._records[listing] = record
            self._size_bytes += record.size_bytes
            while self._size_bytes > self._bytes_max:
                self._forget(next(iter(self._records)))

    def _forget(self, listing: _Listing) -> None:
        record = self._records.pop(listing, None)
        if record is not None:
            self._size_bytes -= record.size_bytes


def _listing(files: Files | OpenSource) -> _Listing:
    return tuple(sorted(files.files().items()))


class _Recorder:
    """Files that note what is read of them."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.reads: list[Known] = []
        self.size_bytes = 0

    def files(self) -> Mapping[str, int]:
        return self._files.files()

    def read(self, name: str, offset: int, size: int) -> bytes:
        data = self._files.read(name, offset, size)
        self.reads.append((name, offset, data))
        self.size_bytes += size
        return data

    def expect(self, ranges: Iterable[Range]) -> None:
        expect(self._files, ranges)


def prepare(inspected: Inspected) -> Prepared:
    """Return an inspection with what follows from it."""
    entries = inspected.entries
    ranges = {(e.file_index, e.offset_bytes, e.size_bytes) for e in entries}
    inspection = Inspection(
        format_name=inspected.format_name,
        file_names=inspected.file_names,
        tensor_count=len(entries),
        tensor_bytes=sum(size for _, _, size in ranges),
        adapter=inspected.adapter,
    )
    step_bytes = inspected.encryption.box_bytes if inspected.encryption else 0
    stopping.check()
    plan = plan_segment(entries, packed=inspected.kind is ArtifactKind.ADAPTER, step_bytes=step_bytes)
    return Prepared(inspected, inspection, plan, b"".join(_table(plan.tensors)), _hashes_bytes(inspected))


def _size_bytes(prepared: Prepared) -> int:
    """Return about what an inspection takes in memory."""
    return len(prepared.tensor_table) + _RECORD_BYTES + _TENSOR_BYTES * len(prepared.plan.tensors)


def _table(tensors: tuple[TensorSpec, ...]) -> Iterator[bytes]:
    """Yield the encoded layout in parts: joined messages are one message with the fields of all."""
    for start in range(0, len(tensors), _TABLE_STEP_COUNT):
        stopping.check()
        part = tensors[start : start + _TABLE_STEP_COUNT]
        yield layout_to_proto(Layout(0, (), part)).SerializeToString()


def _hashes_bytes(inspected: Inspected) -> int:
    """Return what the format's slow hashes take in a manifest, if they are to be compared later."""
    if inspected.kind is ArtifactKind.ADAPTER:
        return 0
    return sum(
        len(check.name.encode()) + len(check.prefix) + len(check.sha256) + _HASH_SLACK_BYTES
        for check in inspected.checks
    )
