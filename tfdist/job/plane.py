"""`ControlPlane`: one task's rendezvous with the other ranks, and its exit."""

from __future__ import annotations

import dataclasses
import logging
import secrets
import threading
import uuid
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from tfdist.config import validation
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.control import callers
from tfdist.control.client import ControlClient, SilentError, UnreachableError
from tfdist.control.encoding import JsonObject
from tfdist.control.held_calls import ClientContext
from tfdist.control.server import ControlServer, Handler
from tfdist.control.service import Method
from tfdist.control.signing import data_key
from tfdist.control.waiting import Wait
from tfdist.errors import ClusterConfigError, RendezvousTimeoutError, TfdistError
from tfdist.job import messages
from tfdist.job.rendezvous import Rendezvous
from tfdist.observe import clock, waits
from tfdist.preemption.messages import STOP
from tfdist.preemption.stop_board import StopBoard
from tfdist.preemption.stop_watch import StopWatch

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_log = logging.getLogger("tfdist.control")
# Seconds for which rank 0 may hold a call while `still_alive` is to be called.
_WATCHFUL_POLL = 0.5
# Seconds for which rank 0 stays until every rank has the result of a rendezvous or exit barrier.
_LINGER = 5.0


@dataclasses.dataclass(frozen=True)
class RendezvousResult:
    """The result of a completed rendezvous, equal on every rank.

    Args:
      generation: 1 for the first complete set of ranks, 2 for the next one, and so on.
      key: 32 bytes that authenticate the data connections of this generation. With a secret, each
        rank derives them from it, and they are never sent.
      addresses: data addresses, "host:port", in rank order.
    """

    generation: int
    key: bytes = dataclasses.field(repr=False)
    addresses: tuple[str, ...]


