"""What nodes share of a registration, as one value of a store that others can write to. Pure.

A value is ``REVISION kept ZLIB`` or ``REVISION removed SECONDS``: a whole number that
rises with every change of the registry, and the record's JSON, compressed. What holds for
one node alone is not in it: where its bytes lie, how its source looked there, the number
that its engines know the adapter by. Reading it trusts nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from warmshelf.types import AdapterInspection, Alias, BaseCheck
from warmshelfd.domain.catalog import spec_conflict
from warmshelfd.registry.aliases import MARK, alias_from_json, alias_to_json
from warmshelfd.registry.base import Registration
from warmshelfd.registry.fields import BadRecord
from warmshelfd.registry.folded import folded, unfolded
from warmshelfd.registry.records import registration_from_json, registration_to_json

VALUE_BYTES_MAX = 64 << 10
"""Longest value that is read; ours have a few hundred bytes, a spec with the longest names some KB."""

RECORD_BYTES_MAX = 1 << 20
"""Longest record that a value may unfold to."""

INSPECTED_BYTES_MAX = 1400
"""Longest value that carries what the headers told; beyond, every node reads the headers itself at its first load. So
an adapter takes at most 2 KB of the store's memory, the store's own overhead included."""

NODE_SCHEMES = ("spool://",)
"""Sources that only their own node can read: what was pushed to it."""

_VALUE = re.compile(rb"([1-9][0-9]{0,17}) (kept|removed) (.*)", re.DOTALL)
_ESSENCES_MAX = 1024
"""Essences remembered: each is asked for several times while a registration is taken up."""

_VOCABULARY = "vocabulary:"


@dataclass(frozen=True, slots=True)
class Shared:
    """What the store holds of one ID: a registration, or an alias; neither where that was removed.

    ``removed_seconds`` is when it was removed, since 1970; None if it was not, or nobody knows.
    """

    artifact_id: str
    revision: int
    registration: Registration | None
    alias: Alias | None = None
    removed_seconds: int | None = None

    @property
    def is_removed(self) -> bool:
        """Whether the ID means nothing any more."""
        return self.registration is None and self.alias is None


@dataclass(frozen=True, slots=True)
class Change:
    """What a node wants the store to hold of an ID.

    Attributes:
        artifact_id: the ID.
        expected: the revision that the node knows of; 0 if of none.
        essence_seen: of that revision; "" if of none.
        digest_agreed: the pinned digest of that revision, if the node's own bytes were no other.
        registration: what is wanted; None to remove it.
    """

    artifact_id: str
    expected: int
    essence_seen: str
    digest_agreed: str
    registration: Registration | None


class Verdict(Enum):
    """What becomes of a change."""

    WRITE = "write"
    FOLLOW = "follow"  # the store's is as good, or newer
    OTHER_SPEC = "other_spec"
    OTHER_DIGEST = "other_digest"


def is_shared(registration: Registration) -> bool:
    """Say whether other nodes can read the source too."""
    return not registration.spec.source.uri.startswith(NODE_SCHEMES)


def essence(registration: Registration | None) -> str:
    """Return a digest of what has to be the same everywhere beside the pinned digest; "" of nothing."""
    if registration is None:
        return ""
    return _essence_of(_essentials(registration))


@lru_cache(maxsize=_ESSENCES_MAX)
def _essence_of(essentials: tuple[str | bool, ...]) -> str:
    return hashlib.blake2b(repr(essentials).encode(), digest_size=16).hexdigest()


def _essentials(r: Registration) -> tuple[str | bool, ...]:
    source = r.spec.source
    parts = (source.uri, source.revision, source.expected_digest, r.spec.kind.value, r.spec.base_id)
    return (*parts, r.follow, r.keep_resident)


def has_essence_of(mine: Registration, theirs: Registration) -> bool:
    """Say whether two registrations have the same essence, without making it."""
    return _essentials(mine) == _essentials(theirs)


def is_alike(mine: Registration, theirs: Registration) -> bool:
    """Say whether two registrations of an ID are the same to other nodes."""
    return has_essence_of(mine, theirs) and (mine.follow or mine.digest == theirs.digest)


def shared_part(registration: Registration) -> Registration:
    """Return the registration without what holds for this node alone."""
    inspection = registration.inspection
    if inspection is not None and inspection.adapter is not None and not _is_shared_already(inspection.adapter):
        adapter = dataclasses.replace(
            inspection.adapter,
            adapter_number=0,
            base_check=BaseCheck.UNCHECKED,
            unmatched_module_names=(),
            features=tuple(name for name in inspection.adapter.features if not name.startswith(_VOCABULARY)),
        )
        inspection = dataclasses.replace(inspection, adapter=adapter)
    return dataclasses.replace(
        registration,
        inspection=inspection,
        fingerprint="",
        generation=0,
        segment_id="",
        hashes_owed=False,
        digest="" if registration.follow else registration.digest,
        files_digest="" if registration.follow or not registration.digest else registration.files_digest,
    )


def _is_shared_already(adapter: AdapterInspection) -> bool:
    is_bare = not adapter.adapter_number and adapter.base_check is BaseCheck.UNCHECKED
    has_more = adapter.unmatched_module_names or any(name.startswith(_VOCABULARY) for name in adapter.features)
    return is_bare and not has_more


def to_value(revision: int, registration: Registration | None, now_seconds: int) -> bytes:
    """Return the value to store."""
    if registration is None:
        return b"%d removed %d" % (revision, now_seconds)
    part = shared_part(registration)
    value = b"%d kept %b" % (revision, folded(registration_to_json(part)))
    if len(value) <= INSPECTED_BYTES_MAX or part.inspection is None:
        return value
    bare = dataclasses.replace(part, inspection=None, adapter_shapes=None)
    return b"%d kept %b" % (revision, folded(registration_to_json(bare)))


def alias_to_value(revision: int, alias: Alias) -> bytes:
    """Return the value to store for an alias."""
    return b"%d kept %b" % (revision, folded(alias_to_json(alias)))


def from_value(artifact_id: str, value: bytes) -> Shared:
    """Return what a value says of an ID.

    Raises:
        BadRecord: nothing that can be used.
    """
    match = _VALUE.fullmatch(value)
    if match is None or len(value) > VALUE_BYTES_MAX:
        raise BadRecord("is no value of a registry")
    if match[2] == b"removed":
        return Shared(artifact_id, int(match[1]), None, removed_seconds=removed_at(value))
    if artifact_id.startswith(MARK):
        alias = alias_from_json(unfolded(match[3], RECORD_BYTES_MAX))
        if MARK + alias.name != artifact_id:
            raise BadRecord(f"is the record of {alias.name!r}")
        return Shared(artifact_id, int(match[1]), None, alias)
    registration = registration_from_json(unfolded(match[3], RECORD_BYTES_MAX))
    if registration.artifact_id != artifact_id:
        raise BadRecord(f"is the record of {registration.artifact_id!r}")
    if registration != shared_part(registration):
        raise BadRecord("has what holds for one node alone")
    return Shared(artifact_id, int(match[1]), registration)


def revision_of(value: bytes) -> int:
    """Return a value's revision; 0 if it is no value of ours."""
    match = _VALUE.match(value)
    return int(match[1]) if match else 0


