"""What a shelf may answer, and what must be true of it afterwards: the contract as a small non-deterministic machine.

An oracle: it shares no code with what it judges. For every ID it keeps all the states
that fit what has been seen so far, mostly one. ``outcomes`` says how one call can end;
calls that were under way together are explained by some order of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kit.source_files import CONTENTS, Look
from warmshelf.types import Artifact

State = Literal["registered", "ready", "evicting", "failed"]
Room = Literal["must", "may", "cannot"]
"""Whether a load of this artifact finds room in the arena."""

BROKEN = ("SOURCE_TRUNCATED", "MALFORMED_ARTIFACT")
FULL = ("ARENA_FULL", "DEADLINE_EXCEEDED")


@dataclass(frozen=True)
class Known:
    """One artifact.

    ``pinned`` is the version of the file that it is pinned to, 0 if none; ``content`` is
    that of its generation, once it was loaded; ``hashed``: its digest is known.
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
    pass


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
    """

    looks: Mapping[str, Look]
    budget_bytes: int
    room: Mapping[str, Room]
    leased: frozenset[str] | None

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
        yield from _load_call(known, call, world)
    elif isinstance(call, Evict):
        yield from _evict(known, call, world)
    elif isinstance(call, Remove):
        yield Outcome("", None)
    elif isinstance(call, Verify):
        yield Outcome("" if known.state in ("ready", "evicting") else "NOT_RESIDENT", known)


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
    return replace(
        known, pinned=look.version, generation=generation, content=None, hashed=False, state="registered", failure=""
    )


def _unreadable(look: Look) -> tuple[str, ...]:
    return BROKEN if look.exists else ("SOURCE_NOT_FOUND",)


# --- load and acquire -------------------------------------------------------


def _acquire(known: Known, call: Acquire, world: World) -> Iterator[Outcome]:
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


def _load(known: Known, call: Call, world: World) -> Iterator[Outcome]:
    look, room = world.look(known.file), world.room.get(call.artifact_id, "may")
    reasons = set(_load_faults(known, look, world.budget_bytes))
    yield from (Outcome(reason, _failed(known, reason)) for reason in reasons)
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
    if CONTENTS[look.content].size_bytes > budget_bytes:
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


def _failed(known: Known, reason: str) -> Known:
    return replace(known, state="failed", failure=reason)


def _is_expected(expected: str, content: str) -> bool:
    return expected in (CONTENTS[content].digest, CONTENTS[content].file_digest)


# --- evict ------------------------------------------------------------------


def _evict(known: Known, call: Evict, world: World) -> Iterator[Outcome]:
    leased = {True, False} if world.leased is None else {call.artifact_id in world.leased}
    if known.state != "ready":
        yield Outcome("", known)
        return
    for is_leased in leased:
        if not is_leased:
            yield Outcome("", replace(known, state="registered"))
        elif call.drain:
            yield Outcome("", replace(known, state="evicting"))
        else:
            yield Outcome("LEASED", known)


# --- explaining -------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """What the caller was told. ``is_open``: nothing, so it may have happened or not."""

    reason: str = ""
    generation: int = 0
    content: str | None = None
    is_open: bool = False


def ends(starts: Iterable[Maybe], calls: Sequence[tuple[Call, Told]], world: World, *, alone: bool) -> frozenset[Maybe]:
    """Return every state in which the artifact can be after these calls, in any order that explains the answers."""
    found: set[Maybe] = set()
    seen: set[tuple[Maybe, frozenset[int]]] = set()
    stack = [(start, frozenset(range(len(calls)))) for start in starts]
    while stack:
        place = stack.pop()
        if place in seen:
            continue
        seen.add(place)
        known, rest = place
        if all(calls[i][1].is_open for i in rest):
            found.add(known)
        if not alone:
            stack += [(drifted, rest) for drifted in _drift(known)]
        for i in rest:
            stack += [(after, rest - {i}) for after in _afters(known, *calls[i], world, calls, alone=alone)]
    return frozenset(found)


def _afters(
    known: Maybe, call: Call, told: Told, world: World, calls: Sequence[tuple[Call, Told]], *, alone: bool
) -> Iterator[Maybe]:
    if not alone and told.reason in _interrupted(call, [other for other, _ in calls]):
        yield known
    for outcome in outcomes(known, call, world):
        same = (outcome.reason, outcome.generation, outcome.content) == (told.reason, told.generation, told.content)
        if told.is_open or same:
            yield outcome.after
        if told.reason == "INTERNAL" and isinstance(call, (Acquire, Load)) and outcome.after is not None:
            yield _failed(outcome.after, told.reason)  # a failpoint failed the load


def _drift(known: Maybe) -> Iterator[Known]:
    """What others may do to an artifact meanwhile: take its room, or release the last lease it waits for."""
    if known is not None and known.state in ("ready", "evicting"):
        yield replace(known, state="registered")


def _interrupted(call: Call, together: Sequence[Call]) -> set[str]:
    """Return the errors by which a call may fail only because of those beside it."""
    if isinstance(call, Evict):
        return {"LEASED"}  # it is being loaded
    if not isinstance(call, (Acquire, Load)):
        return set()
    stops = any(isinstance(other, (Register, Remove, Load)) for other in together if other is not call)
    return {*FULL, *(["LOAD_CANCELLED"] if stops else [])}


def after_death(known: Maybe, *, was_busy: bool) -> frozenset[Maybe]:
    """Return what the next daemon can find: what was resident, and bytes given back that another ID still shares."""
    if known is None:
        return frozenset([None])
    registered, ready = replace(known, state="registered", failure=""), replace(known, state="ready", failure="")
    if known.state in ("ready", "evicting") and not was_busy:
        return frozenset([ready])
    return frozenset([registered, ready] if known.content else [registered])


def ahead(known: Maybe, call: Call, world: World) -> Iterator[Known]:
    """Return what the registry may hold of an artifact after a load that did not end: all that it would have brought."""
    if isinstance(call, (Acquire, Load)):
        for outcome in outcomes(known, Load(call.artifact_id), world):
            if not outcome.reason and outcome.after is not None:
                yield replace(outcome.after, state="registered", failure="")


def fits(known: Maybe, artifact: Artifact | None) -> bool:
    """Say whether an artifact as it is shown can be this one."""
    if known is None or artifact is None:
        return known is None and artifact is None
    source, failure = artifact.spec.source, artifact.failure
    digest = CONTENTS[known.content].digest if known.hashed and known.content else ""
    return (
        source.uri.endswith(f"/{known.file}.safetensors")
        and (source.expected_digest, artifact.digest) == (known.expected, digest)
        and (artifact.keep_resident, artifact.follow) == (known.keep, known.follow)
        and (artifact.generation, artifact.state.value) == (known.generation, known.state)
        and (failure.reason if failure else "") == known.failure
    )
