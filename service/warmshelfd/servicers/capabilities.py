"""CapabilitiesService: what this daemon can do."""

from __future__ import annotations

from typing import Any

from warmshelf._wire import capabilities_to_proto, capacity_to_proto
from warmshelf.types import Capabilities
from warmshelf.v1 import capabilities_pb2, capabilities_pb2_grpc
from warmshelfd.observing import Observing


class CapabilitiesServicer(capabilities_pb2_grpc.CapabilitiesServiceServicer):
    """Tells limits and abilities."""

    def __init__(self, capabilities: Capabilities, observing: Observing) -> None:
        self._response = capabilities_to_proto(capabilities)
        self._observing = observing

    async def GetCapabilities(  # noqa: N802 - the proto names it
        self, _request: capabilities_pb2.GetCapabilitiesRequest, _context: Any
    ) -> capabilities_pb2.GetCapabilitiesResponse:
        """Return what does not change while the daemon runs."""
        return self._response

    async def GetCapacity(  # noqa: N802
        self, request: capabilities_pb2.GetCapacityRequest, _context: Any
    ) -> capabilities_pb2.GetCapacityResponse:
        """Return what the arena holds and how much more would fit."""
        return capacity_to_proto(self._observing.capacity(request.like_artifact_id))
