"""What nodes tell each other of what they have resident, in Redis. Blocking; knows no thread and no catalog.

Each node has a key of its own that expires, and its ID stands in one set. Whoever looks
reads the set, the first bytes of each node's value, and the rest where that has changed.
Nothing is read in full that may be longer than a value is.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from warmshelfd.redis_wire import Command, RedisWire, Reply
from warmshelfd.registry.fields import BadRecord
from warmshelfd.registry.redis_errand import Errand
from warmshelfd.registry.redis_link import OPERATION_SECONDS, TAG, Link, exchange
from warmshelfd.registry.residents import (
    KEPT_BYTES_MAX,
    LIFE_SECONDS,
    NODES_MAX,
    REVISION_BYTES_MAX,
    VALUE_BYTES_MAX,
    NodeResidents,
    ResidentStore,
    Seen,
    from_value,
    is_node_id,
    revision_of,
)

NODES = TAG + b":nodes"
"""The set of nodes that say what belongs to no tenant."""

_READ_COUNT = 4
"""Values of one exchange: at most 4 MiB, which a healthy server sends within its time."""

_LOOK_SECONDS_MAX = 5.0
"""Longest look: what a slow server has not sent by then is left out, and read by the next one."""

_Known = Mapping[str, "tuple[str, NodeResidents | None]"]


class RedisResidents(ResidentStore):
    """The exchanges, on a connection of their own that is made when it is needed."""

    def __init__(self, link: Link) -> None:
        self._errand = Errand(link)
        self._space = link.space
        self._nodes = link.space + b":nodes"

    def publish(self, node_id: str, value: bytes) -> None:
        """As the interface says."""
        commands = [
            [b"SET", self._key(node_id), value, b"EX", b"%d" % LIFE_SECONDS],
            [b"SADD", self._nodes, node_id.encode()],
        ]
        self._errand.run(lambda wire: exchange(wire, commands, REVISION_BYTES_MAX))

    def beat(self, node_id: str, *, again: bool) -> bool:
        """As the interface says."""
        commands = [[b"EXPIRE", self._key(node_id), b"%d" % LIFE_SECONDS]]
        if again:
            commands.append([b"SADD", self._nodes, node_id.encode()])
        return self._errand.run(lambda wire: exchange(wire, commands, REVISION_BYTES_MAX))[0] == 1

    def leave(self, node_id: str) -> None:
        """As the interface says."""
        commands = [[b"DEL", self._key(node_id)], [b"SREM", self._nodes, node_id.encode()]]
        self._errand.run(lambda wire: exchange(wire, commands, REVISION_BYTES_MAX))

    def look(self, known: _Known) -> Seen:
        """As the interface says."""
        return self._errand.run(lambda wire: _look(wire, self._space, known))

    def _key(self, node_id: str) -> bytes:
        return _key(self._space, node_id)

    def close(self) -> None:
        """As the interface says."""
        self._errand.close()


def _look(wire: RedisWire, space: bytes, known: _Known) -> Seen:
    all_nodes = space + b":nodes"
    (members,) = exchange(wire, [[b"SRANDMEMBER", all_nodes, b"%d" % NODES_MAX]], REVISION_BYTES_MAX)
    names = [one.decode("latin-1") for one in members if isinstance(one, bytes)] if isinstance(members, list) else []
    node_ids = sorted(filter(is_node_id, names))
    bad_count = (len(members) if isinstance(members, list) else 1) - len(node_ids)
    heads = _each(wire, ([b"GETRANGE", _key(space, node_id), b"0", b"%d" % REVISION_BYTES_MAX] for node_id in node_ids))
    there = {node_id: head for node_id, head in zip(node_ids, heads, strict=True) if head != b""}
    if gone := [node_id.encode() for node_id in node_ids if node_id not in there]:
        exchange(wire, [[b"SREM", all_nodes, *gone]], REVISION_BYTES_MAX)  # who lives adds itself again
    nodes: dict[str, tuple[str, NodeResidents | None]] = {}
    changed = []
    for node_id, head in there.items():
        revision = revision_of(head) if isinstance(head, bytes) else ""
        if node_id in known and known[node_id][0] == revision:
            nodes[node_id] = known[node_id]
        elif revision:
            changed.append(node_id)
        else:
            nodes[node_id] = ("", None)
            bad_count += 1
    return _read(wire, space, changed, nodes, bad_count, is_partial=len(node_ids) >= NODES_MAX)


def _read(
    wire: RedisWire,
    space: bytes,
    node_ids: Sequence[str],
    nodes: dict[str, tuple[str, NodeResidents | None]],
    bad_count: int,
    *,
    is_partial: bool,
) -> Seen:
    """Read what has changed, as far as there is room for it."""
    until = time.monotonic() + _LOOK_SECONDS_MAX
    kept_bytes = sum(told.size_bytes for _, told in nodes.values() if told is not None)
    for start in range(0, len(node_ids), _READ_COUNT):
        if time.monotonic() > until:
            return Seen(nodes, True, bad_count)
        some = node_ids[start : start + _READ_COUNT]
        values = _each(wire, ([b"GETRANGE", _key(space, node_id), b"0", b"%d" % VALUE_BYTES_MAX] for node_id in some))
        for node_id, value in zip(some, values, strict=True):
            revision, told = _told(node_id, value)
            bad_count += told is None
            if told is not None and kept_bytes + told.size_bytes > KEPT_BYTES_MAX:
                revision, told, is_partial = "", None, True
            kept_bytes += told.size_bytes if told is not None else 0
            nodes[node_id] = (revision, told)
    return Seen(nodes, is_partial, bad_count)


def _told(node_id: str, value: Reply) -> tuple[str, NodeResidents | None]:
    if not isinstance(value, bytes):
        return "", None
    try:
        return revision_of(value), from_value(node_id, value)
    except BadRecord:
        return revision_of(value), None


def _each(wire: RedisWire, commands: Iterable[Command]) -> list[Reply]:
    """Return the reply to each command, where an error is that of its key alone."""
    sent = list(commands)
    if not sent:
        return []
    wire.allow(OPERATION_SECONDS)
    wire.send(sent)
    replies: list[Reply] = []
    for _ in sent:
        replies.append(wire.reply(VALUE_BYTES_MAX + 1))
        wire.allow(OPERATION_SECONDS)
    return replies


def _key(space: bytes, node_id: str) -> bytes:
    return space + b":node:" + node_id.encode("ascii")
