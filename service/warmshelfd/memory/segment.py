"""Segments: one being written, and one that is sealed.

A segment's file is filled, sealed and published once, and never changed again.
Knows the segment's own format; knows neither budgets nor which artifacts there are.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import crc32c
from google.protobuf.message import DecodeError

from warmshelf.errors import ArenaFull, Internal, LoadCancelled, SegmentCorrupt, WarmshelfError
from warmshelf.layout import Layout, SegmentSpec, TensorSpec, check_tensors, round_up
from warmshelf.segment import BLOCK_BYTES, HEADER_BYTES, Section, SegmentHeader, block_count, pack_header, parse_header
from warmshelf.v1 import artifact_pb2, manifest_pb2
from warmshelfd import failpoints
from warmshelfd.domain.extents import SegmentPlan
from warmshelfd.memory.books import Reservation
from warmshelfd.memory.filling import Filling, Hot, Read
from warmshelfd.memory.mapped_file import MappedFile
from warmshelfd.memory.pages import populate
from warmshelfd.memory.parts import PART_BYTES, blocks_in, ranges, take_in_turn
from warmshelfd.memory.unnamed import UnnamedFiles

SEALED_MODE = 0o440
"""Nobody writes; workers of other users read if they share the group."""

_SECTION_ALIGN_BYTES = 64
_CRC_BYTES = 4
_OUT_OF_ROOM = frozenset({errno.ENOSPC, errno.ENOMEM, errno.EDQUOT})
_NO_SEGMENT = frozenset({errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EISDIR, errno.EACCES})


def loading_name(segment_id: str) -> str:
    """Return the name of a segment's file until it is published."""
    return f".{segment_id}.loading"


@dataclass(frozen=True, slots=True)
class Outline:
    """Where the sections of a segment will lie, before its manifest is known."""

    data: Section
    layout: Section
    blocks: Section
    manifest_offset: int
    manifest_bytes_max: int
    size_bytes: int


def outline(plan: SegmentPlan, layout_bytes: int, manifest_bytes_max: int, page_size_bytes: int) -> Outline:
    """Place the sections of a segment one after another and round its size up to whole pages."""
    data = Section(HEADER_BYTES, max(plan.data_end - HEADER_BYTES, 0))
    layout = Section(round_up(data.end, _SECTION_ALIGN_BYTES), layout_bytes)
    blocks = Section(round_up(layout.end, _SECTION_ALIGN_BYTES), _CRC_BYTES * block_count(data))
    manifest_offset = round_up(blocks.end, _SECTION_ALIGN_BYTES)
    size = round_up(manifest_offset + manifest_bytes_max, page_size_bytes)
    return Outline(data, layout, blocks, manifest_offset, manifest_bytes_max, size)


class Segment:
    """A sealed segment.

    Its bytes are read from the file and never through the mapping, which is there to lock
    its pages: whoever runs as our own user can cut the file, and reading a mapping behind
    the file's end is a signal that ends the daemon, where reading the file is an error.
    """

    def __init__(self, file: MappedFile, header: SegmentHeader, *, checked: bool) -> None:
        self._file: MappedFile | None = file  # None once the arena has taken it back
        self.header = header
        self.pinned = False
        self.checked = checked

    @classmethod
    def open(cls, directory_fd: int, name: str, segment_id: str, *, checked: bool) -> Segment:
        """Open and map a segment and check everything but its blocks and its tensor table.

        Raises:
            SegmentCorrupt: it is not the sealed segment of this ID.
            FormatTooNew: a newer release wrote it.
        """
        try:
            file = MappedFile.open(directory_fd, name)
        except OSError as error:
            raise _not_opened(error, name) from error
        try:
            file.check_sealed(name)
            return cls(file, _read_header(file, segment_id), checked=checked)
        except BaseException:
            file.close()
            raise

    @property
    def segment_id(self) -> str:
        """The segment's random name."""
        return self.header.segment_id

    @property
    def size_bytes(self) -> int:
        """Length of the whole file."""
        return self.header.size_bytes

    @property
    def file(self) -> MappedFile:
        """The open file. For the arena.

        Raises:
            ValueError: the segment is closed.
        """
        if self._file is None:
            raise ValueError(f"segment {self.segment_id} is closed")
        return self._file

    def read(self, start: int, end: int) -> bytes:
        """Return a range of the file; offsets in the layout count from its start.

        Raises:
            SegmentCorrupt: somebody has cut the file.
            ValueError: the segment is closed.
        """
        return self.file.read(start, end)

    @property
    def layout_bytes(self) -> bytes:
        """The encoded layout, as it was given to the writer."""
        return self._section(self.header.layout)

    def block_crc(self, index: int) -> int:
        """Return the stored CRC of a block."""
        start = self.header.blocks.offset + _CRC_BYTES * index
        return int.from_bytes(self.read(start, start + _CRC_BYTES), "little")

    @property
    def layout(self) -> Layout:
        """The layout, decoded and checked anew at each use.

        It is not kept: as objects, the tables of ten thousand adapters would take gigabytes.

        Raises:
            SegmentCorrupt: it is not a layout of this segment.
        """
        return _decode_layout(self.layout_bytes, self.header)

    @property
    def manifest(self) -> manifest_pb2.Manifest:
        """The manifest, decoded anew at each use: it carries whole files.

        Raises:
            SegmentCorrupt: it is not a manifest.
        """
        try:
            return manifest_pb2.Manifest.FromString(self._section(self.header.manifest))
        except DecodeError as error:
            raise SegmentCorrupt("the segment's manifest cannot be decoded") from error

    def check_blocks(self, threads: int, cancelled: Callable[[], bool]) -> None:
        """Compute the CRC of every block and compare it with the stored one; then it is checked.

        Raises:
            SegmentCorrupt: a block has another, or the file is cut; names it.
            LoadCancelled: ``cancelled`` said so.
        """
        data, file = self.header.data, self.file
        crcs = memoryview(self._section(self.header.blocks)).cast("I")

        def check(part: tuple[int, int], failed: Callable[[], bool]) -> None:
            for index, start, end in blocks_in(data, *part):
                if failed():
                    return
                if cancelled():
                    raise LoadCancelled(f"checking segment {self.segment_id} was stopped")
                _check_block(index, start, crcs[index], crc32c.crc32c(file.read(start, end)))

        take_in_turn(list(ranges(0, data.end, PART_BYTES)), check, threads)
        self.checked = True

    def close(self) -> None:
        """Drop the mapping. Idempotent."""
        if self._file is not None:
            self.detach().close()

    def detach(self) -> MappedFile:
        """Give up the open file, which closes the segment. For the arena."""
        file, self._file = self.file, None
        return file

    def _section(self, section: Section) -> bytes:
        """Return a section, which must have the CRC that the header had when it was read."""
        data = self.read(section.offset, section.end)
        if crc32c.crc32c(data) != section.crc:
            raise SegmentCorrupt(f"a section of segment {self.segment_id} has another CRC than stored")
        return data


