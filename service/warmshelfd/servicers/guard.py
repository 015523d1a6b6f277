"""The edge where callers are admitted, errors become statuses, and calls are counted and logged.

Wraps every call of the daemon's own services; reflection is only admitted.

A typed error travels as its code and a ``google.rpc.ErrorInfo``; anything else is
a bug, logged with its traceback and sent as INTERNAL without a word of it. Of each
call one line says how it ended; of its request that has the artifact's ID, and
nothing that is a secret.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeAlias

import grpc
import structlog
from google.protobuf.message import DecodeError

from warmshelf._status import STATUS_METADATA_KEY, error_to_status
from warmshelf.errors import (
    Cancelled,
    DeadlineExceeded,
    Internal,
    InvalidId,
    InvalidRequest,
    NotImplementedHere,
    StreamStalled,
    WarmshelfError,
)
from warmshelf.types import check_id
from warmshelfd.domain.roles import CALLS
from warmshelfd.metric_table import Rpc
from warmshelfd.metrics import Metrics
from warmshelfd.servicers.admission import Admission
from warmshelfd.servicers.handlers import Handler, Handlers, behaviour

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_STALLED_ABORT_SECONDS = 1.0

_LASTING = frozenset({"OpenSession", "WatchArtifacts", "WritePush"})
"""Calls that last as long as the caller likes, or go on with the next daemon: a stopping one does not wait for them."""

_UNGUARDED = "/grpc.health."
"""Health is everybody's, and none of ours."""

_MAKERS = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
}
"""What makes a handler, by whether requests and answers are streams."""

_TYPES = {(False, False): "unary", (False, True): "server_stream", (True, False): "client_stream"}
"""What the usual metrics of gRPC servers call each of them."""

_LATE_SECONDS = 0.1
"""A call that is cancelled so shortly before its deadline: the caller's clock ran out a little before ours."""

_log = logging.getLogger(__name__)
_call_log = structlog.get_logger("warmshelfd.call")


