"""ResidencyService: decode, ask the map, encode."""

from __future__ import annotations

import asyncio
from typing import Any

from warmshelf._fleet import node_to_proto, resident_to_proto
from warmshelf.errors import InvalidPageToken
from warmshelf.types import check_id
from warmshelf.v1 import residency_pb2, residency_pb2_grpc
from warmshelfd.aliasing import Aliases
from warmshelfd.residency_map import ResidencyMap
from warmshelfd.servicers.paging import from_token, page_size, to_token
from warmshelfd.underway import Underway


class ResidencyServicer(residency_pb2_grpc.ResidencyServiceServicer):
    """Says where artifacts are warm."""

    def __init__(self, residency_map: ResidencyMap, aliases: Aliases, underway: Underway) -> None:
        self._map = residency_map
        self._aliases = aliases
        self._underway = underway

    async def ListResidency(  # noqa: N802 - the proto names it
        self, request: residency_pb2.ListResidencyRequest, _context: Any
    ) -> residency_pb2.ListResidencyResponse:
        """List what is resident, node by node, and who loads what is asked for."""
        asked = request.artifact_id
        artifact_id = self._aliases.resolve(check_id(asked)) if asked else ""
        page, loads = await asyncio.gather(
            self._map.page(artifact_id, _after(request.page_token), page_size(request.page_size)),
            self._underway.look(artifact_id),
        )
        return residency_pb2.ListResidencyResponse(
            residents=map(resident_to_proto, page.residents),
            nodes=map(node_to_proto, page.nodes),
            partial=page.is_partial or loads.is_partial,
            next_page_token=to_token(" ".join(page.next_after) if page.next_after else ""),
            loading_node_ids=loads.among(page.nodes),
        )


def _after(token: str) -> tuple[str, str] | None:
    if not token:
        return None
    node_id, space, artifact_id = from_token(token).partition(" ")
    if not space or not artifact_id:
        raise InvalidPageToken("not a page token of this listing")
    return node_id, artifact_id
