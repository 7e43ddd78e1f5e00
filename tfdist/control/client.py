"""The client of another task's control server: rank 0's, or a parameter server's."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import grpc

from tfdist.config.printing import printable
from tfdist.config.tls import Tls
from tfdist.control import callers, encoding
from tfdist.control.channel import Channel
from tfdist.control.encoding import JsonObject
from tfdist.control.pieces import MAX_LONG_BYTES, MAX_REQUEST_BYTES, PIECE, pieces_of
from tfdist.control.service import CHALLENGE, Method
from tfdist.control.signing import Metadata, Signer
from tfdist.control.tls import diagnosis
from tfdist.errors import AuthenticationError, ClusterConfigError, TfdistError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_MAX_ANSWER_BYTES = 16 << 20
_OPTIONS = [
    # A connection of its own: the server limits the calls of each.
    ("grpc.use_local_subchannel_pool", 1),
    # The control plane stays inside the cluster; an internet proxy would break it.
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", _MAX_ANSWER_BYTES),
    # The other task may start much later: retry often, and resolve its name each time.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    # Training may leave the connection silent for hours: firewalls drop such connections, and a
    # lost machine sends no reset.
    ("grpc.keepalive_time_ms", 10000),
    ("grpc.keepalive_timeout_ms", 10000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
# An answer may take this much longer than the requested wait (s), and one to a piece so long.
ANSWER_MARGIN = 1.0
_PIECE_TIMEOUT = 5.0
# Seconds between two looks for the reason of a failed handshake.
_EXPLAIN_INTERVAL = 1.0
# Not connected, or this side has closed the connection.
_UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class UnreachableError(Exception):
    """The other task gave no answer; the text is gRPC's reason."""


class SilentError(UnreachableError):
    """The other task gave no answer in time; it may still run."""


class RefusedError(ClusterConfigError):
    """The other task is one of tfdist, and refuses this one; the text has its reason.

    Attributes:
      answer: the other task's.
    """

    def __init__(self, text: str, answer: JsonObject) -> None:
        super().__init__(text)
        self.answer = answer


class Caller(Protocol):
    """The fields of messages about the calling task; a `Cluster` is one."""

    @property
    def task_name(self) -> str:
        """The task's name."""

    @property
    def address(self) -> str | None:
        """Its address, if it has one."""

    @property
    def training_addresses(self) -> Sequence[str]:
        """The addresses of the tasks that train, as it knows them."""


