"""Inspection: what a source holds, before a byte of its tensors is read.

Opens sources by their URI's scheme, lets a format read their headers, and says
how a segment of them will look. Blocking; called in threads.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from warmshelf._wire import layout_to_proto
from warmshelf.errors import (
    InvalidSpec,
    MalformedArtifact,
    SourceNotAllowed,
    SourceNotFound,
    SourceTruncated,
    SourceUnavailable,
)
from warmshelf.layout import Layout, SegmentSpec
from warmshelf.types import ArtifactKind, ArtifactSpec, Inspection, Source
from warmshelfd import stopping
from warmshelfd.decrypting import Keys
from warmshelfd.domain.extents import SegmentPlan
from warmshelfd.formats.base import FormatLimits, Inspected
from warmshelfd.formats.detect import detect, first_reads
from warmshelfd.header_room import HeaderRoom
from warmshelfd.memo import InspectionMemo, Prepared
from warmshelfd.memory.arena import Arena
from warmshelfd.sources.base import OpenSource, SourceOpener
from warmshelfd.sources.breaker import BreakerLimits, Breakers

_MEMO_BYTES_MAX = 64 << 20
"""What inspections to remember, with what they meant: two hundred of adapters of 420 tensors whose headers differ;
equal ones are one."""

_EXTRAS = {"s3": "s3", "hf": "hub"}
"""Schemes whose library may not be installed, and the extra that brings it."""

_MANIFEST_SLACK_BYTES = 4096
"""Room in the manifest for what is not the small files: fingerprint, digest, names' overhead."""


@dataclass(frozen=True, slots=True)
class Examined:
    """What an inspection found, and how the source looked meanwhile.

    ``small_bytes`` bounds the small files in the manifest; ``size_bytes`` is what the
    segment will take in the arena. ``is_hearsay``: another node said so; nothing of it
    counts before the digest of the bytes has been compared.
    """

    prepared: Prepared
    fingerprint: str
    small_bytes: int
    size_bytes: int = 0
    is_hearsay: bool = False

    @property
    def inspected(self) -> Inspected:
        """All that the format found."""
        return self.prepared.inspected

    @property
    def inspection(self) -> Inspection:
        """The part that callers see."""
        return self.prepared.inspection


class Sources:
    """Opens and inspects sources by their URI's scheme."""

    def __init__(
        self,
        openers: Mapping[str, SourceOpener],
        limits: FormatLimits,
        keys: Keys,
        inspection_bytes_max: int,
        breaker: BreakerLimits | None = None,
    ) -> None:
        """``inspection_bytes_max`` bounds what all inspections together have read of headers and config."""
        self.keys = keys
        self._openers = openers
        self._limits = limits
        self._room = HeaderRoom(inspection_bytes_max)
        self._breakers = Breakers(breaker or BreakerLimits())
        self._memo = InspectionMemo(detect, bytes_max=_MEMO_BYTES_MAX)

    @property
    def schemes(self) -> tuple[str, ...]:
        """The URI schemes that can be opened."""
        return tuple(sorted(self._openers))

    def canonical(self, source: Source) -> Source:
        """Return the source with its URI in the one spelling under which it is kept."""
        uri = self._opener(source.uri).canonical(source.uri)
        return source if uri == source.uri else dataclasses.replace(source, uri=uri)

    def place(self, source: Source) -> str:
        """Return what is waited for where the source is read, such as a server; "" for this node or an unknown kind."""
        opener = self._openers.get(_scheme(source.uri))
        return opener.place(source.uri) if opener is not None else ""

    def open(self, source: Source) -> OpenSource:
        """Open a source, unless its place has failed again and again just now."""
        opener, place = self._opener(source.uri), self.place(source)
        if place:
            self._breakers.check(place, source.uri)
        try:
            return opener.open(source.uri, source.revision)
        except SourceUnavailable:
            self._note(place, source.uri, answered=False)
            raise

    def examine(self, opened: OpenSource, cancelled: Callable[[], bool]) -> Examined:
        """Read an open source's headers and config; stop where ``cancelled`` says so."""
        place = self.place(Source(opened.uri))
        try:
            examined = self._examine(opened, cancelled)
        except SourceUnavailable:
            self._note(place, opened.uri, answered=False)
            raise
        except (SourceNotFound, SourceNotAllowed, SourceTruncated, MalformedArtifact):
            self._note(place, opened.uri, answered=True)
            raise
        self._note(place, opened.uri, answered=True)
        return examined

    def _note(self, place: str, uri: str, *, answered: bool) -> None:
        """Take note of whether a server answered; what is on this node always does."""
        if place and answered:
            self._breakers.answered(place)
        elif place:
            self._breakers.failed(place, uri)

    def _examine(self, opened: OpenSource, cancelled: Callable[[], bool]) -> Examined:
        if not self._memo.recall(opened):
            opened.expect(first_reads(opened.files()))
        with stopping.heeding(cancelled), self._room.inspecting(opened) as files:
            prepared = self._memo.inspect(files, self._limits)
        sizes = opened.files()
        small = sum(sizes[name] + len(name.encode()) + 16 for name in prepared.inspected.small_files)
        fingerprint = opened.fingerprint(prepared.inspected.all_names)
        self._memo.note(opened, prepared, fingerprint)
        return Examined(prepared, fingerprint, small)

    def _opener(self, uri: str) -> SourceOpener:
        scheme = _scheme(uri)
        opener = self._openers.get(scheme)
        if opener is None:
            hint = f". pip install 'warmshelf[{_EXTRAS[scheme]}]' adds it" if scheme in _EXTRAS else ""
            raise InvalidSpec(
                f"no source for scheme {scheme!r}; there are {', '.join(self.schemes)}{hint}", scheme=scheme
            )
        return opener


