"""The gRPC server: receives whole requests in an event loop, and answers them in threads.

A client that sends half a request holds no thread, and is not counted until it is complete. A
complete request waits in the event loop for a free thread, so that one whose client has left
meanwhile leaves nothing behind. If the client leaves later, the thread cannot be stopped: the
request counts until the thread has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent import futures
from typing import TypeVar

import grpc

from tfdist.config.tls import Tls
from tfdist.errors import AddressInUseError
from tfdist.serving.model_server.call_error import ENDING, CallError, error_of
from tfdist.serving.model_server.health import SERVICE as HEALTH
from tfdist.serving.model_server.health import Health
from tfdist.serving.model_server.in_progress import InProgress
from tfdist.serving.model_server.messages import Method

_log = logging.getLogger("tfdist.serving")
_Result = TypeVar("_Result")
# Seconds after which a client that has no deadline is answered with an error.
_LONGEST = 3600.0
# Seconds in which the body of a call must arrive.
_BODY = 60.0
# Seconds in which the last answers and refusals are sent.
_LAST_ANSWERS = 0.2
# Texts of errors go into headers, which have a maximum.
_MAX_TEXT = 2000


class GrpcServer:
    """Serves methods until closed.

    Args:
      methods: by service and name.
      is_ready: whether the server can answer requests.
      host: the numeric address to listen on.
      port: the port, or 0 for a free one.
      max_bytes: of a request.
      threads: requests that are answered at a time.
      max_calls: requests that are answered or wait; others are refused with RESOURCE_EXHAUSTED.
      tls: the origin of its certificate; None does not encrypt.
      wants_certificates: whether clients need a certificate of the same authority.

    Attributes:
      port: the port.

    Raises:
      AddressInUseError: the address cannot be used.
      ClusterConfigError: the certificate cannot be used.
    """

    def __init__(
        self,
        methods: Mapping[str, Mapping[str, Method]],
        is_ready: Callable[[], bool],
        host: str,
        port: int,
        *,
        max_bytes: int,
        threads: int,
        max_calls: int,
        tls: Tls | None = None,
        wants_certificates: bool = False,
    ) -> None:
        self._credentials: grpc.ServerCredentials | None = None
        if tls is not None:
            # They need an extra.
            from tfdist.control.tls.credentials import credentials_of
            from tfdist.control.tls.rpc import server_credentials

            self._credentials = server_credentials(
                credentials_of(tls), lambda: None, wants_certificates
            )
        self._health = Health(is_ready, methods)
        self._methods = methods
        self._in_progress = InProgress()
        self._pool = futures.ThreadPoolExecutor(threads, "tfdist-serving")
        self._free = asyncio.Semaphore(threads)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="tfdist-grpc", daemon=True)
        self._thread.start()
        self._max_calls = max_calls
        options = [
            # A second server on the same port must be an error, not a silent sharing of requests.
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", max_bytes),
            ("grpc.max_send_message_length", -1),
        ]
        try:
            self._in_loop(self._start(host, port, options))
        except BaseException:
            self._end_loop()
            raise

    def close(self, grace: float) -> None:
        """Refuses new requests, and ends when all others are answered.

        Args:
          grace: the longest time (s) for that.
        """
        self._in_progress.end(grace)
        self._in_loop(self._stop())
        self._end_loop()

    async def _stop(self) -> None:
        # gRPC cancels calls that come just before it stops, and their clients would not try another
        # server, as they do after UNAVAILABLE. So busy clients are told that first.
        await asyncio.sleep(_LAST_ANSWERS)
        await self._server.stop(_LAST_ANSWERS)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def _in_loop(self, coroutine: Coroutine[object, None, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _start(self, host: str, port: int, options: list[tuple[str, int]]) -> None:
        self._server = grpc.aio.server(options=options)
        for service, methods in self._methods.items():
            handlers = {
                # A call has the same messages as a stream of one, for which it can wait itself.
                name: grpc.stream_unary_rpc_method_handler(self._handler(method))
                for name, method in methods.items()
            }
            self._server.add_generic_rpc_handlers(
                [grpc.method_handlers_generic_handler(service, handlers)]
            )
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(HEALTH, self._health.handlers())]
        )
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.port = self._add_port(address)
        await self._server.start()

    def _add_port(self, address: str) -> int:
        try:
            if self._credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, self._credentials)
        except RuntimeError:
            port = 0
        if not port:
            raise AddressInUseError(f"cannot listen on {address} for gRPC: expected a free port")
        return int(port)

    def _handler(self, method: Method) -> Callable[..., Coroutine[object, None, bytes]]:
        async def handle(bodies: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> bytes:
            body = await _whole(bodies, context)
            if self._in_progress.requests >= self._max_calls:
                await context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"{self._max_calls} requests wait already, the maximum; try again",
                )
            left = context.time_remaining()
            deadline = time.monotonic() + (_LONGEST if left is None else left)
            try:
                return await self._answer(method, body, deadline)
            except CallError as error:
                told = error
            except Exception as error:
                _log.exception("a request has failed")
                told = error_of(error)
            return await context.abort(told.code, str(told)[:_MAX_TEXT])

        return handle

    async def _answer(self, method: Method, body: bytes, deadline: float) -> bytes:
        """Calls a method in a thread as soon as one is free."""
        with contextlib.ExitStack() as held:
            if not held.enter_context(self._in_progress.request()):
                raise CallError(grpc.StatusCode.UNAVAILABLE, ENDING)
            await self._free.acquire()
            held.callback(self._free.release)
            work = self._pool.submit(method, body, deadline)
            until_its_end = held.pop_all()

        def release(_: futures.Future[bytes]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(until_its_end.close)

        work.add_done_callback(release)
        return await asyncio.wrap_future(work)


async def _whole(bodies: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> bytes:
    """Returns the body of a call, or refuses the call."""
    try:
        return await asyncio.wait_for(anext(bodies), _BODY)
    except StopAsyncIteration:
        return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "expected a request")
    except asyncio.TimeoutError:
        return await context.abort(
            grpc.StatusCode.DEADLINE_EXCEEDED, f"the request was incomplete after {_BODY:.0f} s"
        )
