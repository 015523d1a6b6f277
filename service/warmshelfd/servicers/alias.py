"""AliasService: decode, call the use case, encode."""

from __future__ import annotations

from typing import Any

from warmshelf._fleet import alias_to_proto
from warmshelf.v1 import alias_pb2, alias_pb2_grpc
from warmshelfd.aliasing import Aliases


class AliasServicer(alias_pb2_grpc.AliasServiceServicer):
    """Keeps names that may be moved."""

    def __init__(self, aliases: Aliases) -> None:
        self._aliases = aliases

    async def SetAlias(  # noqa: N802 - the proto names it
        self, request: alias_pb2.SetAliasRequest, _context: Any
    ) -> alias_pb2.SetAliasResponse:
        """Make an alias mean an artifact."""
        alias = await self._aliases.set(request.name, request.artifact_id, request.expected_artifact_id)
        return alias_pb2.SetAliasResponse(alias=alias_to_proto(alias))

    async def RollBackAlias(  # noqa: N802
        self, request: alias_pb2.RollBackAliasRequest, _context: Any
    ) -> alias_pb2.RollBackAliasResponse:
        """Make an alias mean what it did before."""
        return alias_pb2.RollBackAliasResponse(alias=alias_to_proto(await self._aliases.roll_back(request.name)))

    async def RemoveAlias(  # noqa: N802
        self, request: alias_pb2.RemoveAliasRequest, _context: Any
    ) -> alias_pb2.RemoveAliasResponse:
        """Forget an alias."""
        await self._aliases.remove(request.name, request.expected_artifact_id)
        return alias_pb2.RemoveAliasResponse()

    async def ListAliases(  # noqa: N802
        self, _request: alias_pb2.ListAliasesRequest, _context: Any
    ) -> alias_pb2.ListAliasesResponse:
        """List all aliases."""
        return alias_pb2.ListAliasesResponse(aliases=map(alias_to_proto, self._aliases.all()))