class Guard(grpc.aio.ServerInterceptor):
    """Admits callers, maps errors of handlers, counts calls, and logs how each ended."""

    def __init__(self, metrics: Metrics, admission: Admission, handlers: Mapping[str, Handlers]) -> None:
        """``handlers`` are those of each tenant, and under "" those that the server has."""
        self.calls = 0  # under way, but for lasting ones; event loop only
        self._handlers = handlers
        self._metrics = metrics
        self._admission = admission

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Return the call's handler with the guard around it."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method[1:] not in CALLS:  # such as what a library adds some day
            return None
        if handler_call_details.method.startswith(_UNGUARDED):
            return handler
        if handler.request_streaming and handler.response_streaming:
            return self._only_admitted(handler, handler_call_details.method)
        rpc = _rpc(handler_call_details.method, handler)
        counted = 0 if rpc.method in _LASTING else 1
        make: Any = _MAKERS[handler.request_streaming, handler.response_streaming]
        call = behaviour(handler)
        # A stream that writes by itself is guarded like a unary call.
        wrap: Any = self._stream if inspect.isasyncgenfunction(call) else self._unary
        guarded = wrap(self._calls_at(handler_call_details.method, call), rpc, counted)
        return make(  # type: ignore[no-any-return]
            guarded,
            request_deserializer=_or_garbage(handler.request_deserializer),
            response_serializer=handler.response_serializer,
        )

    def _calls_at(self, path: str, call: Callable[..., Any]) -> Callable[[str], Callable[..., Any]]:
        """Return what gives the answering function of a call for a tenant."""

        def call_of(tenant: str) -> Callable[..., Any]:
            handler = self._handlers[tenant].find(path) if tenant else None
            return behaviour(handler) if handler is not None else call

        return call_of

    def _only_admitted(self, handler: Handler, path: str) -> Handler:
        answer: Any = handler.stream_stream

        async def guarded(requests: Any, context: _Context) -> AsyncIterator[Any]:
            try:
                self._admission.admit(path[1:], context)
            except WarmshelfError as error:
                await _abort(context, error)
            async for message in answer(requests, context):
                yield message

        return grpc.stream_stream_rpc_method_handler(
            guarded,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _unary(
        self, call_of: Callable[[str], Callable[[Any, Any], Awaitable[Any]]], rpc: Rpc, counted: int
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        async def guarded(request: Any, context: _Context) -> Any:
            self.calls += counted
            try:
                with self._observed(rpc, request, context) as tenant:
                    return await call_of(tenant)(_readable(request), context)
            except Exception as error:  # noqa: BLE001 - this is the edge
                await _abort(context, error)
            finally:
                self.calls -= counted

        return guarded

    def _stream(
        self, call_of: Callable[[str], Callable[[Any, Any], AsyncIterator[Any]]], rpc: Rpc, counted: int
    ) -> Callable[[Any, Any], AsyncIterator[Any]]:
        async def guarded(request: Any, context: _Context) -> AsyncIterator[Any]:
            self.calls += counted
            messages: Any = None
            try:
                with self._observed(rpc, request, context) as tenant:
                    messages = call_of(tenant)(_readable(request), context)
                    async for message in messages:
                        yield message
            except Exception as error:  # noqa: BLE001 - this is the edge
                await _abort(context, error)
            finally:
                self.calls -= counted
                if messages is not None:
                    await messages.aclose()

        return guarded

    @contextmanager
    def _observed(self, rpc: Rpc, request: Any, context: _Context) -> Iterator[str]:
        """Admit a call, count it, and log how it ended; give the tenant that it is for."""
        code, reason, identity, tenant, start = "OK", "", "", "", time.monotonic()
        self._metrics.call_started(rpc)
        try:
            caller = self._admission.admit(f"{rpc.service}/{rpc.method}", context)
            identity, tenant = caller.name, caller.tenant
            yield tenant
        except BaseException as error:
            typed = _typed(error, context)
            code, reason = typed.code.value, typed.reason
            identity = identity or str(typed.details.get("identity", ""))  # known, but its role does not do
            raise
        finally:
            seconds = time.monotonic() - start
            artifact_id = getattr(request, "artifact_id", "")
            # Once the answer is on its way: a line costs a tenth of a small call.
            optional = {"reason": reason, "artifact_id": artifact_id, "identity": identity, "tenant": tenant}
            asyncio.get_running_loop().call_soon(self._ended, rpc, code, seconds, optional)

    def _ended(self, rpc: Rpc, code: str, seconds: float, optional: Mapping[str, str]) -> None:
        self._metrics.call_ended(rpc, code, seconds)
        shown_id = optional["artifact_id"] if _is_id(optional["artifact_id"]) else ""
        optional = {**optional, "artifact_id": shown_id}
        _call_log.info(
            "call",
            method=f"{rpc.service}/{rpc.method}",
            code=code,
            duration_seconds=round(seconds, 6),
            **{name: text for name, text in optional.items() if text},
        )


class _Garbage:
    """What stands for a request whose bytes are none."""


def _or_garbage(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any]:
    """Read a request so that gRPC does not see it fail: it would answer UNKNOWN, and log where."""

    def read(data: bytes) -> Any:
        try:
            return deserialize(data) if deserialize else data
        except DecodeError:
            return _Garbage()

    return read


def _readable(request: Any) -> Any:
    if isinstance(request, _Garbage):
        raise InvalidRequest("the bytes of the request are no message of this call")
    return request


def _rpc(path: str, handler: Handler) -> Rpc:
    """Return what a method is called in metrics."""
    _, service, method = path.split("/")
    return Rpc(_TYPES[handler.request_streaming, handler.response_streaming], service, method)


def _is_id(artifact_id: str) -> bool:
    """Say whether a text may be shown as an ID; anything else might be made to mislead a reader of the log."""
    try:
        return bool(check_id(artifact_id))
    except InvalidId:
        return False


def _typed(error: BaseException, context: _Context) -> WarmshelfError:
    """Return what a call's end is called."""
    if isinstance(error, WarmshelfError):
        return error
    if isinstance(error, NotImplementedError):
        return NotImplementedHere("this daemon does not offer the call")
    if isinstance(error, Exception):
        return Internal(f"{type(error).__name__}; see the daemon's log")
    left_seconds = context.time_remaining()
    late = left_seconds is not None and left_seconds < _LATE_SECONDS
    return DeadlineExceeded("the deadline has passed") if late else Cancelled("the caller has gone")


async def _abort(context: _Context, error: Exception) -> NoReturn:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if not isinstance(error, (WarmshelfError, NotImplementedError)):
        _log.error("bug in a call", exc_info=error)
    error = _typed(error, context)
    status = error_to_status(error)
    # gRPC keeps what is raised from here until the garbage collector comes. What the frames
    # of the failure hold, such as a whole header, must not wait for that.
    error.__traceback__ = error.__context__ = error.__cause__ = None
    abort = context.abort(
        grpc.StatusCode[error.code.name], status.message, ((STATUS_METADATA_KEY, status.SerializeToString()),)
    )
    if isinstance(error, StreamStalled):
        # Behind a chunk that is stuck the status may never get out; then the call just ends.
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(abort, _STALLED_ABORT_SECONDS)
    else:
        await abort
    raise asyncio.CancelledError  # abort has raised, or was not waited for any longer
