"""gRPC's health protocol: whether the server is ready.

The two messages of the protocol have one field each, and on the wire they are equal to two of
protobuf's own: a text for the service's name, and a number for the state. So no package for them is
needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

SERVICE = "grpc.health.v1.Health"
_SERVING, _NOT_SERVING, _UNKNOWN = 1, 2, 3
# Seconds between two looks of a call of Watch.
_PERIOD = 0.5


class Health:
    """Answers calls in the event loop.

    Args:
      is_ready: whether the server can answer requests.
      services: the names of the services that clients may ask about, beside the whole server.
    """

    def __init__(self, is_ready: Callable[[], bool], services: Collection[str]) -> None:
        self._is_ready = is_ready
        self._services = {"", *services}

    def handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        """Returns the handlers by the names of the methods."""
        return {
            "Check": grpc.unary_unary_rpc_method_handler(self.check),
            "Watch": grpc.unary_stream_rpc_method_handler(self.watch),
        }

    async def check(self, body: bytes, context: grpc.aio.ServicerContext) -> bytes:
        """Answers with the present state."""
        state = self._state_of(await _service_in(body, context))
        if state == _UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service")
        return _message(state)

    async def watch(self, body: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        """Sends the state, and each later one, until the client leaves."""
        service = await _service_in(body, context)
        told = None
        while True:
            state = self._state_of(service)
            if state != told:
                told = state
                yield _message(state)
            await asyncio.sleep(_PERIOD)

    def _state_of(self, service: str) -> int:
        if service not in self._services:
            return _UNKNOWN
        return _SERVING if self._is_ready() else _NOT_SERVING


async def _service_in(body: bytes, context: grpc.aio.ServicerContext) -> str:
    try:
        return str(StringValue.FromString(body).value)
    except DecodeError:
        return await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT, "expected a grpc.health.v1.HealthCheckRequest"
        )


def _message(state: int) -> bytes:
    message: bytes = Int32Value(value=state).SerializeToString()
    return message
