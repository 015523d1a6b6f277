"""The edge where errors become statuses. Wraps every call of the daemon's own services.

A typed error travels as its code and a ``google.rpc.ErrorInfo``; anything else is
a bug, logged with its traceback and sent as INTERNAL without a word of it.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, TypeAlias

import grpc

from warmshelf._status import STATUS_METADATA_KEY, error_to_status
from warmshelf.errors import Internal, NotImplementedHere, StreamStalled, WarmshelfError

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

_STALLED_ABORT_SECONDS = 1.0

_log = logging.getLogger(__name__)


class Guard(grpc.aio.ServerInterceptor):
    """Maps errors of handlers, and counts the calls under way."""

    def __init__(self) -> None:
        self.calls = 0  # under way, but for sessions; event loop only

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Return the call's handler with the guard around it."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith("/warmshelf."):
            return handler
        counted = 0 if handler_call_details.method.endswith("/OpenSession") else 1
        make: Any = (
            grpc.unary_stream_rpc_method_handler if handler.unary_stream else grpc.unary_unary_rpc_method_handler
        )
        call: Any = handler.unary_stream or handler.unary_unary
        # A stream that writes by itself is guarded like a unary call.
        guarded = self._stream(call, counted) if inspect.isasyncgenfunction(call) else self._unary(call, counted)
        return make(  # type: ignore[no-any-return]
            guarded,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _unary(self, call: Callable[[Any, Any], Awaitable[Any]], counted: int) -> Callable[[Any, Any], Awaitable[Any]]:
        async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            self.calls += counted
            try:
                return await call(request, context)
            except Exception as error:  # noqa: BLE001 - this is the edge
                await _abort(context, error)
            finally:
                self.calls -= counted

        return guarded

    def _stream(
        self, call: Callable[[Any, Any], AsyncIterator[Any]], counted: int
    ) -> Callable[[Any, Any], AsyncIterator[Any]]:
        async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            self.calls += counted
            messages = call(request, context)
            try:
                async for message in messages:
                    yield message
            except Exception as error:  # noqa: BLE001 - this is the edge
                await _abort(context, error)
            finally:
                self.calls -= counted
                await messages.aclose()  # type: ignore[attr-defined]  # handlers are generators

        return guarded


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> NoReturn:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, NotImplementedError):
        error = NotImplementedHere("this daemon does not offer the call")
    elif not isinstance(error, WarmshelfError):
        _log.error("bug in a call", exc_info=error)
        error = Internal(f"{type(error).__name__}; see the daemon's log")
    status = error_to_status(error)
    # gRPC keeps what is raised from here until the garbage collector comes. What the frames
    # of the failure hold, such as a whole header, must not wait for that.
    error.__traceback__ = error.__context__ = error.__cause__ = None
    abort = context.abort(
        grpc.StatusCode[error.code.name], status.message, ((STATUS_METADATA_KEY, status.SerializeToString()),)
    )
    # Behind a chunk that is stuck the status may never get out; then the call just ends.
    await (asyncio.wait_for(abort, _STALLED_ABORT_SECONDS) if isinstance(error, StreamStalled) else abort)
    raise asyncio.CancelledError  # abort has raised
