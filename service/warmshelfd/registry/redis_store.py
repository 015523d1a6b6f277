"""The registry's keys in Redis, and each exchange about them. Blocking; knows no thread and no catalog.

One hash holds everything: a field for each ID, and ``#head``, the number of the latest
change. One capped stream names what each change was about, under the change's number. So
whoever has seen all changes up to one number can tell whether the next it reads is the
next there was; and a store that was emptied, went back or lost a key is seen from its head.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from warmshelf.types import Alias
from warmshelfd.redis_wire import Command, RedisAwayError, RedisRefusedError, RedisWire, Reply
from warmshelfd.registry.aliases import MARK
from warmshelfd.registry.base import Registration
from warmshelfd.registry.fields import BadRecord
from warmshelfd.registry.redis_link import TAG, exchange
from warmshelfd.registry.shared import (
    VALUE_BYTES_MAX,
    Change,
    Shared,
    Verdict,
    alias_to_value,
    from_value,
    judge,
    removed_at,
    revision_of,
    to_value,
    to_write,
)

REGISTRATIONS = TAG + b":registrations"
"""The hash of what belongs to no tenant."""

CHANGES_KEPT = 10_000
"""Entries of the stream, about; who was away for longer reads everything. Each takes some 60 bytes."""

READ_COUNT = 500
"""Entries or fields of one exchange: at most a few hundred KB of ours."""

REMOVED_KEPT_SECONDS = 30 * 24 * 3600
"""How long the store remembers a removal: a node that was away for longer brings the ID back."""

_HEAD = b"#head"
_TRIES_MAX = 50
"""Of a conditional write that others cross; somebody's write succeeds in every round."""

