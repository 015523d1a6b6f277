"""What a FakeShelf has in the place of a daemon: artifacts, leases and changes, in this process.

States, errors and their order are a daemon's. It loads in the thread of whoever asks, does
not see who still maps what was released, and forgets everything when it is dropped.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from warmshelf._channel import Deadline
from warmshelf.errors import (
    ArtifactNotFound,
    DeadlineExceeded,
    SourceNotFound,
    SourceUnavailable,
    WarmshelfError,
)
from warmshelf.segment import HEADER_BYTES, parse_header
from warmshelf.testing import _rules as rules
from warmshelf.testing._changes import ChangeLog, FakeFeed
from warmshelf.testing._content import Content, build_segment, digest_of, inspect, same
from warmshelf.testing._rules import Options, Wanted
from warmshelf.types import (
    Artifact,
    ArtifactKind,
    ArtifactSpec,
    ArtifactState,
    Capacity,
    Failure,
    LeaseInfo,
)


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Sealed bytes."""

    segment_id: str
    data: bytes


@dataclass(slots=True)
class _Record:
    """An artifact, how its source is read, what it is pinned to, and its bytes while they are resident."""

    artifact: Artifact
    read: Callable[[], Content]
    content: Content | None = None  # None: its source was not looked at yet
    adapter_number: int = 0
    segment: Segment | None = None
    use_order: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class FakeClaim:
    """A claim as ``warmshelf.lease`` wants one."""

    daemon: FakeDaemon
    info: LeaseInfo
    artifact: Artifact
    segment: Segment

    @property
    def superseded(self) -> bool:
        """Whether a newer generation has become READY."""
        return self.daemon.has_newer(self.info)

    def release(self) -> None:
        """Let go."""
        self.daemon.release(self)


