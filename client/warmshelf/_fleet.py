"""Between protobuf and what nodes of a fleet share, both ways, for client and daemon. Knows no gRPC."""

from __future__ import annotations

from typing import Any

from warmshelf.types import Sync, SyncState
from warmshelf.v1 import artifact_pb2

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
