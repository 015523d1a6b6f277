"""CapabilitiesService: what this daemon can do."""

from __future__ import annotations

from typing import Any

from warmshelf._wire import capabilities_to_proto
from warmshelf.types import Capabilities
from warmshelf.v1 import capabilities_pb2, capabilities_pb2_grpc


class CapabilitiesServicer(capabilities_pb2_grpc.CapabilitiesServiceServicer):
    """Tells limits and abilities."""

    def __init__(self, capabilities: Capabilities) -> None:
        self._response = capabilities_to_proto(capabilities)

    async def GetCapabilities(  # noqa: N802 - the proto names it
        self, _request: capabilities_pb2.GetCapabilitiesRequest, _context: Any
    ) -> capabilities_pb2.GetCapabilitiesResponse:
        """Return what does not change while the daemon runs."""
        return self._response
