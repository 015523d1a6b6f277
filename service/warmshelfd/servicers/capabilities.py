"""CapabilitiesService: what this daemon can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warmshelf._wire import capabilities_to_proto, capacity_to_proto
from warmshelf.types import Capabilities
from warmshelf.v1 import capabilities_pb2, capabilities_pb2_grpc
from warmshelfd.observing import Observing
from warmshelfd.resizing import Resizing


class CapabilitiesServicer(capabilities_pb2_grpc.CapabilitiesServiceServicer):
    """Tells limits and abilities."""

    def __init__(self, capabilities: Callable[[], Capabilities], observing: Observing, resizing: Resizing) -> None:
        self._capabilities = capabilities
        self._observing = observing
        self._resizing = resizing

    async def GetCapabilities(  # noqa: N802 - the proto names it
        self, _request: capabilities_pb2.GetCapabilitiesRequest, _context: Any
    ) -> capabilities_pb2.GetCapabilitiesResponse:
        """Return limits and abilities."""
        return capabilities_to_proto(self._capabilities())

    async def GetCapacity(  # noqa: N802
        self, request: capabilities_pb2.GetCapacityRequest, _context: Any
    ) -> capabilities_pb2.GetCapacityResponse:
        """Return what the arena holds and how much more would fit."""
        return capacity_to_proto(self._observing.capacity(request.like_artifact_id))

    async def SetBudget(  # noqa: N802
        self, request: capabilities_pb2.SetBudgetRequest, context: Any
    ) -> capabilities_pb2.SetBudgetResponse:
        """Make the budget larger or smaller."""
        await self._resizing.set_budget(request.budget_bytes, context.time_remaining())
        return capabilities_pb2.SetBudgetResponse(capacity=capacity_to_proto(self._observing.capacity("")))