class ControlClient:
    """A connection to a control server, made on first use and again after it breaks.

    Args:
      caller: the cluster, which names this process's task.
      secret: the shared secret or None.
      address: the other task's "host:port".
      name: the other task's name in messages.
      tls: the origin of this task's certificate; None does not encrypt.
    """

    def __init__(
        self,
        caller: Caller,
        secret: bytes | None,
        address: str,
        name: str,
        tls: Tls | None = None,
    ) -> None:
        self._caller = caller
        self._name = name
        self._signer = Signer(secret)
        self._address = address
        self._tls = tls
        self._channel = Channel(address, tls, _OPTIONS)
        self._explained = -math.inf

    def close(self) -> None:
        """Closes the connection; calls under way raise UnreachableError."""
        self._channel.close()

    def call(
        self, method: Method, request: DataclassInstance, wait: float, *, patient: bool
    ) -> JsonObject:
        """Sends a request, in pieces if it is a long one, and returns the answer.

        Args:
          method: the method.
          request: the request, of its kind; its `wait` equals `wait`.
          wait: seconds for which the other task may hold the call.
          patient: whether to retry the connection for as long as the call may take.

        Raises:
          UnreachableError: no answer in time.
          AuthenticationError: the two tasks do not hold the same secret, or one of them does not
            accept the other's certificate, or the other's connections without any.
          ClusterConfigError: the other task refuses this one, or another program answers at its
            address.
          TfdistError: the request is larger than a server takes.
        """
        deadline = time.monotonic() + wait + ANSWER_MARGIN
        try:
            return self._call(method, request, deadline, wait_for_ready=False)
        except UnreachableError as error:
            if not patient or time.monotonic() >= deadline:
                raise
            reason = error
        # Reconnecting may use up the wait, so the second call requests an answer at once.
        request = dataclasses.replace(request, wait=0.0)
        try:
            return self._call(method, request, deadline - ANSWER_MARGIN, wait_for_ready=True)
        except UnreachableError:
            # The second call knows only that it waited for a connection; the first has a reason.
            raise reason from None

    def _call(
        self, method: Method, request: DataclassInstance, deadline: float, *, wait_for_ready: bool
    ) -> JsonObject:
        body = encoding.encode(request)
        if len(body) <= MAX_REQUEST_BYTES:
            return self._answer(method, method.path, body, deadline, wait_for_ready)
        limit = MAX_LONG_BYTES if method.is_long else MAX_REQUEST_BYTES
        if len(body) > limit:
            raise TfdistError(
                f"{self._both()}: expected a {method.name} request of at most {limit:,} bytes, has "
                f"{len(body):,}"
            )
        fingerprint = callers.fingerprint(self._caller.training_addresses)
        answer: JsonObject = {"status": "received"}
        for piece in pieces_of(body, method.path, fingerprint):
            if answer["status"] != "received":
                raise UnreachableError("it has lost the earlier pieces of a long request")
            part = encoding.encode(piece)
            until = max(deadline, time.monotonic() + _PIECE_TIMEOUT)
            answer = self._answer(method, PIECE.path, part, until, wait_for_ready)
        if answer["status"] == "again":
            raise UnreachableError("it has lost the earlier pieces of a long request")
        return answer

    def _answer(
        self, method: Method, path: str, body: bytes, deadline: float, wait_for_ready: bool
    ) -> JsonObject:
        """Makes one call, for a request of a method or a piece of it."""

        def send(path: str, body: bytes, metadata: Metadata = ()) -> tuple[bytes, Metadata]:
            try:
                reply, call = self._channel.unary(path).with_call(
                    body,
                    timeout=max(0.0, deadline - time.monotonic()),
                    metadata=metadata,
                    wait_for_ready=wait_for_ready,
                )
            except grpc.RpcError as error:
                raise self._translate(error) from None
            except ValueError as error:  # the channel was closed by another thread
                raise UnreachableError(str(error)) from None
            return reply, call.trailing_metadata()

        def exchange(challenge: str) -> tuple[bytes, Metadata, Metadata]:
            signed = self._signer.sign_request(path, challenge, body)
            reply, metadata = send(path, body, signed)
            return reply, signed, metadata

        kept = self._signer.kept_challenge()
        try:
            reply, signed, metadata = exchange(kept or self._new_challenge(send))
        except UnreachableError:
            self._signer.forget_challenges()
            raise
        except AuthenticationError:
            if kept is None:
                raise
            # The other task was started again, and knows its own challenges only.
            self._signer.forget_challenges()
            reply, signed, metadata = exchange(self._new_challenge(send))
        problem = self._signer.problem_with_answer(path, signed, metadata, reply)
        if problem:
            raise self._not_authentic(problem)
        answer = self._decode(reply)
        if answer.get("status") == "refused":
            reason = printable(str(answer.get("reason")))
            if answer.get("absent"):
                reason += f"; expected {method.service.provider}"
            raise RefusedError(
                f"{self._both()}: refused: {reason} (this task's training addresses: "
                f"{', '.join(self._caller.training_addresses)})",
                answer,
            )
        return answer

    def _new_challenge(self, send: Callable[[str, bytes], tuple[bytes, Metadata]]) -> str:
        if not self._signer.has_secret:
            return ""
        return str(self._decode(send(CHALLENGE, b"")[0]).get("challenge"))

    def _decode(self, reply: bytes) -> JsonObject:
        try:
            return encoding.decode_object(reply)
        except encoding.MessageError as error:
            raise self._not_tfdist(str(error)) from None

    def _translate(self, error: grpc.RpcError) -> Exception:
        if error.code() == grpc.StatusCode.PERMISSION_DENIED:
            return self._not_authentic(printable(str(error.details())))
        if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            return SilentError("no answer in time")
        if error.code() in _UNREACHABLE:
            reason = printable(str(error.details()))
            problem = self._problem_with_tls(reason)
            return UnreachableError(reason) if problem is None else self._not_accepted(problem)
        if error.code() == grpc.StatusCode.UNIMPLEMENTED:
            return self._not_tfdist(
                "another gRPC server, as tf.distribute.Server is: with tfdist every task runs the "
                "script, or python -m tfdist.server"
            )
        return self._not_tfdist(f"{error.code().name}: {printable(str(error.details()))}")

    def _problem_with_tls(self, reason: str) -> str | None:
        """Returns why TLS failed, if it has; looks for it at most once a second."""
        now = time.monotonic()
        if now < self._explained + _EXPLAIN_INTERVAL:
            return None
        self._explained = now
        return diagnosis.problem(self._address, self._tls, reason)

    def _not_accepted(self, problem: str) -> AuthenticationError:
        return AuthenticationError(f"{self._both()}: {problem}")

    def _not_authentic(self, problem: str) -> AuthenticationError:
        return AuthenticationError(
            f"{self._both()}: {problem}; expected the same TFDIST_SECRET (or content of "
            "TFDIST_SECRET_FILE) on every task"
        )

    def _not_tfdist(self, detail: str) -> ClusterConfigError:
        return ClusterConfigError(
            f"{self._both()}: expected a tfdist control server there, received {detail}"
        )

    def _both(self) -> str:
        return f"{self._caller.task_name} at {self._caller.address} called {self._name}"
