"""What one call after another would answer: artifacts as registers with generations, and one alias.

An oracle, of which the code that it judges knows nothing. It leaves out what nobody is promised, such as
whether something is resident; sources do not change while a history runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

ALIAS = "alias"
"""The one alias; every other name is an artifact's ID."""


@dataclass(frozen=True)
class Known:
    """A registered artifact: its source, and its generation, 0 while nothing of it was loaded."""

    source: str
    generation: int = 0


Value: TypeAlias = "Known | str | None"
"""What is known of a name: an artifact, what the alias means, or nothing."""

Table: TypeAlias = "tuple[tuple[str, Value], ...]"


@dataclass(frozen=True)
class State:
    """What is known of each name, and what of it would be after a kill at the least.

    They differ by calls that a kill leaves open: others may see what such a call does before
    the registry has it.
    """

    shown: Table = ()
    kept: Table = ()

    def find(self, name: str) -> Value:
        return dict(self.shown).get(name)

    def artifact(self, name: str) -> Known | None:
        found = self.find(name)
        return found if isinstance(found, Known) else None

    @property
    def alias(self) -> str:
        found = self.find(ALIAS)
        return found if isinstance(found, str) else ""

    def with_(self, name: str, value: Value) -> State:
        return replace(self, shown=_with(self.shown, name, value))

    def kept_of(self, name: str) -> State:
        """Return the state once what is shown of a name is kept."""
        return replace(self, kept=_with(self.kept, name, self.find(name)))

    def after_kill(self) -> Iterator[State]:
        """Return what may be after a kill: of each name what was shown or what was kept."""
        tables: list[Table] = [()]
        for name in {name for name, _ in self.shown + self.kept}:
            values = {self.find(name), dict(self.kept).get(name)}
            tables = [_with(table, name, value) for table in tables for value in values]
        yield from (State(table, table) for table in tables)


def _with(table: Table, name: str, value: Value) -> Table:
    others = [(one, what) for one, what in table if one != name]
    return tuple(sorted([*others, *([] if value is None else [(name, value)])], key=lambda item: item[0]))


@dataclass(frozen=True)
class Register:
    name: str
    source: str
    replace: bool = False


@dataclass(frozen=True)
class Acquire:
    """Acquire and compare the bytes; the answer names the source whose they are."""

    name: str


@dataclass(frozen=True)
class Resolve:
    """See what the alias means: ``name``."""

    name: str


@dataclass(frozen=True)
class Get:
    name: str


@dataclass(frozen=True)
class Evict:
    name: str


@dataclass(frozen=True)
class Remove:
    name: str


@dataclass(frozen=True)
class Move:
    """Make the alias mean ``name`` if it means ``expected`` now."""

    name: str
    expected: str


@dataclass(frozen=True)
class Kill:
    """The daemon's death, and the next one's start."""

    name: str = ""


Call: TypeAlias = Register | Acquire | Resolve | Get | Evict | Remove | Move | Kill


@dataclass(frozen=True)
class Answer:
    """How a call ended: the reason of its error, or what it told."""

    reason: str = ""
    source: str = ""
    generation: int = 0


NOT_FOUND = Answer("ARTIFACT_NOT_FOUND")

CANCELLED = Answer("LOAD_CANCELLED")
"""Of an acquire whose load another call ended: it is of no effect, but there must have been such a call."""


def ends(state: State, call: Call) -> Iterator[tuple[Answer, State]]:
    """Return every answer that a call may get in a state, each with the state that it shows after it."""
    if isinstance(call, Kill):
        yield from ((Answer(), after) for after in state.after_kill())
        return
    if isinstance(call, Move):
        yield from _move(state, call)
        return
    if isinstance(call, Resolve):
        yield from ((Answer(), state) for _ in range(state.alias == call.name))
        return
    name = meant(call)
    known = state.artifact(name)
    if isinstance(call, Register):
        yield from _register(state, call, known)
    elif known is None:
        yield NOT_FOUND, state
    elif isinstance(call, Acquire):
        yield CANCELLED, state
        loaded = replace(known, generation=max(1, known.generation))
        yield Answer("", loaded.source, loaded.generation), state.with_(name, loaded)
    elif isinstance(call, Get):
        yield Answer("", known.source, known.generation), state
    elif isinstance(call, Evict):
        yield from ((Answer(reason), state) for reason in ("", "LEASED"))
    else:
        yield Answer(), state.with_(name, None)


def meant(call: Call) -> str:
    """Return the name that a call changes."""
    return ALIAS if isinstance(call, Move) else call.name


def _register(state: State, call: Register, known: Known | None) -> Iterator[tuple[Answer, State]]:
    if known is not None and known.source != call.source and not call.replace:
        yield Answer("SPEC_MISMATCH"), state
        return
    for new in _news(call, known):
        yield Answer("", new.source), state.with_(call.name, new)  # the generation told is that of its end


def _news(call: Register, known: Known | None) -> Iterator[Known]:
    if known is None:
        yield Known(call.source)
    elif known.source == call.source:
        yield known
    elif known.generation:
        yield Known(call.source, known.generation + 1)
    else:
        yield Known(call.source)
        yield Known(call.source, 2)  # somebody's load had just made the first, and went on to this one


def _move(state: State, call: Move) -> Iterator[tuple[Answer, State]]:
    is_known = state.artifact(call.name) is not None
    if not is_known:
        yield NOT_FOUND, state
    if state.alias != call.expected:
        yield Answer("ALIAS_MOVED"), state
    elif is_known:
        yield Answer(), state.with_(ALIAS, call.name)