_Write = tuple[str, Callable[[int, int], bytes]]  # an ID, and its value by number and time

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of a change: the verdict, and what the store holds now (None where a write was of no use)."""

    change: Change
    verdict: Verdict
    now: Shared | None


class RedisStore:
    """The exchanges. ``on_bad`` is called for each thing in the store that is not ours to understand."""

    def __init__(self, on_bad: Callable[[], None], space: bytes = TAG) -> None:
        """``space`` is what the keys begin with."""
        self._on_bad = on_bad
        self._registrations = space + b":registrations"
        self._changes = space + b":changes"

    # --- reading ------------------------------------------------------------

    def head(self, wire: RedisWire) -> int:
        """Return the number of the latest change; 0 if the store is empty or has lost it."""
        (head,) = exchange(wire, [[b"HGET", self._registrations, _HEAD]], VALUE_BYTES_MAX)
        return int(head) if isinstance(head, bytes) and head.isdigit() and len(head) < 19 else 0  # noqa: PLR2004

    def all(self, wire: RedisWire, known: Mapping[str, int]) -> Iterator[tuple[list[str], list[Shared]]]:
        """Return all IDs in parts, and of each part what is of another revision than known; an ID may come twice."""
        cursor = b"0"
        while True:
            command = [b"HSCAN", self._registrations, cursor, b"COUNT", b"%d" % READ_COUNT]
            (reply,) = exchange(wire, [command], VALUE_BYTES_MAX)
            match reply:
                case [bytes(cursor), [*flat]] if len(flat) % 2 == 0:
                    yield self._part(zip(flat[::2], flat[1::2], strict=True), known)
                case _:
                    raise RedisAwayError("answered something else than was asked")
            if cursor == b"0":
                return

    def _part(self, pairs: Iterable[tuple[Reply, Reply]], known: Mapping[str, int]) -> tuple[list[str], list[Shared]]:
        ids, found = [], []
        for field, value in pairs:
            if field == _HEAD:
                continue
            if isinstance(field, bytes) and isinstance(value, bytes) and field.isascii():
                artifact_id = field.decode("ascii")
                if artifact_id in known and revision_of(value) == known[artifact_id]:
                    ids.append(artifact_id)
                    continue
            shared = self._read(field, value)
            if shared is not None:
                ids.append(shared.artifact_id)
                found.append(shared)
        return ids, found

    def get(self, wire: RedisWire, artifact_ids: Sequence[str]) -> list[Shared | None]:
        """Return what the store holds of some IDs."""
        fields = [artifact_id.encode("ascii") for artifact_id in artifact_ids]
        (values,) = exchange(wire, [[b"HMGET", self._registrations, *fields]], VALUE_BYTES_MAX)
        if not isinstance(values, list) or len(values) != len(fields):
            raise RedisAwayError("answered something else than was asked")
        pairs = zip(fields, values, strict=True)
        return [None if value is None else self._read(field, value) for field, value in pairs]

    def _read(self, field: Reply, value: Reply) -> Shared | None:
        try:
            if not isinstance(field, bytes) or not isinstance(value, bytes):
                raise BadRecord("is too long, or no value")
            return from_value(field.decode("ascii"), value)
        except ValueError as error:
            shown = field[:80] if isinstance(field, bytes) else field
            _log.debug("the registry's record of %r is left out (%s)", shown, error)
            self._on_bad()
            return None

    # --- the stream ---------------------------------------------------------

    def ask_changes(self, after: int, block_seconds: float | None) -> Command:
        """Return the command that waits for the changes after a number, or looks for them."""
        block = [] if block_seconds is None else [b"BLOCK", b"%d" % round(block_seconds * 1000)]
        return [b"XREAD", b"COUNT", b"%d" % READ_COUNT, *block, b"STREAMS", self._changes, b"%d-0" % after]

    def changes(self, reply: Reply) -> list[tuple[int, str]]:
        """Return number and ID of each change in a reply to ``ask_changes``; an ID is "" where it is none."""
        match reply:
            case RedisRefusedError() as error:
                raise error
            case None:
                return []
            case [[_, [*entries]]]:
                return [self._entry(entry) for entry in entries]
        raise RedisAwayError("answered something else than was asked")

    def _entry(self, entry: Reply) -> tuple[int, str]:
        match entry:
            case [bytes(number), [b"id", bytes(field)]] if number.endswith(b"-0") and field.isascii():
                return int(number[:-2]), field.decode("ascii")
            case [bytes(number), *_]:
                self._on_bad()
                return int(number.partition(b"-")[0]), ""
        raise RedisAwayError("answered something else than was asked")

    # --- writing ------------------------------------------------------------

    def write(self, wire: RedisWire, changes: Sequence[Change]) -> list[Decision]:
        """Make changes, each if what the store holds allows it, all at once.

        Raises:
            RedisRefusedError: the server refuses to write.
            RedisAwayError: others wrote in every one of many tries, or the server is away.
        """
        for _ in range(_TRIES_MAX):
            exchange(wire, [[b"WATCH", self._registrations]], 0)
            head = self.head(wire)
            currents = self.get(wire, [change.artifact_id for change in changes])
            verdicts = [judge(change, current) for change, current in zip(changes, currents, strict=True)]
            writes = [
                to_write(change, current)
                for change, current, verdict in zip(changes, currents, verdicts, strict=True)
                if verdict is Verdict.WRITE
            ]
            base = self._commit(wire, head, [(one.artifact_id, _value_of(one.registration)) for one in writes])
            if base is not None:
                written = {
                    one.artifact_id: Shared(one.artifact_id, number, one.registration)
                    for number, one in enumerate(writes, base + 1)
                }
                return [
                    Decision(change, verdict, written.get(change.artifact_id, current))
                    for change, verdict, current in zip(changes, verdicts, currents, strict=True)
                ]
        raise RedisAwayError("is written to by too many at once")

    def swap_alias(self, wire: RedisWire, name: str, before: Alias | None, after: Alias | None) -> int:
        """Write or remove an alias if the store has it as it was before; return its revision, 0 if it had not."""
        value = partial(_alias_value, after) if after else _value_of(None)
        for _ in range(_TRIES_MAX):
            exchange(wire, [[b"WATCH", self._registrations]], 0)
            head = self.head(wire)
            (current,) = self.get(wire, [MARK + name])
            if (current.alias if current else None) != before:
                exchange(wire, [[b"UNWATCH"]], 64)
                return 0
            base = self._commit(wire, head, [(MARK + name, value)])
            if base is not None:
                return base + 1
        raise RedisAwayError("is written to by too many at once")

    def begin(self, wire: RedisWire, newest: int) -> bool:
        """Give a store that has no head one, and one that went back a head above the newest number known.

        Else a number would come a second time, and who knows it from before would not read what it stands for now.
        Say whether it had none, or was behind.
        """
        is_behind = False
        while _went_back(self.head(wire), newest):
            exchange(wire, [[b"WATCH", self._registrations]], 0)
            if _went_back(self.head(wire), newest):
                self._commit(wire, 0, [], force=True)
            else:
                exchange(wire, [[b"UNWATCH"]], 0)
            is_behind = True
        return is_behind

    def forget_removals(self, wire: RedisWire, found: Iterable[Shared]) -> None:
        """Drop removals that are remembered for long enough; what became of them meanwhile stays."""
        for field in (one.artifact_id.encode("ascii") for one in found if _is_forgettable(one.removed_seconds)):
            exchange(wire, [[b"WATCH", self._registrations]], 0)
            (value,) = exchange(wire, [[b"HGET", self._registrations, field]], VALUE_BYTES_MAX)
            if not _is_forgettable(removed_at(value) if isinstance(value, bytes) else None):
                exchange(wire, [[b"UNWATCH"]], 0)
            else:
                exchange(wire, [[b"MULTI"], [b"HDEL", self._registrations, field], [b"EXEC"]], 64)

    def _commit(self, wire: RedisWire, head: int, writes: Sequence[_Write], *, force: bool = False) -> int | None:
        """Write under the numbers after ``head``, or after the one returned; None if somebody else wrote meanwhile."""
        if not writes and not force:
            exchange(wire, [[b"UNWATCH"]], 0)
            return head
        now = time.time_ns()
        commands: list[Command] = [[b"MULTI"]]
        if head == 0:  # numbers go on above those of any earlier life of the store
            head = now // 1000
            commands.append([b"DEL", self._changes])
        fields: list[bytes] = []
        for number, (artifact_id, value) in enumerate(writes, head + 1):
            field = artifact_id.encode("ascii")
            fields += [field, value(number, now // 10**9)]
            commands.append(self._announce(number, field))
        commands.append([b"HSET", self._registrations, *fields, _HEAD, b"%d" % (head + len(writes))])
        commands.append([b"EXEC"])
        done = exchange(wire, commands, 64)[-1]
        if done is None:
            return None
        if isinstance(done, list) and any(isinstance(one, RedisRefusedError) for one in done):
            self._mend(wire, done)
        return head

    def _mend(self, wire: RedisWire, done: list[Reply]) -> None:
        """Somebody put what does not belong there into the stream: it goes, and everybody reads everything again."""
        if isinstance(done[-1], RedisRefusedError):
            raise done[-1]  # not the stream's fault: nothing was written
        self._on_bad()
        exchange(wire, [[b"DEL", self._changes]], 64)

    def _announce(self, number: int, field: bytes) -> Command:
        return [b"XADD", self._changes, b"MAXLEN", b"~", b"%d" % CHANGES_KEPT, b"%d-0" % number, b"id", field]


def _is_forgettable(removed_seconds: int | None) -> bool:
    return removed_seconds is not None and removed_seconds + REMOVED_KEPT_SECONDS <= time.time()


def _went_back(head: int, newest: int) -> bool:
    """Say whether a store needs a new head. Numbers begin at the clock: one that is above it is none of ours."""
    return head == 0 or head < newest <= time.time_ns() // 1000


def _value_of(registration: Registration | None) -> Callable[[int, int], bytes]:
    return lambda number, now_seconds: to_value(number, registration, now_seconds)


def _alias_value(alias: Alias, number: int, _now_seconds: int) -> bytes:
    return alias_to_value(number, alias)
