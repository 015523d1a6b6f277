"""The handlers of calls by their paths, as generated code registers them, without a server.

So there can be several for one path, of which a server has one. Knows no call by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


@dataclass
class _Asked:
    """What a generic handler is asked with."""

    method: str
    invocation_metadata: tuple[tuple[str, str | bytes], ...] = ()


class Handlers:
    """Takes what a server would, and gives it back by path."""

    def __init__(self) -> None:
        self.generic: list[grpc.GenericRpcHandler] = []
        self._found: dict[str, Handler] = {}

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Take handlers, as a server does."""
        self.generic += handlers

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Handler]) -> None:
        """Take those of a service by name, as a server does for its own fast way: they are among the others."""

    def find(self, path: str) -> Handler | None:
        """Return the handler of a path such as ``/warmshelf.v1.CatalogService/GetArtifact``."""
        if path not in self._found:
            asked = _Asked(path)
            handler = next((one for one in (generic.service(asked) for generic in self.generic) if one), None)
            if handler is None:
                return None
            self._found[path] = handler
        return self._found[path]


def behaviour(handler: Handler) -> Callable[..., Any]:
    """Return what answers a call, whatever its kind."""
    call: Any = handler.unary_stream or handler.unary_unary or handler.stream_unary
    return call  # type: ignore[no-any-return]
