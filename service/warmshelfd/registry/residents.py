"""What nodes tell each other of what they have resident, as values of a store that others can write to. Pure.

A value is ``REVISION ZLIB``: a word that is another one whenever the value is, and lines of
text, compressed. The first line has the node, and whether it has more resident than it tells;
each other one an artifact, by ID: ``ID DIGEST SIZE FLAGS``. Lines, because a
hundred thousand of them can be looked through without being made into objects, and reading
them never keeps other threads waiting. Reading trusts nothing.
"""

from __future__ import annotations

import ipaddress
import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from warmshelf.digest import check_digest
from warmshelf.errors import InvalidId, InvalidSpec
from warmshelf.types import Node, Resident, check_id
from warmshelfd.registry.fields import BadRecord
from warmshelfd.registry.folded import folded, unfolded

RESIDENTS_MAX = 10_000
"""Most artifacts that a node tells of, the last used first; they take some 500 KB in the store."""

VALUE_BYTES_MAX = 1 << 20
"""Longest value; whose IDs are so long that it would be longer tells of fewer."""

TEXT_BYTES_MAX = 4 << 20
"""Longest text that a value may unfold to: the most artifacts, each with the longest ID."""

REVISION_BYTES_MAX = 40
"""Longest revision."""

NODES_MAX = 1024
"""Most nodes that are looked at."""

KEPT_BYTES_MAX = 64 << 20
"""Most text that is kept of all nodes together: half a million artifacts. Nodes beyond it are left out."""

LIFE_SECONDS = 20
"""How long the store keeps a node's value after its last heartbeat."""

_VALUE = re.compile(rb"([0-9a-f-]{1,40}) (.+)", re.DOTALL)
_NODE_ID = re.compile(r"[0-9a-f]{16}")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_LINE = re.compile(r"(?P<id>\S{1,255}) (?P<digest>\S{1,80}) (?P<size>0|[1-9][0-9]{0,17}) (?P<flags>-|p?k?)")
_NONE = "-"  # stands for an empty word
_PORT_MAX = 65535


@dataclass(frozen=True, slots=True)
class NodeResidents:
    """What one node tells.

    Attributes:
        node: which.
        lines: its artifacts by ID, each line as it was checked.
        is_cut: it has more resident.
        size_bytes: what keeping it takes.
    """

    node: Node
    lines: Sequence[str] = ()
    is_cut: bool = False
    size_bytes: int = 0

    @classmethod
    def of(cls, node: Node, residents: Iterable[Resident]) -> NodeResidents:
        """Return what a node has, given its artifacts by ID."""
        return cls(node, list(map(_line, residents)))

    def find(self, artifact_id: str) -> Resident | None:
        """Return what the node says of an artifact, if it has it."""
        return next((one for one in self.after(artifact_id, is_included=True) if one.artifact_id == artifact_id), None)

    def with_digest(self, digest: str) -> Resident | None:
        """Return an artifact of this content, if the node has one."""
        mark = f" {digest} "
        return next((_resident(self.node, line) for line in self.lines if mark in line), None)

    def after(self, artifact_id: str, *, is_included: bool = False) -> Iterator[Resident]:
        """Return the artifacts after an ID."""
        start = bisect_right(self.lines, artifact_id, key=_id_of)
        if is_included and start and _id_of(self.lines[start - 1]) == artifact_id:
            start -= 1
        return (_resident(self.node, self.lines[index]) for index in range(start, len(self.lines)))


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look at the store found.

    Attributes:
        nodes: by node ID: the revision, and what the node tells; None where that is of no use.
        is_partial: there is more than was read.
        bad_count: values that are no node's, which were not known yet.
    """

    nodes: Mapping[str, tuple[str, NodeResidents | None]] = field(default_factory=dict)
    is_partial: bool = False
    bad_count: int = 0


class ResidentStore(ABC):
    """Where nodes tell it. Blocking; of one thread. Every method may raise ``StoreAwayError``."""

    @abstractmethod
    def publish(self, node_id: str, value: bytes) -> None:
        """Tell what this node has, for ``LIFE_SECONDS``."""

    @abstractmethod
    def beat(self, node_id: str, *, again: bool) -> bool:
        """Let it be known that what this node told still holds; say False if the store has lost it.

        ``again``: also that the node is there, should only that have been lost.
        """

    @abstractmethod
    def leave(self, node_id: str) -> None:
        """Take back what this node told."""

    @abstractmethod
    def look(self, known: Mapping[str, tuple[str, NodeResidents | None]]) -> Seen:
        """Return what all nodes tell; what is known under its revision already is not read again."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection. Idempotent."""