class FakeDaemon:
    """All state. Guarded by ``_changed``, which is notified when anything changes."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._changed = threading.Condition()
        self._records: dict[str, _Record] = {}
        self._claims: list[FakeClaim] = []  # oldest first
        self._log = ChangeLog(self._changed)
        self._adapter_count = 0  # numbers given out
        self._use_count = 0

    # --- the catalog ---

    def register(self, artifact_id: str, spec: ArtifactSpec, read: Callable[[], Content], options: Options) -> Artifact:
        """Make an artifact known, or look at the source of a known one again."""
        with self._changed:
            record = self._records.get(artifact_id)
            if record is None:
                record = self._register_new(artifact_id, spec, None if options.defer else read(), read)
            else:
                self._register_again(record, spec, read, options)
            known = Artifact(artifact_id, spec) if options.replace else record.artifact
            keep, follow = options.keep or known.keep_resident, options.follow or known.follow
            if (keep, follow) != (record.artifact.keep_resident, record.artifact.follow):
                self._set(record, keep_resident=keep, follow=follow)
            return record.artifact

    def _register_new(
        self, artifact_id: str, spec: ArtifactSpec, content: Content | None, read: Callable[[], Content]
    ) -> _Record:
        rules.check_kind(artifact_id, spec, content)
        record = self._records[artifact_id] = _Record(Artifact(artifact_id, spec, register_time=_now()), read)
        self._take(record, content, generation=0)
        return record

    def _register_again(
        self, record: _Record, spec: ArtifactSpec, read: Callable[[], Content], options: Options
    ) -> None:
        known = record.artifact
        rules.check_spec(known, spec, options)
        is_other = spec != known.spec
        content = None if options.defer else read() if is_other else _look(read, record.content)
        rules.check_kind(known.artifact_id, spec, content)
        if is_other or (not options.defer and not same(content, record.content)):
            rules.check_unchanged(known, options, is_known=record.content is not None)
            record.read = read
            self._set(record, spec=spec)
            self._take(record, content, generation=known.generation and known.generation + 1)

    def _take(self, record: _Record, content: Content | None, *, generation: int) -> None:
        """Pin an artifact to a content, if that is known; what it had before is no longer its own."""
        record.content = content
        record.segment = None
        if content is not None and content.kind is ArtifactKind.ADAPTER and not record.adapter_number:
            self._adapter_count += 1
            record.adapter_number = self._adapter_count
        self._set(
            record,
            kind=content.kind if content is not None else record.artifact.spec.kind,
            state=ArtifactState.REGISTERED,
            generation=generation,
            size_bytes=len(build_segment("0" * 32, content)) if content is not None else 0,
            digest="",
            failure=None,
            inspection=inspect(content, record.adapter_number) if content is not None else None,
        )

    def register_pushed(self, artifact_id: str, spec: ArtifactSpec, content: Content, options: Options) -> Artifact:
        """Make an artifact known whose bytes are kept here; equal ones under the ID change nothing."""
        with self._changed:
            record = self._records.get(artifact_id)
            if record is None or not rules.is_pushed_alike(record.artifact, record.content, spec, content):
                self.register(artifact_id, spec, lambda: content, options)
            record = self._records[artifact_id]
            self._set(record, digest=digest_of(content), keep_resident=options.keep or record.artifact.keep_resident)
            return record.artifact

    def get(self, artifact_id: str) -> Artifact:
        """Return an artifact."""
        with self._changed:
            return self._find(artifact_id).artifact

    def artifacts(self, base_id: str) -> list[Artifact]:
        """Return all by ID, or a base's adapters; without config and module names."""
        with self._changed:
            found = [self._records[artifact_id].artifact for artifact_id in sorted(self._records)]
        return [rules.basic(artifact) for artifact in found if base_id in ("", artifact.spec.base_id)]

    def load(self, artifact_id: str, deadline: Deadline) -> Artifact:
        """Make an artifact resident; notice, as ``acquire`` does not, that the source of a resident one changed."""
        with self._changed:
            record = self._find(artifact_id)
            if record.artifact.state is ArtifactState.READY:
                self._register_again(record, record.artifact.spec, record.read, Options())
            return self._resident(artifact_id, deadline).artifact

    def evict(self, artifact_id: str, *, drain: bool) -> Artifact:
        """Give an artifact's memory back."""
        with self._changed:
            record = self._find(artifact_id)
            holders = self._holders(record)
            if record.artifact.state is ArtifactState.READY and holders and not drain:
                raise rules.leased(artifact_id, holders)
            if record.artifact.state is ArtifactState.READY and holders:
                self._set(record, state=ArtifactState.EVICTING)
            elif record.artifact.state is ArtifactState.READY:
                self._unload(record)
            return record.artifact

    def remove(self, artifact_id: str) -> None:
        """Forget an artifact."""
        with self._changed:
            self._find(artifact_id)
            del self._records[artifact_id]
            self._log.note(artifact_id)

    def verify(self, artifact_id: str) -> int:
        """Return how many bytes a daemon would check."""
        with self._changed:
            record = self._find(artifact_id)
            if record.segment is None:
                raise rules.not_resident(record.artifact)
            return parse_header(record.segment.data[:HEADER_BYTES], len(record.segment.data)).data.size

    def capacity(self, like_id: str) -> Capacity:
        """Return what is held, and how much more fits."""
        with self._changed:
            like = self._find(like_id).artifact.size_bytes if like_id else 0
            resident = self._used_bytes()
            evictable = sum(len(r.segment.data) for r in self._evictable() if r.segment)
            free = self.budget_bytes - resident
            return Capacity(
                budget_bytes=self.budget_bytes,
                resident_bytes=resident,
                held_bytes=resident - evictable,
                unnamed_bytes=0,
                reserved_bytes=0,
                free_bytes=free,
                fit_free_count=free // like if like else 0,
                fit_evicting_count=(free + evictable) // like if like else 0,
            )

    def set_budget(self, budget_bytes: int, deadline: Deadline) -> None:
        """Have another budget, once what must leave for it has left."""
        with self._changed:
            while not self._make_room(self.budget_bytes - budget_bytes):
                self._wait_for_room(budget_bytes, deadline)
            self.budget_bytes = budget_bytes

    # --- leases ---

    def acquire(self, artifact_id: str, holder: str, wanted: Wanted, deadline: Deadline) -> FakeClaim:
        """Lease an artifact, loading it if need be."""
        with self._changed:
            record = self._resident(artifact_id, deadline, resident_only=wanted.resident_only)
            artifact, segment = record.artifact, record.segment
            if segment is None:
                raise rules.not_resident(artifact)
            rules.check_wanted(artifact, wanted)
            info = LeaseInfo(artifact_id, artifact.generation, holder, _now(), secrets.token_hex(16))
            claim = FakeClaim(self, info, artifact, segment)
            self._claims.append(claim)
            self._use(record)
            return claim

    def release(self, claim: FakeClaim) -> None:
        """End a lease. Idempotent."""
        with self._changed:
            if claim in self._claims:
                self._claims.remove(claim)
                record = self._records.get(claim.info.artifact_id)
                if record is not None:
                    self._use(record)
                    self._settle(record)
                self._changed.notify_all()

    def leases(self, artifact_id: str) -> list[LeaseInfo]:
        """Return the live leases, oldest first."""
        with self._changed:
            infos = [claim.info for claim in self._claims]
        return [replace(info, lease_id="") for info in infos if artifact_id in ("", info.artifact_id)]

    def has_newer(self, info: LeaseInfo) -> bool:
        """Say whether a newer generation than a lease's is READY."""
        with self._changed:
            record = self._records.get(info.artifact_id)
            ready = record is not None and record.artifact.state is ArtifactState.READY
            return ready and record is not None and record.artifact.generation > info.generation

    def close(self) -> None:
        """End every lease and every feed."""
        with self._changed:
            for claim in list(self._claims):
                self.release(claim)
        self._log.close()

    # --- changes ---

    def feed(self, after: int) -> FakeFeed:
        """Return the changes after a number; from 0, everything first."""
        feed = FakeFeed(self._log, self._artifact, after)
        with self._changed:
            if after == 0:
                feed.tell_first([self._records[artifact_id].artifact for artifact_id in sorted(self._records)])
        return feed

    def _artifact(self, artifact_id: str) -> Artifact | None:
        with self._changed:
            record = self._records.get(artifact_id)
            return record.artifact if record is not None else None

    # --- inside, under the lock ---

    def _find(self, artifact_id: str) -> _Record:
        record = self._records.get(artifact_id)
        if record is None:
            raise ArtifactNotFound(f"no artifact {artifact_id!r} is known", artifact_id=artifact_id)
        return record

    def _resident(self, artifact_id: str, deadline: Deadline, *, resident_only: bool = False) -> _Record:
        """Return the artifact once it is READY."""
        while True:
            record = self._find(artifact_id)
            if record.artifact.state is ArtifactState.READY:
                return record
            if resident_only:
                raise rules.not_resident(record.artifact)
            if record.artifact.state is ArtifactState.EVICTING:
                self._changed.wait(deadline.left())
            elif not self._loaded(record):
                self._wait_for_room(record.artifact.size_bytes, deadline)

    def _loaded(self, record: _Record) -> bool:
        """Load an artifact; False: there is no room now."""
        try:
            content = record.read()
            if not same(content, record.content):
                self._register_again(record, record.artifact.spec, record.read, Options())
            digest = digest_of(content)
            rules.check_pinned(record.artifact, digest, content.file_digest)
            segment_id = secrets.token_hex(16)
            segment = Segment(segment_id, build_segment(segment_id, content))
            if not self._make_room(len(segment.data)):
                return False
        except WarmshelfError as error:
            details = {key: str(value) for key, value in error.details.items()}
            self._set(record, state=ArtifactState.FAILED, failure=Failure(error.reason, error.message, details))
            raise
        self._set(record, state=ArtifactState.LOADING, failure=None)
        record.segment = segment
        generation = record.artifact.generation or 1
        self._set(record, state=ArtifactState.READY, generation=generation, digest=digest)
        return True

    def _make_room(self, size: int) -> bool:
        rules.check_fits(size, self.budget_bytes)
        victims = sorted(self._evictable(), key=lambda record: record.use_order)
        missing = self._used_bytes() + size - self.budget_bytes
        if missing > sum(len(record.segment.data) for record in victims if record.segment):
            return False
        for record in victims:
            if self._used_bytes() + size > self.budget_bytes:
                self._unload(record)
        return True

    def _wait_for_room(self, size: int, deadline: Deadline) -> None:
        try:
            self._changed.wait(deadline.left())
        except DeadlineExceeded:
            raise rules.arena_full(size, self._used_bytes(), self.budget_bytes) from None

    def _evictable(self) -> list[_Record]:
        return [
            record
            for record in self._records.values()
            if record.artifact.state is ArtifactState.READY
            and not record.artifact.keep_resident
            and not self._holders(record)
        ]

    def _used_bytes(self) -> int:
        """Return the bytes of every segment that has a name or a lease."""
        named = {record.segment for record in self._records.values() if record.segment is not None}
        return sum(len(segment.data) for segment in named | {claim.segment for claim in self._claims})

    def _holders(self, record: _Record) -> int:
        return sum(claim.segment is record.segment for claim in self._claims)

    def _settle(self, record: _Record) -> None:
        """Let go of bytes that are EVICTING once nobody holds them."""
        if record.artifact.state is ArtifactState.EVICTING and not self._holders(record):
            self._unload(record)

    def _unload(self, record: _Record) -> None:
        record.segment = None
        self._set(record, state=ArtifactState.REGISTERED)

    def _use(self, record: _Record) -> None:
        self._use_count += 1
        record.use_order = self._use_count
        record.artifact = replace(record.artifact, last_use_time=_now())

    def _set(self, record: _Record, **fields: Any) -> None:
        record.artifact = replace(record.artifact, **fields)
        self._log.note(record.artifact.artifact_id)


# --- pure parts ---


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _look(read: Callable[[], Content], known: Content | None) -> Content | None:
    """Read a known artifact's source; one that cannot be seen now is no change of it."""
    try:
        return read()
    except (SourceNotFound, SourceUnavailable):
        return known
