"""Asks all tasks of a job at once what they do; a silent task delays no other one."""

from __future__ import annotations

import http.client
import io
import json
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tfdist.observe.live.records import ReportedState, TaskAnswer
from tfdist.observe.live.targets import Targets

if TYPE_CHECKING:
    from tfdist.control.tls.verifier import Verifier

_MAX_BYTES = 8 * 1024 * 1024  # of an answer
_READ_SIZE = 64 * 1024
_MAX_THREADS = 32


class Sampler:
    """Asks the tasks of one job.

    Args:
      targets: the tasks.
      timeout: seconds in which a task must connect and answer, to the last byte.

    Raises:
      ClusterConfigError: the authority of the targets cannot be used.
    """

    def __init__(self, targets: Targets, timeout: float = 3.0) -> None:
        self._targets = targets
        self._timeout = timeout
        self._verifier: Verifier | None = None
        if targets.tls is not None:
            from tfdist.control.tls.verifier import Verifier  # needs an extra

            # A task tells its state to a client without a certificate.
            self._verifier = Verifier(targets.tls)
        count = min(_MAX_THREADS, len(targets.addresses))
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="tfdist-sampler")

    def sample(self, events: float = 0.0) -> list[TaskAnswer]:
        """Returns each task's answer, in the order of the targets.

        Args:
          events: seconds of which the tasks tell their events, and the curves; 0: neither.
        """

        def ask(target: tuple[str, str]) -> TaskAnswer:
            return self._ask(target[0], target[1], events)

        return list(self._pool.map(ask, self._targets.addresses.items()))

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, name: str, address: str, events: float) -> TaskAnswer:
        try:
            state = self._request(address, events)
            # A job file tells the names; without one a task is called by its address.
            if name not in (address, state.task):
                raise ValueError(f"the state of {state.task!r:.100}")
        except ConnectionRefusedError:
            problem = "does not listen: it has not begun, or has ended"
        except TimeoutError:
            problem = f"did not answer within {self._timeout:g} s"
        except ssl.SSLCertVerificationError as error:
            problem = f"the certificate of the task is refused: {error.verify_message}"
        except ssl.SSLError as error:
            problem = f"no encrypted connection (TFDIST_TLS): {error.reason or error}"
        except (OSError, http.client.HTTPException) as error:
            problem = f"{type(error).__name__}: {error}"
        except (ValueError, RecursionError) as error:
            problem = f"expected what a task of this release tells, received: {error}"
        else:
            return TaskAnswer(name, address, time.monotonic(), state)
        return TaskAnswer(name, address, time.monotonic(), problem=problem)

    def _request(self, address: str, events: float) -> ReportedState:
        host, _, port = address.rpartition(":")
        deadline = time.monotonic() + self._timeout
        host = host.strip("[]")
        connection = http.client.HTTPConnection(host, int(port), timeout=self._timeout)
        try:
            if self._verifier is not None:
                connection.connect()
                connection.sock = self._verifier.context().wrap_socket(
                    connection.sock, server_hostname=self._verifier.fixed_name or host
                )
            connection.request(
                "GET",
                f"/state?events={events:g}",
                headers={"Authorization": f"Bearer {self._targets.token}", "Connection": "close"},
            )
            # Of a socket it uses the file alone.
            received: Any = _Received(connection.sock, deadline)
            answer = http.client.HTTPResponse(received)
            answer.begin()
            if answer.status == http.client.UNAUTHORIZED:
                raise ValueError("a refusal: it has no secret, or another one than this command")
            if answer.status == http.client.BAD_REQUEST and self._verifier is None:
                raise ValueError(
                    "status 400: this command does not encrypt as the task does (TFDIST_TLS)"
                )
            if answer.status != http.client.OK:
                raise ValueError(f"status {answer.status}")
            return ReportedState.from_json(json.loads(answer.read()))
        finally:
            connection.close()


class _Received:
    """All that a task sends until it closes the connection, in place of the socket.

    A socket's own timeout covers each read alone: a task that sends a byte a second would keep it.

    Raises:
      TimeoutError: it is not complete at the deadline.
      ValueError: it is too long.
    """

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._bytes = io.BytesIO()
        while self._bytes.tell() <= _MAX_BYTES:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the answer is incomplete")
            connection.settimeout(left)
            part = connection.recv(_READ_SIZE)
            if not part:
                self._bytes.seek(0)
                return
            self._bytes.write(part)
        raise ValueError(f"more than {_MAX_BYTES} bytes")

    def makefile(self, *mode: object) -> Any:
        return self._bytes
