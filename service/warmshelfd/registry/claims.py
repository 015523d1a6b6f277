"""What a node that begins to read a source tells the others, so that they do not all read it.

A claim is a hint and ends by itself: the store forgets it unless the node says in time that
it has come further. Knows neither loads nor the store.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass

from warmshelf.types import Node
from warmshelfd.registry.fields import BadRecord
from warmshelfd.registry.residents import is_node_id, split_address

VALUE_BYTES_MAX = 160
"""Longest claim: a node's ID, which of its loads, how far that is, and an IPv6 address with its port."""

_VALUE = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16}) ([a-z]{1,16}-[0-9]{1,12}) (\S{9,60})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Claim:
    """One node reads a source.

    Attributes:
        node_id: which.
        load: which of its loads.
        progress: another word whenever the load has come further.
        address: where the node is reached.
    """

    node_id: str
    load: str
    progress: str
    address: str

    @property
    def node(self) -> Node:
        """The node, as far as a claim tells."""
        return Node(self.node_id, self.node_id, "", self.address)

    def is_of(self, other: Claim) -> bool:
        """Say whether two claims are the same load's."""
        return (self.node_id, self.load) == (other.node_id, other.load)

    def to_value(self) -> bytes:
        """Return what is stored."""
        return f"{self.node_id}-{self.load} {self.progress} {self.address}".encode("ascii")


def from_value(value: object) -> Claim:
    """Return the claim that a stored value is.

    Raises:
        BadRecord: it is none.
    """
    match = _VALUE.fullmatch(value.decode("latin-1")) if isinstance(value, bytes) else None
    if match is None or not is_node_id(match[1]):
        raise BadRecord("is no claim")
    try:
        split_address(match[4])
    except ValueError as error:
        raise BadRecord(f"is a claim of nobody: {error}") from None
    return Claim(*match.groups())


class ClaimStore(ABC):
    """Where claims are. Blocking; of one thread. Every method may raise ``StoreAwayError``."""

    @abstractmethod
    def hold(self, name: str, mine: Claim, life_seconds: float) -> Claim:
        """Claim what has this name, or say how far it is; return the claim that stands, which may be another's.

        Of those who claim at once the store's first one has it.

        Raises:
            BadRecord: what stands there is no claim.
        """

    @abstractmethod
    def look(self, name: str) -> Claim | None:
        """Return the claim that stands, if one does; raises as ``hold``."""

    @abstractmethod
    def drop(self, name: str, mine: Claim) -> None:
        """Claim it no longer."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection. Idempotent."""