class StoreAwayError(Exception):
    """The store cannot be used now; ``reason`` is a word for the metric."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


# --- writing ----------------------------------------------------------------


def to_value(revision: str, node: Node, residents: Sequence[Resident]) -> tuple[bytes, int]:
    """Return the value to store, given the most important first, and of how many artifacts it tells."""
    count = min(len(residents), RESIDENTS_MAX)
    while True:
        text = _text(node, residents[:count], is_cut=count < len(residents))
        value = f"{revision} ".encode() + folded(text)
        if len(value) <= VALUE_BYTES_MAX:
            return value, count
        count //= 2


def _text(node: Node, residents: Iterable[Resident], *, is_cut: bool) -> str:
    head = f"{node.name} {node.zone or _NONE} {node.address or _NONE} {'cut' if is_cut else 'all'}"
    return "\n".join((head, *sorted(map(_line, residents), key=_id_of)))


def _line(resident: Resident) -> str:
    flags = "p" * resident.pinned + "k" * resident.keep_resident
    return f"{resident.artifact_id} {resident.digest or _NONE} {resident.size_bytes} {flags or _NONE}"


# --- reading ----------------------------------------------------------------


def is_node_id(text: str) -> bool:
    """Say whether a text is a node's ID."""
    return _NODE_ID.fullmatch(text) is not None


def check_name(text: str) -> str:
    """Return a node's name or zone.

    Raises:
        ValueError: it is none.
    """
    if not _NAME.fullmatch(text):
        raise ValueError("a name is of letters, digits, '.', '_' and '-', at most 253")
    return text


def split_address(text: str) -> tuple[str, int]:
    """Return the IP address and the port of ``IP:PORT``, with an IPv6 address in brackets.

    Raises:
        ValueError: it is something else, such as a host's name.
    """
    host, colon, port = text.rpartition(":")
    is_v6 = host.startswith("[") and host.endswith("]")
    ip = ipaddress.IPv6Address(host[1:-1]) if is_v6 else ipaddress.IPv4Address(host)
    if not colon or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) <= _PORT_MAX or "%" in host:
        raise ValueError("an address is IP:PORT")
    return str(ip), int(port)


def revision_of(value: bytes) -> str:
    """Return the revision that the beginning of a value says; "" if it is no value of ours."""
    match = _VALUE.match(value)
    return match[1].decode("ascii") if match else ""


def from_value(node_id: str, value: bytes) -> NodeResidents:
    """Return what a value tells.

    Raises:
        BadRecord: nothing that can be used.
    """
    match = _VALUE.fullmatch(value)
    if match is None or len(value) > VALUE_BYTES_MAX:
        raise BadRecord("is no value of a node")
    text = unfolded(match[2], TEXT_BYTES_MAX)
    head, *lines = text.split("\n")
    match head.split(" "):
        case [name, zone, address, ("cut" | "all") as told] if len(lines) <= RESIDENTS_MAX:
            node = _node(node_id, name, zone, address)
        case _:
            raise BadRecord("does not begin as a node's value")
    _check_lines(lines)
    return NodeResidents(node, lines, told == "cut", 2 * len(text))


def _node(node_id: str, name: str, zone: str, address: str) -> Node:
    try:
        zone, address = zone.removeprefix(_NONE), address.removeprefix(_NONE)
        if address:
            split_address(address)
        return Node(node_id, check_name(name), check_name(zone) if zone else "", address)
    except ValueError as error:
        raise BadRecord(f"names no node: {error}") from None


def _check_lines(lines: Sequence[str]) -> None:
    last = ""
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None or match["id"] <= last:
            raise BadRecord("has a line that is none, or not in order")
        last = match["id"]
        try:
            check_id(last)
            if match["digest"] != _NONE:
                check_digest(match["digest"])
        except (InvalidId, InvalidSpec):
            raise BadRecord("has a line without ID or digest") from None


def _resident(node: Node, line: str) -> Resident:
    artifact_id, digest, size, flags = line.split(" ")
    return Resident(node, artifact_id, digest.removeprefix(_NONE), int(size), "p" in flags, "k" in flags)


def _id_of(line: str) -> str:
    return line.partition(" ")[0]
