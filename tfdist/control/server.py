"""The gRPC server of one task's control address.

Every task has one and refuses calls that are meant for another task: a wrong address list then
shows as an error message and not as a timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent import futures
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from tfdist.config.cluster import Cluster
from tfdist.config.tls import Tls
from tfdist.control import callers, encoding, interfaces
from tfdist.control.connections import Connections, Peer, peer_of
from tfdist.control.daemon_pool import DaemonPool
from tfdist.control.encoding import MessageError
from tfdist.control.held_calls import ClientContext
from tfdist.control.pieces import (
    MAX_REQUEST_BYTES,
    PIECE,
    LongRequests,
    MissingPiecesError,
    PieceRequest,
)
from tfdist.control.refusals import QuietBrokenCalls, Refusals
from tfdist.control.service import CHALLENGE, TRANSPORT, CallPath, Method, Service
from tfdist.control.signing import OF_ANOTHER_PROCESS, Signer
from tfdist.errors import AddressInUseError, TfdistError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Of a call; a signature has 300 bytes.
_MAX_METADATA_BYTES = 4096
_OPTIONS = [
    # A second listener on the same port must be an error, not a silent sharing of connections.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.keepalive_permit_without_calls", 1),
    # Clients send pings less often; by default gRPC closes the connection of a silent client.
    ("grpc.http2.min_ping_interval_without_data_ms", 5000),
    # Limits for unauthenticated clients: calls on a connection, the bytes that gRPC keeps of each
    # before its body is wanted (a measured bandwidth would raise them), and idle connections.
    # Clients reconnect for their next call.
    ("grpc.max_concurrent_streams", 8),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 16384),
    ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
    ("grpc.server_handshake_timeout_ms", 10000),
    ("grpc.max_connection_idle_ms", 20000),
]
# Seconds in which calls in progress may finish, and for which `close` waits in all.
_STOP_GRACE = 2.0
_STOP_TIMEOUT = 3.0
# Seconds in which the body of a call must arrive.
_BODY_TIMEOUT = 10.0
# Bytes of answers that callers have not read. Small ones do not count: a member waits for many.
_MAX_UNREAD, _SMALL = 256 << 20, 1 << 16
# Seconds between two looks at the connections, and the share of a processor that they may take:
# usually, and after a look that has closed some. In five milliseconds a stranger sends a megabyte.
_LOOK_INTERVAL, _LOOK_SHARE = 0.1, 0.05
_NEXT_LOOK_INTERVAL, _NEXT_LOOK_SHARE = 0.005, 0.25

_QUIET = QuietBrokenCalls()

_IS_PLAIN = (
    "this task encrypts its connections (TFDIST_TLS), the caller does not; expected the same "
    "TFDIST_TLS variables on every task"
)
_WITHOUT_A_CALL = (
    "it has left without a call, in or after the TLS handshake; expected a caller with a valid "
    "certificate of the same authority or secret, that accepts this task's"
)

_PIECE = CallPath.parse(PIECE.path)

_Result = TypeVar("_Result")
Handler = Callable[[Any, ClientContext], dict[str, object]]


class ControlServer:
    """Listens on this task's address until closed.

    One thread receives all calls. A call gets a thread of the pool only when it is complete and
    authentic: an unauthenticated client does not block others.

    Args:
      cluster: the cluster, in which this task has an address.
      secret: the shared secret or None.
      handlers: by method, the function that answers its requests.
      max_threads: the number of calls that handlers may hold at the same time; by default two for
        each training task, and some.
      interface: the interface (`TFDIST_INTERFACE`) on which it listens if the task's address is
        none of this host's.
      is_from_the_job: whether a request proves by itself that a task of the job has made it.
      role: this task's role, for callers of other services.
      elsewhere: where callers of the job find services that this task does not have.
      tls: the origin of this task's certificate; None does not encrypt.

    Raises:
      AddressInUseError: another process listens on the port.
      ClusterConfigError: the address is none of this host's, and there is no secret.
      TfdistError: the port cannot be opened for another reason.
    """

    def __init__(
        self,
        cluster: Cluster,
        secret: bytes | None,
        handlers: Mapping[Method, Handler],
        max_threads: int | None = None,
        interface: str | None = None,
        is_from_the_job: Callable[[object], bool] = lambda request: False,
        role: str | None = None,
        elsewhere: Mapping[Service, str] | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._is_from_the_job = is_from_the_job
        self._name = f"{cluster.task_name} at {cluster.address}"
        self._cluster = cluster
        self._signer = Signer(secret)
        self._handlers = {
            (method.service.name, method.name): (method, handler)
            for method, handler in handlers.items()
        }
        self._versions = {method.service.name: method.service.version for method in handlers}
        self._role = role
        self._elsewhere = {service.name: text for service, text in (elsewhere or {}).items()}
        self._long_requests = LongRequests(cluster.world_size)
        self._fingerprint = callers.fingerprint(cluster.training_addresses)
        self._reading: weakref.WeakValueDictionary[Peer, asyncio.Lock] = (
            weakref.WeakValueDictionary()
        )
        self._unread: dict[grpc.aio.ServicerContext, int] = {}  # bytes of large answers
        self._closed = False
        self._credentials: grpc.ServerCredentials | None = None
        if tls is not None:
            # They need an extra.
            from tfdist.control.tls.credentials import credentials_of
            from tfdist.control.tls.rpc import server_credentials

            self._credentials = server_credentials(credentials_of(tls), self._note_handshake)
        self._pool = DaemonPool(max_threads or 2 * cluster.world_size + 8)
        self._refusals = Refusals(cluster, self._pool)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._run_loop, name="tfdist-control-loop", daemon=True
        )
        self._thread.start()
        try:
            address = interfaces.interface(cluster, secret, interface)
            self._server = self._in_loop(self._start(address))
        except BaseException:
            self._end_loop()
            raise

    def _run_loop(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(_end_tasks())
        self._loop.close()

    def _in_loop(
        self, coroutine: Coroutine[object, None, _Result], timeout: float | None = None
    ) -> _Result:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout)

    async def _start(self, interface: str) -> grpc.aio.Server:
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers([_Paths(self._handler)])
        assert self._cluster.address is not None
        port = int(self._cluster.address.rpartition(":")[2])
        host = self._listen(server, interface, port)
        logging.getLogger("grpc._cython.cygrpc").addFilter(_QUIET)
        tasks = sum(map(len, self._cluster.as_dict().values()))
        self._connections = Connections(host, port, tasks)
        self._decoding = asyncio.Lock()  # one long request at a time
        await server.start()
        self._watching = asyncio.create_task(self._watch())
        return server

    async def _watch(self) -> None:
        while True:
            began = time.thread_time()
            has_closed = self._connections.limit() > 0
            for failed in self._connections.take_failed():
                if failed.is_plain:
                    await self._refusals.add(failed.host, None, _IS_PLAIN)
                else:
                    # Tasks of the job also leave so, where they have no time left for a call.
                    await self._refusals.add(failed.host, None, _WITHOUT_A_CALL, logging.INFO)
            self._refusals.proceed()
            took = time.thread_time() - began
            if has_closed:
                pause = max(_NEXT_LOOK_INTERVAL, took / _NEXT_LOOK_SHARE)
            else:
                pause = max(_LOOK_INTERVAL, took / _LOOK_SHARE)
            await asyncio.sleep(pause)

    def _note_handshake(self) -> None:
        self._connections.note_handshake()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._pool.shutdown()

    @property
    def last_refusal(self) -> str | None:
        """The latest refusal, if possible of a task of the job: the client and the reason."""
        return self._refusals.last

    def close(self) -> None:
        """Stops listening; calls in progress get two seconds to finish. May be called again.

        On a machine that is too busy for that the server's thread stops it later.
        """
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + _STOP_TIMEOUT
        with contextlib.suppress(futures.TimeoutError):
            self._in_loop(self._server.stop(_STOP_GRACE), _STOP_TIMEOUT)
        self._loop.call_soon_threadsafe(self._watching.cancel)
        self._end_loop()
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def _listen(self, server: grpc.aio.Server, interface: str, port: int) -> str:
        """Returns the numeric address on which it listens, which may be a wildcard."""
        # gRPC accepts one of IPv4 and IPv6 even if the other is taken, and writes the reason to
        # stderr only.
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
                if self._add_port(server, f"{name}:{port}") == port:
                    return host
            except RuntimeError:
                continue
        # The port was free a moment ago: another process has taken it since.
        raise AddressInUseError(errno.EADDRINUSE, self._in_use(port))

    def _add_port(self, server: grpc.aio.Server, address: str) -> int:
        if self._credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, self._credentials)

    def _in_use(self, port: int) -> str:
        return (
            f"{self._name}: port {port} is in use by another process on this machine; expected it "
            "to be free, since the cluster gives it to this task"
        )

    def _handler(
        self, path: str, called: CallPath
    ) -> Callable[..., Coroutine[object, None, bytes]]:
        async def handle(bodies: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> bytes:
            peer = peer_of(context.peer())
            body = await self._body(bodies, peer, context)
            client = ClientContext(peer[0], time.monotonic_ns())
            if called.service == TRANSPORT.name and called.version != TRANSPORT.version:
                self._connections.heard(peer, proven=False)
                reason = _another_version(called, TRANSPORT.version)
                await self._refusals.add(peer[0], None, reason)
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
            if path == CHALLENGE:
                self._connections.heard(peer, proven=False)
                return encoding.encode({"challenge": self._signer.new_challenge()})
            metadata = context.invocation_metadata()
            problem = self._signer.problem_with_request(path, metadata, body)
            if problem:
                level = logging.INFO if problem == OF_ANOTHER_PROCESS else logging.WARNING
                await self._refusals.add(peer[0], body, problem, level)
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, problem)
            try:
                if called == _PIECE:
                    answer = await self._take_piece(body, peer, client)
                else:
                    answer = await self._answer(called, body, peer, client)
            except MessageError as error:
                await self._refusals.add(peer[0], None, str(error))
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            if answer["status"] == "refused":
                # Without "details", which are for the log alone.
                reason = str(answer.pop("details", answer["reason"]))
                await self._refusals.add(peer[0], body, reason)
            reply = encoding.encode(answer)
            if len(reply) > _SMALL:
                await self._keep(len(reply), context)
            context.set_trailing_metadata(self._signer.sign_answer(path, metadata, reply))
            return reply

        return handle

    async def _keep(self, size: int, context: grpc.aio.ServicerContext) -> None:
        """Keeps a large answer until its caller has read it; refuses it if there are too many."""
        if sum(self._unread.values()) + size > _MAX_UNREAD:
            text = f"{self._name}: {len(self._unread)} answers have not been read yet; try again"
            await context.abort(grpc.StatusCode.UNAVAILABLE, text)
        self._unread[context] = size
        context.add_done_callback(lambda context: self._unread.pop(context, None))

    async def _body(
        self, bodies: AsyncIterator[bytes], peer: Peer, context: grpc.aio.ServicerContext
    ) -> bytes:
        """Returns the body of a call; a unary call has the same messages as a stream of one.

        Of each connection one call's body is wanted at a time: gRPC makes room for all of it.
        """

        async def read() -> bytes:
            async with self._reading.setdefault(peer, asyncio.Lock()):
                return await anext(aiter(bodies))

        try:
            return await asyncio.wait_for(read(), _BODY_TIMEOUT)
        except StopAsyncIteration:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a call without a body")
        except asyncio.TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "its body did not come")
        raise AssertionError("abort raises")

    async def _take_piece(
        self, body: bytes, peer: Peer, client: ClientContext
    ) -> dict[str, object]:
        """Takes a piece of a long request; answers the request with its last piece."""
        piece = encoding.decode(PieceRequest, body)
        known = self._is_of_the_job(piece)
        self._connections.heard(peer, proven=known)
        if not known:
            return _refusal(
                "expected a caller that knows all training addresses, or a shared secret, for a "
                f"request of more than {MAX_REQUEST_BYTES:,} bytes"
            )
        called = CallPath.parse(piece.path)
        if called is None:
            return _refusal("expected a long request to name a method")
        other_version = self._other_version(called)
        if other_version is not None:
            return other_version
        method, handler = self._handlers.get((called.service, called.method), (None, None))
        if method is None or handler is None:
            return self._misdirected(called.service, known)
        if not method.is_long:
            return _refusal(
                f"expected a {method.name} request of at most {MAX_REQUEST_BYTES:,} bytes, has "
                f"{piece.size:,}"
            )
        try:
            joined = self._long_requests.add(peer, piece)
        except MissingPiecesError:
            return {"status": "again"}
        except MessageError as error:
            return _refusal(str(error))
        if joined is None:
            return {"status": "received"}
        try:
            # Takes too long for the thread that receives all calls.
            async with self._decoding:
                request = await self._loop.run_in_executor(
                    self._pool, encoding.decode, method.request, joined
                )
            return await self._call(method, handler, request, client)
        finally:
            self._long_requests.end(joined)

    async def _answer(
        self, called: CallPath, body: bytes, peer: Peer, client: ClientContext
    ) -> dict[str, object]:
        """Decodes a request and calls its handler."""
        other_version = self._other_version(called)
        if other_version is not None:
            self._connections.heard(peer, proven=self._signer.has_secret)
            return other_version
        method, handler = self._handlers.get((called.service, called.method), (None, None))
        if method is None or handler is None:
            known = self._knows_job(encoding.decode_object(body).get("fingerprint"))
            self._connections.heard(peer, proven=known)
            return self._misdirected(called.service, known)
        request = encoding.decode(method.request, body)
        self._connections.heard(peer, proven=self._is_of_the_job(request))
        return await self._call(method, handler, request, client)

    async def _call(
        self, method: Method, handler: Handler, request: DataclassInstance, client: ClientContext
    ) -> dict[str, object]:
        if method.is_quick:
            return handler(request, client)
        answering = self._loop.run_in_executor(self._pool, handler, request, client)
        try:
            return await asyncio.shield(answering)
        except asyncio.CancelledError:  # the connection broke
            client.disconnect()
            raise

    def _other_version(self, called: CallPath) -> dict[str, object] | None:
        """Returns the refusal of a caller of another version of a service, or None."""
        version = self._versions.get(called.service, called.version)
        return None if version == called.version else _refusal(_another_version(called, version))

    def _is_of_the_job(self, request: object) -> bool:
        """Whether a request, authentic if there is a secret, comes from a task of the job.

        Without a secret that is a caller who knows the addresses of all tasks, or another member of
        an elastic job.
        """
        known = self._knows_job(getattr(request, "fingerprint", None))
        return known or self._is_from_the_job(request)

    def _knows_job(self, fingerprint: object) -> bool:
        return self._signer.has_secret or fingerprint == self._fingerprint

    def _misdirected(self, service: str, known: bool) -> dict[str, object]:
        """Returns a refusal; it names this task only to a client that knows the job."""
        who = f"this is {self._name}" if known else "this task"
        if self._role is not None:
            return _refusal(f"{who}, {self._role}" if known else f"{who} is {self._role}")
        if known and service in self._elsewhere:
            return _refusal(f"{who}, {self._elsewhere[service]}")
        has_not = f"{who}, which has" if known else f"{who} has"
        return _refusal(f"{has_not} no service {service}") | {"absent": True}


class _Paths(grpc.GenericRpcHandler):
    """Finds the handler of each path of tfdist.

    Args:
      handler: returns the handler of a path.
    """

    def __init__(
        self, handler: Callable[[str, CallPath], Callable[..., Coroutine[object, None, bytes]]]
    ) -> None:
        self._handler = handler

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler | None:
        """Returns the handler of a call; None if it is not one of tfdist."""
        path = handler_call_details.method
        called = CallPath.parse(path)
        if called is None:
            return None
        return grpc.stream_unary_rpc_method_handler(self._handler(path, called))


def _another_version(called: CallPath, version: int) -> str:
    return (
        f"the caller has version {called.version} of the service {called.service}, this task "
        f"version {version}: expected the same tfdist version on every task"
    )


def _refusal(reason: str) -> dict[str, object]:
    return {"status": "refused", "reason": reason}


async def _end_tasks() -> None:
    """Ends what runs in a loop that is to be closed: first a stop of the server under way."""
    pending = asyncio.all_tasks() - {asyncio.current_task()}
    if pending:
        _, pending = await asyncio.wait(pending, timeout=_STOP_GRACE + 1)
    for task in pending:
        task.cancel()
    if pending:
        await asyncio.wait(pending, timeout=1)


def _bind_error(family: socket.AddressFamily, host: str, port: int) -> OSError | None:
    """Returns the error of binding `port`, or None."""
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        return error
    return None
