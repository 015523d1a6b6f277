"""One load: from a source to a sealed segment.

Every step that blocks runs in a thread and stops when the load is cancelled.
Knows the source, the format, the arena and the registry; it does not know who
waits for it, nor what state the artifact is in.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from warmshelf.errors import SourceChanged, SourceChangedDuringLoad, SourceNotFound, SourceUnavailable
from warmshelf.types import ArtifactKind, LoadPhase, Source
from warmshelfd import failpoints
from warmshelfd.claims import Claims
from warmshelfd.decrypting import plain_reads
from warmshelfd.digesting import (
    Cancelled,
    check_sha256s,
    content_digest,
    expect,
    one_file_digest,
    source_digest,
)
from warmshelfd.doubting import check_pinned, is_doubtful, reserve_unless
from warmshelfd.hot_sums import HotSums, sums_of
from warmshelfd.inspecting import (
    Examined,
    Origin,
    Outline,
    SourceOrigin,
    Sources,
    check_kind,
    config_of,
    open_from,
    outline_segment,
    read_small_files,
    read_threads,
)
from warmshelfd.load import Load
from warmshelfd.memory.books import Reservation
from warmshelfd.memory.segment import SegmentWriter
from warmshelfd.metric_table import NEIGHBOUR
from warmshelfd.neighbours import Neighbours
from warmshelfd.pools import LoadThreads, Pools
from warmshelfd.registry.base import Registration, Registry
from warmshelfd.residency import Residency
from warmshelfd.running import run_stoppable, run_to_the_end
from warmshelfd.sealing import files_digest, manifest_of
from warmshelfd.sources.base import OpenSource
from warmshelfd.wishes import Loaded, Wishes

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Job:
    """What is loaded: what was known of the artifact, its source as it is now, and what is known with that.

    ``as_asked`` adds what callers asked for meanwhile.
    """

    known: Registration
    place: str
    source: OpenSource
    examined: Examined
    found: Registration
    as_asked: Callable[[Registration], Registration]

    @property
    def kind(self) -> ArtifactKind:
        return self.examined.inspected.kind


class Loader:
    """Carries out loads."""

    def __init__(
        self,
        sources: Sources,
        residency: Residency,
        registry: Registry,
        threads: LoadThreads,
        neighbours: Neighbours,
        claims: Claims,
    ) -> None:
        self._sources = sources
        self._residency = residency
        self._arena = residency.arena
        self._registry = registry
        self._neighbours = neighbours
        self._claims = claims
        self._read_threads = threads.reads
        self._pools = Pools(threads)

    async def inspect(self, source: Source, *, needs_key: bool) -> Examined:
        """Inspect a source and say how much room it will take; ``needs_key``: also try the key, if it is encrypted."""

        def inspect(opened: OpenSource, cancelled: Cancelled) -> Examined:
            examined = self._sources.examine(opened, cancelled)
            if needs_key:
                self._sources.keys.find(opened, examined.inspected)
            return dataclasses.replace(examined, size_bytes=outline_segment(self._arena, examined).size_bytes)

        return await self._with_source(source, inspect)

    async def digest_source(self, source: Source) -> str:
        """Return the content digest that loading the source would give, without keeping its bytes."""

        def digest(opened: OpenSource, cancelled: Cancelled) -> str:
            inspected = (examined := self._sources.examine(opened, cancelled)).inspected
            config = config_of(inspected.kind, read_small_files(opened, examined))
            reads = plain_reads(opened, inspected, self._sources.keys)
            return source_digest(reads.read_into, inspected, config, cancelled)

        return await self._with_source(source, digest)

    async def source_sha256(self, source: Source) -> tuple[str, str]:
        """Return the sha256 digest of a source's one file of weights, and how the source looked meanwhile.

        Raises:
            UnsupportedFormat: its weights are in several files.
        """

        def digest(opened: OpenSource, cancelled: Cancelled) -> tuple[str, str]:
            examined = self._sources.examine(opened, cancelled)
            actual = one_file_digest(opened, examined.inspected.file_names, cancelled)
            return actual, opened.fingerprint(examined.inspected.all_names)

        return await self._with_source(source, digest)

    async def run(self, wishes: Wishes) -> Loaded:
        """Load an artifact.

        On every way out but success the space, the file and the source are given back. Content that is resident
        already, under whatever ID, is shared and not kept twice. What a neighbour has is taken from there, if that
        works; and while one reads the same source, it is waited for.
        """
        failpoints.hit("load.started")
        tried: set[str] = set()
        turn = self._claims.turn(wishes.load, wishes.is_owed)
        while True:
            known = wishes.known()
            if self._residency.find_content(known.digest, known.kind):
                break
            loaded = await self._from_neighbours(known, tried, wishes)
            if loaded is not None:
                return loaded
            if await turn.is_mine(known):
                break
        return await self._load_from(SourceOrigin(self._sources, known.spec.source), known, wishes)

    async def _from_neighbours(self, known: Registration, tried: set[str], wishes: Wishes) -> Loaded | None:
        async for neighbour in self._neighbours.offers(known, tried):
            wishes.load.scheme = NEIGHBOUR
            loaded = await neighbour.taken(self._load_from(neighbour.origin, known, wishes))
            if loaded is not None:
                return loaded
            wishes.load.begin_again()
        return None

    async def _load_from(self, origin: Origin, known: Registration, wishes: Wishes) -> Loaded:
        load = wishes.load
        opened: list[OpenSource] = []  # filled in the thread: a cancel cannot lose what was opened

        def begin(cancelled: Cancelled) -> tuple[Examined, Outline]:
            examined = origin.examine(open_from(origin, opened, cancelled), cancelled)
            return examined, outline_segment(self._arena, examined)

        try:
            examined, outline = await self._stoppable(origin.place, opened, begin)
            failpoints.hit("load.examined")
            check_kind(known.spec, examined.inspected.kind)
            is_new = known.inspection is None or known.fingerprint != examined.fingerprint
            found = await wishes.complete(known, examined) if is_new else known
            job = _Job(known, origin.place, opened[0], examined, found, wishes.as_asked)
            must_hash = _must_hash(job)
            if known.digest and known.fingerprint == examined.fingerprint:
                shared = await self._share(job, known.digest)
                if shared is not None:
                    return shared
            writer = await self._create(job, load, outline, wishes.reserved)
            try:
                return await self._fill_and_seal(job, load, writer, must_hash)
            finally:
                if not writer.has_ended:
                    await run_to_the_end(self._threads(job), writer.abort)
        finally:
            for source in opened:
                source.close()

    async def _create(self, job: _Job, load: Load, outline: Outline, reserved: Callable[[], None]) -> SegmentWriter:
        load.enter(LoadPhase.RESERVE, outline.size_bytes)
        reserve = partial(self._residency.reserve, outline.size_bytes, job.kind, lambda: load.priority)
        is_odd = not job.examined.is_hearsay and is_doubtful(job.known, job.examined.fingerprint)
        settle = partial(self._check_still_the_same, job.known) if is_odd else None
        reservation = await reserve_unless(reserve, load.wait_for_room, settle, Reservation.release)
        try:
            reserved()
            failpoints.hit("load.reserved")
            return await run_to_the_end(
                self._threads(job),
                lambda: self._arena.create(
                    reservation, outline.plan, outline.layout, outline.manifest_bytes_max, outline.segment_id
                ),
            )
        except BaseException:
            reservation.release()
            raise

    async def _check_still_the_same(self, known: Registration) -> None:
        with suppress(SourceNotFound, SourceUnavailable):  # the load itself will say so
            check_pinned(known, await self.digest_source(known.spec.source))

    async def _fill_and_seal(self, job: _Job, load: Load, writer: SegmentWriter, must_hash: bool) -> Loaded:
        load.enter(LoadPhase.READ, job.examined.inspection.tensor_bytes)
        sums = sums_of(job.examined.inspected, writer.tensors, must_hash=must_hash)
        small = await self._run(job, lambda cancelled: self._fill(job, load, writer, sums, cancelled))
        failpoints.hit("load.read")
        load.enter(LoadPhase.VERIFY)
        config = config_of(job.kind, small)
        digest = await self._run(job, lambda cancelled: self._verify(job, writer, config, sums, cancelled))
        failpoints.hit("load.verified")
        shared = await self._share(job, digest)
        if shared is not None:
            return shared
        load.enter(LoadPhase.SEAL)
        owed = () if must_hash else job.examined.inspected.checks
        manifest = manifest_of(job.examined, small, digest, owed)
        registration = _registration(
            job, digest, writer.segment_id, writer.size_bytes, hashes_owed=bool(manifest.hashes)
        )
        registration = dataclasses.replace(registration, files_digest=files_digest(job.kind, small))
        sealing = self._run(job, lambda _: writer.finish(manifest.SerializeToString()))
        # Both end before the name, so that a file with a name is always known, and before anything is given back.
        for error in await asyncio.gather(self._registry.put(registration), sealing, return_exceptions=True):
            if error is not None:
                raise error
        failpoints.hit("load.recorded")
        load.enter(LoadPhase.PIN)
        segment = await run_to_the_end(self._threads(job), writer.publish)
        return Loaded(segment, registration, job.known)

    async def _share(self, job: _Job, digest: str) -> Loaded | None:
        """Return the resident bytes with this digest, held against eviction, if there are any."""
        segment_id = self._residency.find_content(digest, job.kind)
        if not segment_id:
            return None
        segment = self._residency.begin_stream(segment_id)
        try:
            hashes_owed = any(owner.hashes_owed for owner in self._residency.owners(segment_id))
            registration = _registration(job, digest, segment_id, segment.size_bytes, hashes_owed=hashes_owed)
            await self._registry.put(registration)
            failpoints.hit("load.shared")
        except BaseException:
            self._residency.end_stream(segment_id)
            raise
        return Loaded(segment, registration, job.known, is_shared=True)

    def _fill(
        self, job: _Job, load: Load, writer: SegmentWriter, sums: HotSums, cancelled: Cancelled
    ) -> dict[str, bytes]:
        names = job.examined.inspected.file_names
        reads = plain_reads(job.source, job.examined.inspected, self._sources.keys)

        def read(file_index: int, offset: int, view: memoryview) -> None:
            reads.read_into(names[file_index], offset, view)

        small = read_small_files(job.source, job.examined)
        threads = read_threads(self._read_threads, job.source)
        gap_bytes, hot = job.source.gap_bytes, sums.take
        writer.fill(read, threads=threads, cancelled=cancelled, progress=load.advance, gap_bytes=gap_bytes, hot=hot)
        return small

    def _verify(self, job: _Job, writer: SegmentWriter, config: bytes, sums: HotSums, cancelled: Cancelled) -> str:
        """Check the bytes that were read; return their digest, or "" if nobody needs it yet."""
        known, expected, inspected = job.known, job.known.spec.source.expected_digest, job.examined.inspected
        sums.check_crc32s(inspected.checks, writer.tensors, cancelled)
        digest = ""
        if sums.hashes is not None:  # else the format's slow hashes are compared after READY, as is the digest
            check_sha256s(inspected.checks, writer.tensors, writer.read, cancelled, self._read_threads)
            digest = content_digest(writer.tensors, writer.read, config, cancelled, sums.hashes)
        if expected.startswith("sha256:"):
            _expect_file(job, cancelled)
        elif expected:
            expect(expected, digest, f"artifact {known.artifact_id!r}")
        if job.source.fingerprint(inspected.all_names) != job.examined.fingerprint:
            raise SourceChangedDuringLoad(
                f"the source of {known.artifact_id!r} changed while it was read", artifact_id=known.artifact_id
            )
        check_pinned(known, digest)
        return digest

    async def _run(self, job: _Job, function: Callable[[Cancelled], T]) -> T:
        return await run_stoppable(self._threads(job), function, job.source.stop)

    def _threads(self, job: _Job) -> Executor:
        return self._pools.of(job.kind, job.place)

    async def _with_source(self, source: Source, function: Callable[[OpenSource, Cancelled], T]) -> T:
        """Open a source, do something with it in a thread, and close it."""
        opened: list[OpenSource] = []

        def run(cancelled: Cancelled) -> T:
            with open_from(origin, opened, cancelled) as one:
                return function(one, cancelled)

        origin = SourceOrigin(self._sources, source)
        return await self._stoppable(origin.place, opened, run)

    async def _stoppable(self, place: str, opened: list[OpenSource], function: Callable[[Cancelled], T]) -> T:
        """Run what opens a source; a stop ends what it waits for there."""

        def stop() -> None:
            for source in opened:
                source.stop()

        return await run_stoppable(self._pools.of(ArtifactKind.UNKNOWN, place), function, stop)

    def close(self) -> None:
        """Wait for the threads to end."""
        self._pools.close()


# --- parts ------------------------------------------------------------------


def _must_hash(job: _Job) -> bool:
    """Say whether the digest must be known before sealing.

    Raises:
        SourceChanged: the source looks different, and nothing can tell whether its bytes are.
    """
    known, expected = job.known, job.known.spec.source.expected_digest
    changed = bool(known.fingerprint) and known.fingerprint != job.examined.fingerprint
    if changed and not known.digest and not known.follow and not expected:
        raise SourceChanged(
            f"the source of {known.artifact_id!r} is not as it was when it was registered, and it was never loaded, so "
            "nothing tells whether its bytes are the same; replace it, or register it with its digest, to accept them",
            artifact_id=known.artifact_id,
        )
    # By another node, or a push; or what was here came from another node.
    pinned_unseen = bool(known.digest) and not (known.segment_id and known.fingerprint)
    return job.examined.is_hearsay or changed or bool(expected) or pinned_unseen or job.kind is ArtifactKind.ADAPTER


def _expect_file(job: _Job, cancelled: Cancelled) -> None:
    names = job.examined.inspected.file_names
    expect(job.known.spec.source.expected_digest, one_file_digest(job.source, names, cancelled), f"file {names[0]!r}")


def _registration(job: _Job, digest: str, segment_id: str, size_bytes: int, *, hashes_owed: bool) -> Registration:
    known = job.known
    changed = bool(known.fingerprint) and known.fingerprint != job.examined.fingerprint
    # A digest that nobody had time to learn cannot say that changed bytes are the same.
    other_bytes = bool(known.segment_id and digest) and digest != known.digest and (changed or bool(known.digest))
    registration = dataclasses.replace(
        job.found,
        fingerprint=job.examined.fingerprint,
        generation=max(1, known.generation + other_bytes),
        digest=digest or known.digest,
        segment_id=segment_id,
        size_bytes=size_bytes,
        hashes_owed=hashes_owed,
    )
    return job.as_asked(registration)
