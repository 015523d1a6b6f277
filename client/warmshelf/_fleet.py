"""Between protobuf and what nodes of a fleet share, both ways, for client and daemon. Knows no gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timezone
from typing import Any

from warmshelf.errors import Internal
from warmshelf.types import Alias, AliasMove, Change, ChangeKind, Node, Resident, Sync, SyncState
from warmshelf.v1 import alias_pb2, artifact_pb2, residency_pb2

_SYNC_NUMBERS: dict[SyncState, Any] = {
    state: artifact_pb2.SyncState.Value(f"SYNC_STATE_{state.name}") for state in SyncState
}
_SYNCS = {int(number): state for state, number in _SYNC_NUMBERS.items()}


def sync_to_proto(sync: Sync) -> artifact_pb2.Sync:
    """Return the wire's form."""
    return artifact_pb2.Sync(state=_SYNC_NUMBERS[sync.state], reason=sync.reason)


def sync_from_proto(message: artifact_pb2.Sync) -> Sync | None:
    """Return how far others know; None for a state of a newer daemon."""
    state = _SYNCS.get(message.state)
    return None if state is None else Sync(state, message.reason)


def alias_to_proto(alias: Alias) -> alias_pb2.Alias:
    """Return the wire's form."""
    message = alias_pb2.Alias(name=alias.name)
    for move in alias.history:
        message.history.add(artifact_id=move.artifact_id).move_time.FromDatetime(move.move_time)
    return message


def alias_from_proto(message: alias_pb2.Alias) -> Alias:
    """Return the alias; one that means nothing is none."""
    if not message.history:
        raise Internal("the other side sent an alias that means nothing")
    moves = (AliasMove(one.artifact_id, one.move_time.ToDatetime(tzinfo=timezone.utc)) for one in message.history)
    return Alias(message.name, tuple(moves))


def alias_change(sequence: int, message: alias_pb2.Alias) -> Change:
    """Return what a watch told of an alias."""
    alias = alias_from_proto(message)
    return Change(sequence, ChangeKind.ALIAS, artifact_id=alias.artifact_id, alias=alias)


def node_to_proto(node: Node) -> residency_pb2.Node:
    """Return the wire's form."""
    return residency_pb2.Node(node_id=node.node_id, name=node.name, zone=node.zone, address=node.address)


def node_from_proto(message: residency_pb2.Node) -> Node:
    """Return the node."""
    return Node(message.node_id, message.name, message.zone, message.address)


def resident_to_proto(resident: Resident) -> residency_pb2.Resident:
    """Return the wire's form."""
    return residency_pb2.Resident(
        node_id=resident.node.node_id,
        artifact_id=resident.artifact_id,
        digest=resident.digest,
        size_bytes=resident.size_bytes,
        pinned=resident.pinned,
        keep_resident=resident.keep_resident,
    )


def resident_from_proto(message: residency_pb2.Resident, nodes: Mapping[str, Node]) -> Resident:
    """Return what is resident, given the nodes by their IDs."""
    node = named(message.node_id, nodes)
    return Resident(
        node, message.artifact_id, message.digest, message.size_bytes, message.pinned, message.keep_resident
    )


def named(node_id: str, nodes: Mapping[str, Node]) -> Node:
    """Return the node that an ID means, given the nodes by their IDs."""
    node = nodes.get(node_id)
    if node is None:
        raise Internal("the other side told something of a node that it did not name")
    return node
