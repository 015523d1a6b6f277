"""Where the daemon is killed: every failpoint, what brings it there, and what must be true of it afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """One place.

    Attributes:
        deed: the method of ``Deeds`` that brings the daemon there; "start": none, it dies while it starts.
        hits_max: at which of its hits it is killed at most; the seed chooses.
        is_sealed: whether the deed's artifact must be resident afterwards, though nobody was told.
        is_quiet: whether only the deed brings the daemon there, not the workers and not a look at it.
    """

    deed: str
    hits_max: int = 1
    is_sealed: bool = False
    is_quiet: bool = True


_LOAD = Point("load_base")
_SEALED = Point("load_any", is_sealed=True)
_PUSH = Point("push")
_START = Point("start", is_quiet=False)
_READ = Point("read", hits_max=3, is_quiet=False)
_COMMIT = Point("load_base", hits_max=3, is_quiet=False)
_ADOPT = Point("start", hits_max=4, is_quiet=False)

ANYWHERE = "anywhere"
"""No failpoint: killed from outside at a moment that the seed chooses."""

POINTS: Mapping[str, Point] = {
    "load.started": _LOAD,
    "load.examined": _LOAD,
    "load.reserved": _LOAD,
    "load.created": _LOAD,
    "load.part": _LOAD,
    "load.allocated": _LOAD,
    "load.read": Point("load_any"),
    "load.shared": Point("load_twin"),
    "load.verified": Point("load_any"),
    "load.described": _LOAD,
    "load.frozen": _LOAD,
    "load.sealed": Point("load_any"),
    "load.recorded": Point("load_any"),
    "load.pinned": Point("load_any"),
    "load.published": _SEALED,
    "load.ready": _SEALED,
    "load.landed": _SEALED,
    "load.aborted": Point("load_refused"),
    "register.inspected": Point("load_any"),
    "register.recorded": Point("load_any"),
    "replace.begun": Point("replace"),
    "replace.recorded": Point("replace"),
    "move.recorded": Point("move"),
    "commit.begun": _COMMIT,
    "commit.done": _COMMIT,
    "digest.computed": Point("load_base", is_quiet=False),
    "digest.recorded": Point("load_base", is_quiet=False),
    "evict.chosen": Point("evict"),
    "evict.unlinked": Point("evict"),
    "remove.recorded": Point("remove"),
    "remove.unlinked": Point("remove"),
    "adopt.cleaned": _START,
    "adopt.segment": _ADOPT,
    "adopt.taken": _ADOPT,
    "adopt.checked": _ADOPT,
    "claim.opened": _READ,
    "claim.granted": _READ,
    "claim.ended": _READ,
    "claim.closed": Point("read", is_quiet=False),
    "stream.chunk": Point("read", hits_max=9, is_quiet=False),
    "stream.sent": _READ,
    "push.begun": _PUSH,
    "push.chunk": Point("push", hits_max=4),
    "push.written": Point("push", hits_max=4),
    "push.proven": _PUSH,
    "push.stored": _PUSH,
    "push.kept": _PUSH,
    "push.registered": _PUSH,
    ANYWHERE: Point("anything", is_quiet=False),
}


def chain(names: list[str]) -> list[str]:
    """Put points into an order in which a daemon that may be looked at follows often enough.

    A daemon that is to die at a point that is not quiet cannot be looked at before it
    does, so what the one before it left is looked at one start later.
    """
    loud = [name for name in names if not POINTS[name].is_quiet]
    quiet = [name for name in names if POINTS[name].is_quiet]
    step = max(1, len(quiet) // (len(loud) + 1))
    ordered = []
    for name in loud:
        ordered += [*quiet[:step], name]
        quiet = quiet[step:]
    return ordered + quiet