class ControlPlane:
    """This task's end of the control plane; a context manager that closes itself.

    It starts the server on this task's address. Calls of one object must not overlap, except
    `close`, which any thread may call and which ends a call in progress, and the calls of the
    `stop_watch`.

    Args:
      cluster: the job's tasks and this process's own.
      settings: secret and timeouts.
      handlers: of further methods that this task answers, by method.

    Raises:
      AddressInUseError: another process listens on this task's port.

    Example:
      >>> with ControlPlane(Cluster.local(), Settings()) as plane:
      ...     plane.rendezvous("localhost:4711").addresses
      ('localhost:4711',)
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        handlers: Mapping[Method, Handler] | None = None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._process = uuid.uuid4().hex
        self._closed = threading.Event()
        serves = cluster.rank == 0 and not cluster.is_local
        self._rendezvous = Rendezvous(cluster) if serves else None
        self._fingerprint = callers.fingerprint(cluster.training_addresses)
        self._board = StopBoard(cluster.world_size, self._fingerprint) if serves else None
        self._handlers: dict[Method, Handler] = {
            **clock.HANDLERS,
            **waits.HANDLERS,
            **(handlers or {}),
        }
        if self._rendezvous is not None and self._board is not None:
            self._handlers |= {
                messages.JOIN: self._rendezvous.join,
                messages.EXIT: self._rendezvous.exit,
                STOP: self._board.answer,
            }
        self._server: ControlServer | None = None
        self._client: ControlClient | None = None
        self._generation = 0
        self._rendezvous_id: str | None = None
        if cluster.address is not None:
            self._server = ControlServer(
                cluster,
                settings.secret,
                self._handlers,
                interface=settings.interface,
                elsewhere={messages.RENDEZVOUS: f"but ranks meet at {cluster.describe_rank(0)}"},
                tls=settings.tls,
            )
        if cluster.rank:
            self._client = ControlClient(
                cluster,
                settings.secret,
                cluster.training_addresses[0],
                cluster.describe_rank(0),
                settings.tls,
            )

    def __enter__(self) -> ControlPlane:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def rendezvous(
        self, data_address: str, *, timeout: float | None = None, log_interval: float = 10.0
    ) -> RendezvousResult:
        """Waits at rank 0 until all ranks have joined.

        Args:
          data_address: "host:port" at which this task accepts data connections.
          timeout: seconds to wait for the others; the settings' if None.
          log_interval: seconds between two log lines that name the missing ranks.

        Returns:
          The same result on every rank.

        Raises:
          RendezvousTimeoutError: ranks were missing at the deadline (by at most a second or so).
          AuthenticationError: this task and rank 0 do not hold the same secret.
          ClusterConfigError: this task does not train, rank 0 has another cluster, or another
            process has joined as this task.
          TfdistError: `close` was called meanwhile.
        """
        rank = self._training_rank()
        problem = validation.address_problem(data_address)
        if problem:
            raise ClusterConfigError(
                f'{self._cluster.task_name}: expected a data address "host:port", received '
                f"{validation.show(data_address)}: {problem}"
            )
        timeout = self._settings.rendezvous_timeout if timeout is None else timeout
        if self._cluster.is_local:
            self._generation += 1
            return RendezvousResult(self._generation, secrets.token_bytes(32), (data_address,))
        wait = Wait(timeout, self._closed, log_interval=log_interval)
        attempt = uuid.uuid4().hex
        waiting_for = self._cluster.describe_rank(0)
        while not wait.is_closed:
            if wait.is_over:
                refusal = self._server.last_refusal if self._server is not None else None
                raise RendezvousTimeoutError(
                    f"{self._who()}: no rendezvous within {timeout:g} s; expected "
                    f"{self._cluster.world_size} ranks, still missing: {waiting_for}"
                    + (f"; {refusal}" if refusal else "")
                )
            if wait.is_log_due():
                _log.warning("%s: waiting for %s", self._who(), waiting_for)
            poll = wait.poll()
            join = messages.JoinRequest(
                rank=rank,
                world_size=self._cluster.world_size,
                fingerprint=self._fingerprint,
                data_address=data_address,
                process=self._process,
                attempt=attempt,
                wait=poll,
                final=poll >= wait.remaining,
            )
            try:
                answer = self._call(messages.JOIN, join, poll, patient=True)
            except UnreachableError as error:
                waiting_for = f"{self._cluster.describe_rank(0)} ({error})"
                wait.pause()
                continue
            if answer["status"] == "complete":
                return self._result(answer)
            if answer["status"] == "waiting":
                waiting_for = self._cluster.describe_ranks(answer["missing"])
            else:
                waiting_for = f"{self._cluster.describe_rank(0)} (it is closing)"
                wait.pause()
        raise TfdistError(f"{self._who()}: closed during the rendezvous")

    def exit_barrier(
        self,
        *,
        timeout: float | None = None,
        still_alive: Callable[[], bool] | None = None,
    ) -> bool:
        """Waits until every rank of the latest rendezvous has called this.

        An early finisher that left at once would break the others' last steps.

        Args:
          timeout: seconds to wait; the settings' if None.
          still_alive: called about twice a second; returns whether all other ranks may still
            finish. False ends the wait on every rank.

        Returns:
          True if every rank has finished. False, never an exception, if a rank cannot finish any
          more, rank 0 is gone, or the time is over (the log then names the missing ranks).
        """
        rank = self._training_rank()
        if self._cluster.world_size == 1:
            return True
        if self._rendezvous_id is None:
            return False
        timeout = self._settings.exit_timeout if timeout is None else timeout
        watchful = {} if still_alive is None else {"poll": _WATCHFUL_POLL}
        wait = Wait(timeout, self._closed, **watchful)
        waiting_for = self._cluster.describe_rank(0)
        failures = 0
        while not wait.is_closed:
            abandon = still_alive is not None and not still_alive()
            if wait.is_over:
                _log.warning("%s: leaving after %g s without %s", self._who(), timeout, waiting_for)
                return False
            poll = 0.0 if abandon else wait.poll()
            request = messages.ExitRequest(
                rank=rank,
                rendezvous=self._rendezvous_id,
                generation=self._generation,
                wait=poll,
                abandon=abandon,
            )
            try:
                answer = self._call(messages.EXIT, request, poll, patient=False)
            except SilentError:
                # Rank 0 may be busy with its last steps, perhaps too busy to answer.
                if abandon:
                    return False
                continue
            except UnreachableError as error:
                # One failure may be a connection that a firewall dropped; two mean a lost rank 0.
                failures += 1
                if failures == 2 or abandon:
                    _log.info(
                        "%s: %s is gone: %s", self._who(), self._cluster.describe_rank(0), error
                    )
                    return False
                continue
            except TfdistError as error:
                _log.warning("%s: left without the others: %s", self._who(), error)
                return False
            failures = 0
            if answer["status"] != "waiting":
                return answer["status"] == "complete"
            waiting_for = self._cluster.describe_ranks(answer["missing"])
        return False

    def stop_watch(self, has_failed: Callable[[], bool]) -> StopWatch:
        """Begins to wait for the last step of the job; see `stop_board`. Call it once.

        Args:
          has_failed: as for `StopWatch`.

        Raises:
          ClusterConfigError: this task does not train.
        """
        return StopWatch(
            self._cluster.task_name,
            self._training_rank(),
            self._fingerprint,
            lambda request: self._call(STOP, request, request.wait, patient=True),
            has_failed=has_failed,
        )

    def close(self) -> None:
        """Stops the server and ends any call in progress; may be called more than once.

        Rank 0 first stays up to five seconds until every rank has the result of a completed
        rendezvous or exit barrier.
        """
        if self._closed.is_set():
            return
        if self._rendezvous is not None:
            self._rendezvous.close(linger=_LINGER)
        self._closed.set()
        if self._board is not None:
            self._board.close()
        if self._client is not None:
            self._client.close()
        if self._server is not None:
            self._server.close()

    def _call(
        self, method: Method, request: DataclassInstance, wait: float, *, patient: bool
    ) -> JsonObject:
        if self._client is not None:
            return self._client.call(method, request, wait, patient=patient)
        # Rank 0 calls itself directly: only other hosts may be able to reach its address.
        answer = self._handlers[method](request, ClientContext())
        if answer["status"] == "refused":
            raise ClusterConfigError(f"{self._who()}: {answer['reason']}")
        return answer

    def _result(self, answer: JsonObject) -> RendezvousResult:
        self._generation = answer["generation"]
        self._rendezvous_id = answer["rendezvous"]
        key = data_key(
            self._settings.secret, answer["rendezvous"], str(self._generation), answer["salt"]
        )
        return RendezvousResult(self._generation, key, tuple(answer["addresses"]))

    def _training_rank(self) -> int:
        if self._closed.is_set():
            raise TfdistError(f"{self._who()}: the control plane is closed")
        if self._cluster.rank is None:
            raise ClusterConfigError(
                f"{self._who()}: expected a chief or worker to meet the other ranks; a "
                f"{self._cluster.task_type} has no rank"
            )
        return self._cluster.rank

    def _who(self) -> str:
        if self._cluster.rank is None or self._cluster.is_local:
            return self._cluster.task_name
        return (
            f"{self._cluster.task_name} (rank {self._cluster.rank} of {self._cluster.world_size})"
        )