def _not_opened(error: OSError, name: str) -> WarmshelfError:
    text = f"file {name!r} cannot be opened as a segment: {error.strerror}"
    return SegmentCorrupt(text, segment=name) if error.errno in _NO_SEGMENT else Internal(text, segment=name)


def _read_header(file: MappedFile, segment_id: str) -> SegmentHeader:
    if file.size_bytes < HEADER_BYTES:
        raise SegmentCorrupt(f"segment {segment_id} has {file.size_bytes} bytes, less than a header")
    header = parse_header(file.read(0, HEADER_BYTES), file.size_bytes)
    if header.segment_id != segment_id:
        raise SegmentCorrupt(f"the file of segment {segment_id} holds segment {header.segment_id}")
    if header.size_bytes != file.size_bytes:
        text = f"segment {segment_id} has {file.size_bytes} bytes, its header says {header.size_bytes}"
        raise SegmentCorrupt(text, size_bytes=file.size_bytes, expected_bytes=header.size_bytes)
    for what, section in (("layout", header.layout), ("blocks", header.blocks), ("manifest", header.manifest)):
        if file.crc(section.offset, section.end) != section.crc:
            raise SegmentCorrupt(f"the {what} section of segment {segment_id} has another CRC than stored")
    return header


def _decode_layout(raw: bytes, header: SegmentHeader) -> Layout:
    try:
        message = artifact_pb2.Layout.FromString(raw)
    except DecodeError as error:
        raise SegmentCorrupt(f"the layout of segment {header.segment_id} cannot be decoded") from error
    if [s.segment_id for s in message.segments] != [header.segment_id] or any(t.segment_index for t in message.tensors):
        raise SegmentCorrupt(f"the layout of segment {header.segment_id} is that of other segments")
    tensors = tuple(TensorSpec(t.name, t.dtype, tuple(t.shape), t.offset_bytes, t.size_bytes) for t in message.tensors)
    check_tensors(tensors, header.data.offset, header.data.end)
    # Its own sizes are known only after the layout was encoded, so they stand in the header.
    return Layout(0, (SegmentSpec(0, header.segment_id, header.size_bytes, header.content_size_bytes),), tensors)


def _check_block(index: int, start: int, stored: int, found: int) -> None:
    if stored != found:
        text = f"block {index} of the segment, at byte {start}, has another CRC than stored"
        raise SegmentCorrupt(text, block_index=index, block_bytes=BLOCK_BYTES)


@dataclass(frozen=True, slots=True)
class Home:
    """What a writer needs of its arena.

    Attributes:
        directory_fd: where the file is.
        pin: locks the pages of a file's mapping, as the arena's policy says; returns whether they are.
        unnamed: takes files that have lost their name.
        has_small_pages: whether a file's pages are better mapped many at a time.
    """

    directory_fd: int
    pin: Callable[[MappedFile], bool]
    unnamed: UnnamedFiles
    has_small_pages: bool