def _scheme(uri: str) -> str:
    return uri.partition("://")[0].lower() if "://" in uri else "file"


class Origin(ABC):
    """Where the bytes of a load are taken from."""

    place: str
    """What is waited for there; see ``SourceOpener.place``."""

    @abstractmethod
    def open(self) -> OpenSource:
        """Open it."""

    @abstractmethod
    def examine(self, opened: OpenSource, cancelled: Callable[[], bool]) -> Examined:
        """Say what it holds."""


class SourceOrigin(Origin):
    """The artifact's source."""

    def __init__(self, sources: Sources, source: Source) -> None:
        self._sources = sources
        self._source = source
        self.place = sources.place(source)

    def open(self) -> OpenSource:
        """As the interface says."""
        return self._sources.open(self._source)

    def examine(self, opened: OpenSource, cancelled: Callable[[], bool]) -> Examined:
        """As the interface says."""
        return self._sources.examine(opened, cancelled)


@dataclass(frozen=True, slots=True)
class Outline:
    """What a segment will look like, before there is room for it."""

    segment_id: str
    plan: SegmentPlan
    layout: bytes
    manifest_bytes_max: int
    size_bytes: int


def outline_segment(arena: Arena, examined: Examined) -> Outline:
    """Return what a segment of an inspected source will look like."""
    plan = examined.prepared.plan
    segment_id = arena.new_segment_id()
    head = layout_to_proto(Layout(0, (SegmentSpec(0, segment_id, 0, 0),), ())).SerializeToString()
    layout = head + examined.prepared.tensor_table  # joined messages are one message with the fields of both
    manifest_bytes_max = _manifest_bytes_max(examined)
    size = arena.segment_size(plan, layout, manifest_bytes_max)
    return Outline(segment_id, plan, layout, manifest_bytes_max, size)


def _manifest_bytes_max(examined: Examined) -> int:
    names = sum(len(name.encode()) + 8 for name in examined.inspected.file_names)
    return (
        examined.small_bytes
        + names
        + len(examined.fingerprint)
        + examined.prepared.hashes_bytes
        + _MANIFEST_SLACK_BYTES
    )


def check_kind(spec: ArtifactSpec, found: ArtifactKind) -> None:
    """Raise InvalidSpec if the source is not of the kind that the spec says."""
    wanted = ArtifactKind.ADAPTER if spec.base_id else spec.kind
    if wanted not in (ArtifactKind.UNKNOWN, found):
        raise InvalidSpec(
            f"the spec says {wanted.value}, the source is a {found.value}", spec_kind=wanted.value, kind=found.value
        )


def config_name(kind: ArtifactKind) -> str:
    """Return the file whose bytes belong to the content."""
    return "adapter_config.json" if kind is ArtifactKind.ADAPTER else "config.json"


def config_of(kind: ArtifactKind, small_files: Mapping[str, bytes]) -> bytes:
    """Return the config that belongs to the content: of the adapter, or of the base."""
    return small_files.get(config_name(kind), b"")


def read_small_files(source: OpenSource, examined: Examined) -> dict[str, bytes]:
    """Return the bytes of each file that is kept whole, by its name."""
    sizes = source.files()
    source.expect((name, 0, sizes[name]) for name in examined.inspected.small_files)
    return {name: source.read(name, 0, sizes[name]) for name in examined.inspected.small_files}


def open_from(origin: Origin, opened: list[OpenSource], cancelled: Callable[[], bool]) -> OpenSource:
    """Open a place in a thread and add it to what ``opened`` has, for whoever stops or closes it."""
    opened.append(one := origin.open())
    if cancelled():  # before it could be told
        one.stop()
    return one


def read_threads(usual: int, source: OpenSource) -> int:
    """Return how many reads of a source are made at once."""
    threads = max(usual, source.parallel_reads_min)
    return min(threads, source.parallel_reads_max or threads)
