"""What a shelf may answer, and what must be true of it afterwards: the contract as a small non-deterministic machine.

An oracle: it shares no code with what it judges. ``outcomes`` says how one call about
one artifact can end; ``kit.shelf_order`` explains several.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from kit.source_files import CONTENTS, Look

State = Literal["registered", "ready", "evicting", "failed"]
Room = Literal["must", "may", "cannot"]
"""Whether a load of this artifact finds room in the arena."""

OVERHEAD_BYTES = (4 << 10, 20 << 10)
"""What a segment takes beside its tensors, at least and at most: header, layout, CRCs, manifest, rounding."""

BROKEN = ("SOURCE_TRUNCATED", "MALFORMED_ARTIFACT")
FULL = ("ARENA_FULL", "DEADLINE_EXCEEDED")


@dataclass(frozen=True)
class Known:
    """One artifact.

    ``pinned`` is the version of the file that it is pinned to, 0 if none; ``content`` is
    that of its generation, once it was loaded; ``hashed``: its digest is known;
    ``spoiled``: its bytes in the arena are no longer those that were sealed.
    """

    file: str
    expected: str = ""
    keep: bool = False
    follow: bool = False
    pinned: int = 0
    generation: int = 0
    content: str | None = None
    hashed: bool = False
    state: State = "registered"
    failure: str = ""
    spoiled: bool = False


Maybe = Known | None


@dataclass(frozen=True)
class Call:
    """One call about one ID."""

    artifact_id: str


@dataclass(frozen=True)
class Register(Call):
    file: str
    expected: str = ""
    replace: bool = False
    keep: bool = False
    follow: bool = False
    defer: bool = False


@dataclass(frozen=True)
class Acquire(Call):
    resident_only: bool = False
    expected: str = ""


@dataclass(frozen=True)
class Load(Call):
    detach: bool = False


@dataclass(frozen=True)
class Evict(Call):
    drain: bool = False


@dataclass(frozen=True)
class Remove(Call):
    pass


@dataclass(frozen=True)
class Verify(Call):
    pass


@dataclass(frozen=True)
class Outcome:
    """How a call can end, and the artifact after it. Generation and content are those of a lease."""

    reason: str
    after: Maybe
    generation: int = 0
    content: str | None = None


@dataclass(frozen=True)
class World:
    """What calls depend on beside the artifact: the files, the budget, whether there is room, who has leases.

    ``leased`` are the IDs with a lease on their present bytes, None if that is not known.
    ``changing`` is a file that changes while the call is under way.
    """

    looks: Mapping[str, Look]
    budget_bytes: int
    room: Mapping[str, Room]
    leased: frozenset[str] | None
    changing: str = ""

    def look(self, file: str) -> Look:
        return self.looks.get(file, Look(0, None, exists=False))


def outcomes(known: Maybe, call: Call, world: World) -> Iterator[Outcome]:
    """Return every way in which a call may end that has nobody beside it."""
    if isinstance(call, Register):
        yield from _register(known, call, world.look(call.file))
    elif known is None:
        yield Outcome("ARTIFACT_NOT_FOUND", None)
    elif isinstance(call, Acquire):
        yield from _acquire(known, call, world)
    elif isinstance(call, Load):
        yield from _detached(call, _load_call(known, call, world)) if call.detach else _load_call(known, call, world)
    elif isinstance(call, Evict):
        yield from _evict(known, call, world)
    elif isinstance(call, Remove):
        yield Outcome("", None)
    elif isinstance(call, Verify):
        yield _verify(known)


# --- register ---------------------------------------------------------------


def _register(known: Maybe, call: Register, look: Look) -> Iterator[Outcome]:
    if known is None:
        yield from _register_new(call, look)
        return
    conflict = known.file != call.file or known.expected != call.expected
    if conflict and not call.replace:
        yield Outcome("SPEC_MISMATCH", known)
    elif not look.exists and not conflict:  # a source that cannot be seen is no change of it
        yield Outcome("", _flagged(known, call))
    elif look.content is None:
        yield from (Outcome(reason, known) for reason in _unreadable(look))
    elif conflict:
        yield Outcome("", _replaced(_flagged(known, call), look))
    else:
        yield from _register_equal(known, call, look)


def _register_new(call: Register, look: Look) -> Iterator[Outcome]:
    new = Known(call.file, call.expected, call.keep, call.follow)
    if call.defer:
        yield Outcome("", new)
    elif look.content is None:
        yield from (Outcome(reason, None) for reason in _unreadable(look))
    else:
        yield Outcome("", replace(new, pinned=look.version))


def _register_equal(known: Known, call: Register, look: Look) -> Iterator[Outcome]:
    wanted = _flagged(known, call)
    kept, replaced = replace(wanted, pinned=look.version), _replaced(wanted, look)
    if known.pinned in (0, look.version):
        yield Outcome("", kept)
    elif call.replace:
        yield Outcome("", replaced)
        if known.hashed and look.content == known.content:  # nobody has to look at the bytes, but may
            yield Outcome("", kept)
    elif known.hashed and look.content == known.content:
        yield Outcome("", kept)
    elif wanted.follow:
        yield Outcome("", replaced)
    else:
        yield Outcome("SOURCE_CHANGED", known)
        if not known.hashed and _is_expected(known.expected, str(look.content)):
            yield Outcome("", kept)


def _flagged(known: Known, call: Register) -> Known:
    return replace(
        known,
        file=call.file,
        expected=call.expected,
        keep=call.keep or (known.keep and not call.replace),
        follow=call.follow or (known.follow and not call.replace),
    )


def _replaced(known: Known, look: Look) -> Known:
    """Return the next generation, of which nothing is known but how its source looks."""
    generation = known.generation + 1 if known.generation else 0
    return replace(given_back(known), pinned=look.version, generation=generation, content=None, hashed=False)


def _unreadable(look: Look) -> tuple[str, ...]:
    return BROKEN if look.exists else ("SOURCE_NOT_FOUND",)


# --- load and acquire -------------------------------------------------------


def _acquire(known: Known, call: Acquire, world: World) -> Iterator[Outcome]:
    if known.spoiled:  # never given out: found first, and loaded anew
        return
    if known.state == "ready":
        yield _grant(known, call)
    elif call.resident_only:
        yield Outcome("NOT_RESIDENT", known)
    elif known.state == "evicting":
        yield Outcome("DEADLINE_EXCEEDED", known)
    else:
        for loaded in _load(known, call, world):
            yield loaded if loaded.reason or loaded.after is None else _grant(loaded.after, call)


def _grant(known: Known, call: Acquire) -> Outcome:
    content = str(known.content)
    if call.expected not in ("", known.expected) and not _is_expected(call.expected, content):
        return Outcome("DIGEST_MISMATCH", known)
    return Outcome("", known, known.generation, content)


def _load_call(known: Known, call: Load, world: World) -> Iterator[Outcome]:
    """A load looks at the source also if the bytes are there."""
    look = world.look(known.file)
    if known.state == "evicting":
        yield Outcome("DEADLINE_EXCEEDED", known)
    elif known.state != "ready":
        yield from _load(known, call, world)
    elif not look.exists or look.version == known.pinned:
        yield Outcome("", known)
    elif look.content is None:
        yield from (Outcome(reason, known) for reason in BROKEN)
    elif known.hashed and look.content == known.content:
        yield Outcome("", known)
    elif known.follow:
        yield from _load(_replaced(known, look), call, world)
    else:
        yield Outcome("SOURCE_CHANGED", known)


def _detached(call: Load, ends: Iterator[Outcome]) -> Iterator[Outcome]:
    """The caller does not wait for the end; what is known without a load it is told at once."""
    for end in ends:
        is_begun = end.after is not None and (end.reason in FULL or end.after.failure == end.reason)
        yield Outcome("" if is_begun else end.reason, end.after)


def _load(known: Known, call: Call, world: World) -> Iterator[Outcome]:
    look, room = world.look(known.file), world.room.get(call.artifact_id, "may")
    reasons = set(_load_faults(known, look, world.budget_bytes))
    changing = ("SOURCE_CHANGED_DURING_LOAD", "SOURCE_NOT_FOUND") if known.file == world.changing else ()
    yield from (Outcome(reason, failed(known, reason)) for reason in (*reasons, *changing))
    if room != "must" and look.content is not None and "LARGER_THAN_ARENA" not in reasons:
        yield from (Outcome(reason, known) for reason in FULL)
    if not reasons and room != "cannot" and look.content is not None:
        yield from _loaded(known, look.content, look.version)


def _load_faults(known: Known, look: Look, budget_bytes: int) -> Iterator[str]:
    if look.content is None:
        yield from _unreadable(look)
        return
    other = known.hashed and look.content != known.content
    if known.pinned not in (0, look.version) and not (known.hashed or known.follow or known.expected):
        yield "SOURCE_CHANGED"  # nothing tells whether the bytes are the same
        return
    if CONTENTS[look.content].size_bytes + OVERHEAD_BYTES[0] > budget_bytes:
        yield "LARGER_THAN_ARENA"
    if known.expected and not _is_expected(known.expected, look.content):
        yield "DIGEST_MISMATCH"
    if other and not known.follow:
        yield "SOURCE_CHANGED"


def _loaded(known: Known, content: str, version: int) -> Iterator[Outcome]:
    """The bytes are in: the same generation, or the next if they are others than before."""
    generations = {max(1, known.generation)}
    if known.content is not None and content != known.content:
        generations = {known.generation + 1}
    elif known.content is not None and not known.hashed and version != known.pinned:
        generations.add(known.generation + 1)  # nobody could tell that they are the same
    for generation in generations:
        for hashed in (True, False):
            after = replace(known, pinned=version, content=content, generation=generation, state="ready", failure="")
            yield Outcome("", replace(after, hashed=hashed or known.hashed))


def failed(known: Known, reason: str) -> Known:
    return replace(known, state="failed", failure=reason, spoiled=False)


def given_back(known: Known) -> Known:
    return replace(known, state="registered", failure="", spoiled=False)


def _is_expected(expected: str, content: str) -> bool:
    return expected in (CONTENTS[content].digest, CONTENTS[content].file_digest)


# --- evict and verify -------------------------------------------------------


def _verify(known: Known) -> Outcome:
    if known.spoiled:
        return Outcome("SEGMENT_CORRUPT", failed(known, "SEGMENT_CORRUPT"))
    return Outcome("" if known.state in ("ready", "evicting") else "NOT_RESIDENT", known)


def _evict(known: Known, call: Evict, world: World) -> Iterator[Outcome]:
    leased = {True, False} if world.leased is None else {call.artifact_id in world.leased}
    if known.state != "ready":
        yield Outcome("", known)
        return
    for is_leased in leased:
        if not is_leased:
            yield Outcome("", given_back(known))
        elif call.drain:
            yield Outcome("", replace(known, state="evicting"))
        else:
            yield Outcome("LEASED", known)
