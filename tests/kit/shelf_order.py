"""Explains what several callers were told at once: is there an order of their calls in which the model says the same?

For every ID all the states are kept that fit what has been seen so far, mostly one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from kit.shelf_model import (
    FULL,
    Acquire,
    Call,
    Evict,
    Known,
    Load,
    Maybe,
    Register,
    Remove,
    Verify,
    World,
    failed,
    given_back,
    outcomes,
)
from kit.source_files import CONTENTS
from warmshelf.types import Artifact


@dataclass(frozen=True)
class Told:
    """What the caller was told. ``is_open``: nothing, so it may have happened or not."""

    reason: str = ""
    generation: int = 0
    content: str | None = None
    is_open: bool = False


def ends(
    starts: Iterable[Maybe], calls: Sequence[tuple[Call, Told]], worlds: Sequence[World], *, alone: bool
) -> frozenset[Maybe]:
    """Return every state in which the artifact can be after these calls, in any order that explains the answers.

    With several worlds, each call may have met any of them.
    """
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
            afters = (after for world in worlds for after in _afters(known, *calls[i], world, calls, alone=alone))
            stack += [(after, rest - {i}) for after in afters]
    return frozenset(found)


def _afters(
    known: Maybe, call: Call, told: Told, world: World, calls: Sequence[tuple[Call, Told]], *, alone: bool
) -> Iterator[Maybe]:
    if not alone and told.reason in _interrupted(call, [other for other, _ in calls]):
        yield known
    if known and known.state == "failed" and isinstance(call, (Acquire, Load)) and _may_be_stopped(told):
        yield given_back(known)  # a load that was stopped leaves no failure, not even an older one
    if known and isinstance(call, Verify) and told.reason == known.failure == "SEGMENT_CORRUPT":
        yield known  # two looked at once and both found it
    for outcome in outcomes(known, call, world):
        same = (outcome.reason, outcome.generation, outcome.content) == (told.reason, told.generation, told.content)
        if told.is_open or same:
            yield outcome.after
        if told.reason == "INTERNAL" and isinstance(call, (Acquire, Load)) and outcome.after is not None:
            yield failed(outcome.after, told.reason)  # a failpoint failed the load


def _may_be_stopped(told: Told) -> bool:
    return told.is_open or told.reason in (*FULL, "LOAD_CANCELLED")


def _drift(known: Maybe) -> Iterator[Known]:
    """What others may do to an artifact meanwhile: take its room, release the last lease it waits for, check it."""
    if known is not None and known.state in ("ready", "evicting"):
        yield given_back(known)
        if known.spoiled:
            yield failed(known, "SEGMENT_CORRUPT")


def _interrupted(call: Call, together: Sequence[Call]) -> set[str]:
    """Return the errors by which a call may fail only because of those beside it."""
    if isinstance(call, Evict):
        return {"LEASED"}  # it is being loaded
    if not isinstance(call, (Acquire, Load)):
        return set()
    stops = any(isinstance(other, (Register, Remove, Load)) for other in together if other is not call)
    return {*FULL, *(["LOAD_CANCELLED"] if stops else [])}


def after_death(known: Maybe, *, is_sure: bool) -> frozenset[Maybe]:
    """Return what the next daemon can find: what was resident, and bytes given back that another ID still shares.

    ``is_sure``: nothing was under way and all of it still fits.
    """
    if known is None:
        return frozenset([None])
    registered, ready = given_back(known), replace(known, state="ready", failure="")
    if known.state in ("ready", "evicting") and is_sure:
        return frozenset([ready])
    return frozenset([registered, ready] if known.content else [registered])


def ahead(known: Maybe, call: Call, world: World) -> Iterator[Known]:
    """Return what the registry may hold of an artifact after a load that did not end: what it would have brought."""
    if isinstance(call, (Acquire, Load)):
        for outcome in outcomes(known, Load(call.artifact_id), world):
            if not outcome.reason and outcome.after is not None:
                yield given_back(outcome.after)


def fits(known: Maybe, artifact: Artifact | None) -> bool:
    """Say whether an artifact as it is shown can be this one."""
    if known is None or artifact is None or known.spoiled:
        return known is None and artifact is None
    source, failure = artifact.spec.source, artifact.failure
    digest = CONTENTS[known.content].digest if known.hashed and known.content else ""
    return (
        source.uri.endswith(f"/{known.file}")
        and (source.expected_digest, artifact.digest) == (known.expected, digest)
        and (artifact.keep_resident, artifact.follow) == (known.keep, known.follow)
        and (artifact.generation, artifact.state.value) == (known.generation, known.state)
        and (failure.reason if failure else "") == known.failure
    )
