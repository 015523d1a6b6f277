"""What is resident on which node: the part of a ``Shelf`` that asks for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from warmshelf._channel import Deadline
from warmshelf._fleet import named, node_from_proto, resident_from_proto
from warmshelf.session import Link
from warmshelf.types import Alias, Artifact, Node, ResidencyList, Resident, check_id
from warmshelf.v1 import residency_pb2


class Where(ABC):
    """Where artifacts are warm."""

    @abstractmethod
    def _current(self) -> Link:
        """Return this process's link to the daemon."""

    @abstractmethod
    def _pages(self, connection: Any, method: Any, request: Any) -> Iterator[Any]:
        """Return the pages of a listing."""

    @abstractmethod
    def _deadline(self, timeout: float | None = None) -> Deadline:
        """Return when a call must have ended."""

    @abstractmethod
    def aliases(self) -> list[Alias]:
        """Return all aliases."""

    @abstractmethod
    def get(self, artifact_id: str) -> Artifact:
        """Return what is known of an artifact."""

    def list_residency(self, artifact_id: str | None = None) -> ResidencyList:
        """Return what is resident on every node of the fleet, or where one artifact is, and which nodes load that now.

        Args:
            artifact_id: only this artifact, or the one that this alias means; nothing, if it is not known.
        """
        request = residency_pb2.ListResidencyRequest(artifact_id=check_id(artifact_id) if artifact_id else "")
        connection = self._current().connection
        nodes: dict[str, Node] = {}
        residents: list[Resident] = []
        is_partial, loading = False, dict[str, Node]()
        for page in self._pages(connection, connection.residency.ListResidency, request):
            nodes |= {message.node_id: node_from_proto(message) for message in page.nodes}
            residents += (resident_from_proto(message, nodes) for message in page.residents)
            loading |= {node_id: named(node_id, nodes) for node_id in page.loading_node_ids}
            is_partial |= page.partial
        return ResidencyList(tuple(nodes.values()), tuple(residents), is_partial, tuple(loading.values()))

    def where(self, artifact_id: str) -> list[Resident]:
        """Return on which nodes an artifact is resident, or the one that an alias means; the one asked comes first.

        Raises:
            ArtifactNotFound: it is not known.
        """
        residents = list(self.list_residency(check_id(artifact_id)).residents)
        if not residents and all(alias.name != artifact_id for alias in self.aliases()):
            self.get(artifact_id)
        return residents
