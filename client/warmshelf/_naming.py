"""Aliases of artifacts: the part of a ``Shelf`` that sets, moves back and lists them."""

from __future__ import annotations

from abc import ABC, abstractmethod

from warmshelf._channel import Deadline
from warmshelf._fleet import alias_from_proto
from warmshelf.session import Link
from warmshelf.types import Alias, check_id
from warmshelf.v1 import alias_pb2

_Aliases = list[Alias]


class Naming(ABC):
    """What aliases mean."""

    @abstractmethod
    def _current(self) -> Link:
        """Return this process's link to the daemon."""

    @abstractmethod
    def _deadline(self, timeout: float | None = None) -> Deadline:
        """Return when a call must have ended."""

    def set_alias(self, name: str, artifact_id: str, *, expect: str | None = None) -> Alias:
        """Make an alias mean an artifact, if it means ``expect`` now; None: if there is no such alias yet.

        ``acquire`` and ``load`` take the alias as an ID. Whoever holds what it meant keeps that.

        Raises:
            AliasMoved: it means something else.
            RegistryUnavailable: a registry that nodes share is not in reach.
        """
        request = alias_pb2.SetAliasRequest(
            name=check_id(name),
            artifact_id=check_id(artifact_id),
            expected_artifact_id=check_id(expect) if expect else "",
        )
        connection = self._current().connection
        return alias_from_proto(connection.unary(connection.aliases.SetAlias, request, self._deadline()).alias)

    def roll_back_alias(self, name: str) -> Alias:
        """Make an alias mean again what it meant before its last move."""
        request = alias_pb2.RollBackAliasRequest(name=check_id(name))
        connection = self._current().connection
        return alias_from_proto(connection.unary(connection.aliases.RollBackAlias, request, self._deadline()).alias)

    def remove_alias(self, name: str, *, expect: str | None = None) -> None:
        """Forget an alias, if it means ``expect`` now; None: whatever it means. What it meant stays.

        Raises:
            ArtifactNotFound: there is no such alias.
            AliasMoved: it means something else.
            RegistryUnavailable: a registry that nodes share is not in reach.
        """
        expected = check_id(expect) if expect else ""
        request = alias_pb2.RemoveAliasRequest(name=check_id(name), expected_artifact_id=expected)
        connection = self._current().connection
        connection.unary(connection.aliases.RemoveAlias, request, self._deadline())

    def aliases(self) -> _Aliases:
        """Return all aliases by name, each with its history."""
        connection = self._current().connection
        answer = connection.unary(connection.aliases.ListAliases, alias_pb2.ListAliasesRequest(), self._deadline())
        return [alias_from_proto(message) for message in answer.aliases]