class SegmentWriter:
    """A segment that is being written: ``fill``, ``finish``, ``publish``, or at any time ``abort``."""

    def __init__(
        self,
        home: Home,
        reservation: Reservation,
        file: MappedFile,
        segment_id: str,
        plan: SegmentPlan,
        layout: bytes,
        sections: Outline,
    ) -> None:
        self.segment_id = segment_id
        self.size_bytes = sections.size_bytes
        self._home = home
        self._reservation = reservation
        self._file = file
        self._plan = plan
        self._layout = layout
        self._sections = sections
        self._name = loading_name(segment_id)
        self._crcs = b""
        self._filled = False
        self._ending = threading.Lock()  # guards _ended
        self._ended = False

    @property
    def has_ended(self) -> bool:
        """Whether it is published, or aborted."""
        return self._ended

    @property
    def tensors(self) -> Sequence[TensorSpec]:
        """What the segment holds."""
        return self._plan.tensors

    def read(self, start: int, end: int) -> memoryview:
        """Return a range of what has been filled, read-only; release it before ``finish``."""
        if not self._filled:
            raise Internal(f"segment {self.segment_id} is not filled")
        return self._file.view().toreadonly()[start:end]

    def fill(
        self,
        read: Read,
        *,
        threads: int,
        cancelled: Callable[[], bool],
        progress: Callable[[int], None],
        gap_bytes: int = 0,
        hot: Hot | None = None,
    ) -> None:
        """Bring all data in.

        Args:
            read: fills a view with a file's bytes (file index, offset, view), from several threads at once.
            threads: how many.
            cancelled: asked before every read.
            progress: told the bytes read so far, ever more of them.
            gap_bytes: bytes between tensors that are rather read along, where each read costs a round trip.
            hot: told each range right after it was read, by the thread that read it.

        Raises:
            ArenaFull: the file system did not give what was reserved.
            LoadCancelled: ``cancelled`` said so.
        """
        with self._file.view() as view:
            what = view, self._plan, self._sections.data
            (filling := Filling(*what, self._allocate, read, cancelled, progress, gap_bytes, hot)).run(threads)
        self._crcs = filling.crcs.tobytes()
        self._filled = True

    def finish(self, manifest: bytes) -> None:
        """Write what describes the data, then take away every way to write."""
        if not self._filled or len(manifest) > self._sections.manifest_bytes_max:
            raise Internal(
                f"segment {self.segment_id} cannot be sealed: filled {self._filled}, "
                f"manifest of {len(manifest)} bytes, room for {self._sections.manifest_bytes_max}"
            )
        s = self._sections
        layout, blocks = self._write(s.layout.offset, self._layout), self._write(s.blocks.offset, self._crcs)
        tail = self._write(s.manifest_offset, manifest)
        failpoints.hit("load.described")
        self._write(0, pack_header(SegmentHeader(self.segment_id, s.size_bytes, s.data, layout, blocks, tail)))
        if not self._file.forbid_writing():
            raise Internal(f"segment {self.segment_id} cannot be sealed while a view of it is in use")
        failpoints.hit("load.frozen")
        os.fchmod(self._file.fd, SEALED_MODE)
        failpoints.hit("load.sealed")

    def publish(self) -> Segment:
        """Give the finished segment its name.

        Raises:
            PinningFailed: its pages must be locked and cannot be; nothing is published.
        """
        self._file.check_sealed(self._name)
        segment = Segment(self._file, _read_header(self._file, self.segment_id), checked=True)
        segment.pinned = self._home.pin(self._file)
        failpoints.hit("load.pinned")
        here = self._home.directory_fd
        os.rename(self._name, self.segment_id, src_dir_fd=here, dst_dir_fd=here)
        self._name = self.segment_id
        self._file.note_look()
        failpoints.hit("load.published")
        with self._ending:
            self._ended = True
        self._reservation.become_resident(self.size_bytes)
        return segment

    def abort(self) -> None:
        """Remove the file and give its room back, unless it is published. Idempotent."""
        with self._ending:
            if self._ended:
                return
            self._ended = True
        failpoints.hit("load.aborted")
        with suppress(FileNotFoundError):
            os.unlink(self._name, dir_fd=self._home.directory_fd)
        self._reservation.become_unnamed(self.size_bytes)
        self._home.unnamed.add(self._file)

    def _allocate(self, start: int, size: int) -> None:
        try:
            os.posix_fallocate(self._file.fd, start, size)
        except OSError as error:
            raise room_error(error, self._reservation, size) from error
        self._reservation.allocate(size)
        if self._home.has_small_pages:
            populate(self._file.map, start, size)

    def _write(self, offset: int, data: bytes) -> Section:
        self._file.map[offset : offset + len(data)] = data
        return Section(offset, len(data), crc32c.crc32c(data))


def room_error(error: OSError, reservation: Reservation, size: int) -> ArenaFull | Internal:
    """Return what it means that a file of the arena could not be made or grow."""
    if error.errno in _OUT_OF_ROOM:
        return reservation.not_given(size, f", though they were reserved: {error.strerror}")
    return Internal(f"the arena's file system refused {size} bytes: {error.strerror}", size_bytes=size)
