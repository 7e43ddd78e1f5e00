"""The gRPC server of one task's control address.

Every task has one, whatever it has to answer: a call that belongs elsewhere is told so, and a wrong
address list shows as a sentence and not as a timeout.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import errno
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent import futures
from typing import Any

import grpc

from tfdist.config.cluster import Cluster
from tfdist.control import interfaces, messages
from tfdist.control.rendezvous import Caller
from tfdist.control.signing import Signer
from tfdist.errors import AddressInUseError, TfdistError

_log = logging.getLogger("tfdist.control")
_OPTIONS = [
    # A second listener on the same port must be an error, not a silent sharing of connections.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", messages.LARGEST_REQUEST),
    ("grpc.keepalive_permit_without_calls", 1),
    # More often than clients send them; by default gRPC takes pings of a silent client for abuse.
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
    # What strangers may hold: calls on a connection, and connections without a call. Clients
    # connect again when they have something to say.
    ("grpc.max_concurrent_streams", 64),
    ("grpc.max_connection_idle_ms", 20000),
]
_STOP_GRACE = 2.0
# Seconds in which the body of a call has to come.
_BODY_TIMEOUT = 10.0
# What is said at most once each; bounds what strangers can write into the log.
_MOST_WARNINGS = 100

Answer = Callable[[Any, Caller], dict[str, Any]]


class DaemonPool(futures.Executor):
    """Threads for answers that keep serving while the interpreter shuts down.

    The standard pool stops taking work before `atexit` functions run, which is when an exit barrier
    has to be served. Threads are started when needed and kept.

    Args:
      most_threads: upper bound; each waiting rank holds one.
    """

    def __init__(self, most_threads: int) -> None:
        self._most_threads = most_threads
        self._changed = threading.Condition()
        self._work: collections.deque[tuple[Any, ...]] = collections.deque()
        self._threads = 0
        self._idle = 0
        self._stopped = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future:
        """Queues a call; raises RuntimeError after `shutdown`."""
        future: futures.Future = futures.Future()
        with self._changed:
            if self._stopped:
                raise RuntimeError("the pool was shut down")
            self._work.append((future, fn, args, kwargs))
            if self._idle < len(self._work) and self._threads < self._most_threads:
                self._start_thread()
            self._changed.notify()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Lets the threads end once the queue is empty; does not wait for them."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _start_thread(self) -> None:
        try:
            threading.Thread(target=self._run, name="tfdist-control", daemon=True).start()
        except RuntimeError:
            # Newer Pythons start no thread during shutdown; those that exist will do.
            if not self._threads:
                raise
        else:
            self._threads += 1

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._work or self._stopped)
                self._idle -= 1
                if not self._work:
                    return
                future, fn, args, kwargs = self._work.popleft()
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: B036 - belongs to whoever holds the future
                future.set_exception(error)


class ControlServer:
    """Listens on this task's address until closed.

    Calls are received by one thread, and get one of a pool only when they have come whole and have
    proven the secret: a stranger that begins calls does not block others.

    Args:
      cluster: the cluster, in which this task has an address.
      secret: the shared secret or None.
      answers: by method, what answers a request of its type in `wire.REQUESTS`.

    Raises:
      AddressInUseError: another process listens on the port.
      ClusterConfigError: the address is none of this host, and there is no secret.
      TfdistError: the port cannot be opened for another reason.
    """

    def __init__(
        self, cluster: Cluster, secret: bytes | None, answers: Mapping[str, Answer]
    ) -> None:
        self._name = f"{cluster.task_name} at {cluster.address}"
        self._cluster = cluster
        self._signer = Signer(secret)
        self._answers = answers
        self._said: dict[str, None] = {}  # in order
        self._pool = DaemonPool(2 * cluster.world_size + 8)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._run_loop, name="tfdist-control-loop", daemon=True).start()
        try:
            self._server = self._in_loop(self._start(interfaces.interface(cluster, secret)))
        except BaseException:
            self._end_loop()
            raise

    def _run_loop(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def _in_loop(self, coroutine: Coroutine[Any, Any, Any], timeout: float | None = None) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout)

    async def _start(self, interface: str) -> grpc.aio.Server:
        server = grpc.aio.server(options=_OPTIONS)
        handlers = {
            method.rpartition("/")[2]: grpc.stream_unary_rpc_method_handler(self._handler(method))
            for method in (*messages.REQUESTS, messages.CHALLENGE)
        }
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(messages.SERVICE, handlers)]
        )
        self._listen(server, interface, int(self._cluster.address.rpartition(":")[2]))
        await server.start()
        return server

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._pool.shutdown()

    @property
    def last_refusal(self) -> str | None:
        """Whom this server turned away last, and why."""
        return next(reversed(self._said), None)

    def close(self) -> None:
        """Stops listening; calls under way get a moment to finish. May be called again."""
        if not self._loop.is_running():
            return
        with contextlib.suppress(futures.TimeoutError):
            self._in_loop(self._server.stop(_STOP_GRACE), _STOP_GRACE + 1)
        self._end_loop()

    def _listen(self, server: grpc.aio.Server, interface: str, port: int) -> None:
        # gRPC is content with one of IPv4 and IPv6, would then miss that the other is taken, and
        # tells the reason to stderr only.
        hosts = ("::", "0.0.0.0") if interface == interfaces.EVERY else (interface,)
        for host in hosts:
            error = _bind_error(socket.AF_INET6 if ":" in host else socket.AF_INET, host, port)
            if error is not None and error.errno == errno.EADDRINUSE:
                raise AddressInUseError(error.errno, self._in_use(port))
            if error is not None and error.errno == errno.EACCES:
                raise TfdistError(f"{self._name}: cannot listen on port {port}: {error.strerror}")
        for host in hosts:
            try:
                name = f"[{host}]" if ":" in host else host
                if server.add_insecure_port(f"{name}:{port}") == port:
                    return
            except RuntimeError:
                continue
        # Free a moment ago: somebody was faster.
        raise AddressInUseError(errno.EADDRINUSE, self._in_use(port))

    def _in_use(self, port: int) -> str:
        return (
            f"{self._name}: port {port} is in use by another process on this machine; expected it "
            "to be free, since the cluster gives it to this task"
        )

    def _handler(self, method: str) -> Callable[..., Coroutine[Any, Any, bytes]]:
        async def handle(bodies: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> bytes:
            # A call with one body is, on the wire, a stream of one.
            try:
                body = await asyncio.wait_for(anext(aiter(bodies)), _BODY_TIMEOUT)
            except StopAsyncIteration:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a call without a body")
            except asyncio.TimeoutError:
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "its body did not come")
            if method == messages.CHALLENGE:
                return messages.encode({"challenge": self._signer.new_challenge()})
            metadata = context.invocation_metadata()
            problem = self._signer.problem_with_request(method, metadata, body)
            if problem:
                self._warn(f"refused {self._who(body, context)}: {problem}")
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, problem)
            try:
                answer = await self._answer(method, body)
            except messages.WireError as error:
                self._warn(f"refused a message from {_host(context)}: {error}")
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            if answer["status"] == "refused":
                self._warn(f"refused {self._who(body, context)}: {answer['reason']}")
            reply = messages.encode(answer)
            context.set_trailing_metadata(self._signer.sign_answer(method, metadata, reply))
            return reply

        return handle

    async def _answer(self, method: str, body: bytes) -> dict[str, Any]:
        request = messages.decode(messages.REQUESTS[method], body)
        answer = self._answers.get(method)
        if answer is None:
            return {"status": "refused", "reason": self._place(method, request)}
        caller = Caller()
        answering = self._loop.run_in_executor(self._pool, answer, request, caller)
        try:
            return await asyncio.shield(answering)
        except asyncio.CancelledError:  # the connection broke
            caller.hang_up()
            raise

    def _place(self, method: str, request: Any) -> str:
        """Says who this is; to a caller that has proven nothing only that it is the wrong task."""
        own = messages.fingerprint(self._cluster.training_addresses)
        known = self._signer.has_secret or getattr(request, "fingerprint", None) == own
        who = f"this is {self._name}, " if known else "this task is "
        if method not in (messages.JOIN, messages.EXIT):
            return f"{who}not a parameter server"
        if not known:
            return f"{who}not rank 0 of its job"
        return f"{who}but ranks meet at {self._cluster.describe_rank(0)}"

    def _who(self, body: bytes, context: grpc.aio.ServicerContext) -> str:
        """Names the caller by what it claims to be and where it calls from."""
        try:
            rank = messages.decode_object(body).get("rank")
            claim = self._cluster.name_of_rank(rank)
        except (messages.WireError, IndexError, TypeError):
            return f"a caller from {_host(context)}"
        return f"{claim}, calling from {_host(context)}"

    def _warn(self, text: str) -> None:
        if text not in self._said and len(self._said) < _MOST_WARNINGS:
            self._said[text] = None
            _log.warning("%s: %s", self._name, text)


def _host(context: grpc.aio.ServicerContext) -> str:
    # "ipv4:10.0.0.7:51234": the port differs at each connection and says nothing.
    return context.peer().rpartition(":")[0].partition(":")[2] or context.peer()


def _bind_error(family: socket.AddressFamily, host: str, port: int) -> OSError | None:
    """Returns what keeps this process from listening on `port`, or None."""
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return error
    return None