def removed_at(value: bytes) -> int | None:
    """Return when the value's ID was removed, in seconds since 1970; None if it was not."""
    match = _VALUE.fullmatch(value)
    return int(match[3]) if match and match[2] == b"removed" and match[3].isdigit() else None


def judge(change: Change, current: Shared | None) -> Verdict:
    """Say what becomes of a change, by what the store holds now; None if that is nothing."""
    if current is None:
        return Verdict.WRITE
    mine, theirs = change.registration, current.registration
    is_as_seen = theirs is not None and essence(theirs) == change.essence_seen  # a digest may have been pinned since
    if current.revision == change.expected or is_as_seen:
        return Verdict.OTHER_DIGEST if _breaks_pin(change, mine, theirs) else Verdict.WRITE
    if theirs is None:  # removed since, unless the node never knew it
        return Verdict.FOLLOW if change.expected or mine is None else Verdict.WRITE
    if mine is None:
        return Verdict.OTHER_SPEC if change.expected else Verdict.FOLLOW
    if essence(mine) == change.essence_seen:  # it has only pinned what others have replaced meanwhile
        return Verdict.FOLLOW
    return _compared(mine, theirs)


def _compared(mine: Registration, theirs: Registration) -> Verdict:
    """Say which of two registrations that know nothing of each other holds."""
    if spec_conflict(theirs.spec, mine.spec) or mine.follow != theirs.follow:
        return Verdict.OTHER_SPEC
    if mine.follow or not mine.digest or mine.digest == theirs.digest:
        return Verdict.FOLLOW
    return Verdict.OTHER_DIGEST if theirs.digest else Verdict.WRITE


def _breaks_pin(change: Change, mine: Registration | None, theirs: Registration | None) -> bool:
    """Say whether a node that never had the pinned bytes would pin others."""
    if mine is None or theirs is None or mine.follow or spec_conflict(theirs.spec, mine.spec):
        return False
    return bool(mine.digest and theirs.digest) and theirs.digest not in (mine.digest, change.digest_agreed)


def to_write(change: Change, current: Shared | None) -> Change:
    """Return the change as it is written: a digest that the node does not know yet stays as it is pinned."""
    mine, theirs = change.registration, current.registration if current else None
    if mine is None or theirs is None or mine.digest or mine.follow or spec_conflict(theirs.spec, mine.spec):
        return change
    pinned = dataclasses.replace(mine, digest=theirs.digest, files_digest=theirs.files_digest)
    return dataclasses.replace(change, registration=pinned)


def older_text(revision: int, current: Shared) -> str:
    """Say why what a node knew under a higher number than the store has does not hold."""
    return (
        f"the registry went back in time and on from there: it has number {current.revision}, here {revision} was known"
    )


def conflict_text(change: Change, current: Shared) -> str:
    """Say why a change was refused."""
    mine, theirs = change.registration, current.registration
    if mine is None or theirs is None:
        return "it was changed by another node meanwhile"
    differs = spec_conflict(theirs.spec, mine.spec)
    if differs:
        return f"other nodes have it with another {differs}: {theirs.spec.source.uri}, not {mine.spec.source.uri}"
    if mine.digest and theirs.digest and mine.digest != theirs.digest:
        return f"other nodes have it pinned to {theirs.digest}, here it is {mine.digest}"
    return "other nodes follow its source" if theirs.follow else "other nodes do not follow its source"
