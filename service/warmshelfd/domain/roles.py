"""Who may call what: the roles, and a row for every call that the daemon answers.

Pure. Does not know who anybody is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum


class Role(Enum):
    """What a caller is there for. An operator may do everything."""

    READER = "reader"
    REGISTRAR = "registrar"
    OPERATOR = "operator"


EVERYBODY: frozenset[Role] | None = None
"""In place of roles: whoever can connect, also without an identity."""

_OPERATORS = frozenset({Role.OPERATOR})
_READERS = _OPERATORS | {Role.READER}
_REGISTRARS = _OPERATORS | {Role.REGISTRAR}
_ALL = frozenset(Role)

CALLS: Mapping[str, frozenset[Role] | None] = {
    "warmshelf.v1.AliasService/ListAliases": _ALL,
    "warmshelf.v1.AliasService/RemoveAlias": _REGISTRARS,
    "warmshelf.v1.AliasService/RollBackAlias": _REGISTRARS,
    "warmshelf.v1.AliasService/SetAlias": _REGISTRARS,
    "warmshelf.v1.CapabilitiesService/GetCapabilities": _ALL,
    "warmshelf.v1.CapabilitiesService/GetCapacity": _ALL,
    "warmshelf.v1.CapabilitiesService/SetBudget": _OPERATORS,
    "warmshelf.v1.CatalogService/EvictArtifact": _OPERATORS,
    "warmshelf.v1.CatalogService/GetArtifact": _ALL,
    "warmshelf.v1.CatalogService/ListArtifacts": _ALL,
    "warmshelf.v1.CatalogService/LoadArtifact": _REGISTRARS,
    "warmshelf.v1.CatalogService/RegisterArtifact": _REGISTRARS,
    "warmshelf.v1.CatalogService/RegisterArtifacts": _REGISTRARS,
    "warmshelf.v1.CatalogService/RemoveArtifact": _OPERATORS,
    "warmshelf.v1.CatalogService/VerifyArtifact": _OPERATORS,
    "warmshelf.v1.CatalogService/WatchArtifacts": _ALL,  # tells what listings tell
    "warmshelf.v1.LeaseService/AcquireLease": _READERS,
    "warmshelf.v1.LeaseService/ListLeases": _OPERATORS,
    "warmshelf.v1.LeaseService/OpenSession": _READERS,
    "warmshelf.v1.LeaseService/ReleaseLease": _READERS,
    "warmshelf.v1.PushService/AbandonPush": _REGISTRARS,
    "warmshelf.v1.PushService/BeginPush": _REGISTRARS,
    "warmshelf.v1.PushService/FinishPush": _REGISTRARS,
    "warmshelf.v1.PushService/WritePush": _REGISTRARS,
    "warmshelf.v1.ResidencyService/ListResidency": _ALL,
    "warmshelf.v1.TransferService/ReadLayout": _READERS,
    "warmshelf.v1.TransferService/ReadSegment": _READERS,
    "warmshelf.v1.TransferService/ReadTensors": _READERS,
    "grpc.health.v1.Health/Check": EVERYBODY,  # a probe has no identity, and learns one bit of each service
    "grpc.health.v1.Health/Watch": EVERYBODY,
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _ALL,
}
"""The roles that each call takes. A call that is not here does not exist."""

OF_THE_NODE = frozenset({"warmshelf.v1.CapabilitiesService/SetBudget"})
"""Calls about what all tenants share: whoever belongs to one may not, whatever its role there."""


def may_call(call: str, roles: Collection[Role]) -> bool:
    """Say whether one of the roles opens a call."""
    allowed = CALLS.get(call, frozenset())
    return allowed is None or not allowed.isdisjoint(roles)
