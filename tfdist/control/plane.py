"""`ControlPlane`: what one task does to meet the others and to part from them."""

from __future__ import annotations

import dataclasses
import logging
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from tfdist.config import validation
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.control import messages
from tfdist.control.client import ControlClient, SilentError, UnreachableError
from tfdist.control.rendezvous import Caller, Rendezvous
from tfdist.control.server import ControlServer
from tfdist.control.signing import data_key
from tfdist.errors import ClusterConfigError, RendezvousTimeoutError, TfdistError

_log = logging.getLogger("tfdist.control")
# How long rank 0 may hold one call (s). Longer saves calls; shorter finds a lost one sooner.
_LONG_POLL = 5.0
# The same while somebody wants to be asked whether the others still live.
_WATCHFUL_POLL = 0.5
# Between two failures that each came at once.
_RETRY_PAUSE = 0.2
# How long rank 0 stays for ranks that have not heard yet how a rendezvous or exit barrier ended.
_LINGER = 5.0


@dataclasses.dataclass(frozen=True)
class Membership:
    """What a completed rendezvous gives to every rank alike.

    Args:
      generation: 1 for the first set of ranks that was complete, one more for each new one.
      key: 32 bytes that the data connections of this generation are proven with. With a secret
        they are derived from it, on each rank, and never sent.
      addresses: data addresses, "host:port", in rank order.
    """

    generation: int
    key: bytes = dataclasses.field(repr=False)
    addresses: tuple[str, ...]


class ControlPlane:
    """This task's place in the control plane; a context manager that closes itself.

    Starts the server on this task's address. Calls of one object must not overlap, except `close`,
    which may come from any thread and ends a call under way.

    Args:
      cluster: the tasks and this one's place among them.
      settings: secret and timeouts.

    Raises:
      AddressInUseError: another process listens on this task's port.

    Example:
      >>> with ControlPlane(Cluster.local(), Settings()) as plane:
      ...     plane.rendezvous("localhost:4711").addresses
      ('localhost:4711',)
    """

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._process = uuid.uuid4().hex
        self._closed = threading.Event()
        self._meeting = Rendezvous(cluster) if cluster.rank == 0 and not cluster.is_local else None
        self._server: ControlServer | None = None
        self._client: ControlClient | None = None
        self._generation = 0
        self._meeting_id: str | None = None
        if cluster.address is not None:
            meeting = self._meeting
            answers = {messages.JOIN: meeting.join, messages.EXIT: meeting.exit} if meeting else {}
            self._server = ControlServer(cluster, settings.secret, answers)
        if cluster.rank:
            self._client = ControlClient(
                cluster, settings.secret, cluster.address_of_rank(0), cluster.describe_rank(0)
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
    ) -> Membership:
        """Meets all other ranks at rank 0.

        Args:
          data_address: "host:port" at which this task accepts data connections.
          timeout: seconds to wait for the others; the settings' if None.
          log_interval: seconds between two lines in the log that name who is missing.

        Returns:
          The same membership on every rank.

        Raises:
          RendezvousTimeoutError: ranks were missing at the deadline (by at most a second or so).
          AuthenticationError: this task and rank 0 do not hold the same secret.
          ClusterConfigError: this task is no training task, or rank 0 was given another cluster, or
            another process took this task's place.
          TfdistError: closed meanwhile.
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
            return Membership(self._generation, secrets.token_bytes(32), (data_address,))
        start = time.monotonic()
        deadline, next_log = start + timeout, start + log_interval
        attempt = uuid.uuid4().hex
        waiting_for = self._cluster.describe_rank(0)
        while True:
            now = time.monotonic()
            if now >= deadline:
                refusal = self._server.last_refusal if self._server is not None else None
                raise RendezvousTimeoutError(
                    f"{self._who()}: no rendezvous within {timeout:g} s; expected "
                    f"{self._cluster.world_size} ranks, still missing: {waiting_for}"
                    + (f"; {refusal}" if refusal else "")
                )
            if now >= next_log:
                _log.warning("%s: waiting for %s", self._who(), waiting_for)
                next_log = now + log_interval
            wait = min(_LONG_POLL, deadline - now, next_log - now)
            join = messages.Join(
                protocol=messages.PROTOCOL,
                rank=rank,
                world_size=self._cluster.world_size,
                fingerprint=messages.fingerprint(self._cluster.training_addresses),
                data_address=data_address,
                process=self._process,
                attempt=attempt,
                wait=wait,
                final=wait >= deadline - now,
            )
            try:
                answer = self._call(messages.JOIN, join, wait, patient=True)
            except UnreachableError as error:
                waiting_for = f"{self._cluster.describe_rank(0)} ({error})"
                self._closed.wait(min(_RETRY_PAUSE, max(0.0, deadline - time.monotonic())))
            else:
                if answer["status"] == "complete":
                    return self._enter(answer)
                if answer["status"] == "waiting":
                    waiting_for = self._describe(answer["missing"])
                else:
                    waiting_for = f"{self._cluster.describe_rank(0)} (it is closing)"
                    self._closed.wait(min(_RETRY_PAUSE, max(0.0, deadline - time.monotonic())))
            if self._closed.is_set():
                raise TfdistError(f"{self._who()}: closed during the rendezvous")

    def exit_barrier(
        self,
        *,
        timeout: float | None = None,
        still_alive: Callable[[], bool] | None = None,
    ) -> bool:
        """Waits until every rank of the latest rendezvous has come here.

        An early finisher that left at once would break the others' last steps.

        Args:
          timeout: seconds to wait; the settings' if None.
          still_alive: asked about twice a second whether all other ranks may still come; False ends
            the wait on every rank.

        Returns:
          True if everybody came. False, never an exception, if somebody cannot come any more,
          rank 0 is gone, or the time is over (which is logged with the names of those missing).
        """
        rank = self._training_rank()
        if self._cluster.world_size == 1:
            return True
        if self._meeting_id is None:
            return False
        timeout = self._settings.exit_timeout if timeout is None else timeout
        deadline = time.monotonic() + timeout
        waiting_for = self._cluster.describe_rank(0)
        failures = 0
        while not self._closed.is_set():
            abandon = still_alive is not None and not still_alive()
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                _log.warning("%s: leaving after %g s without %s", self._who(), timeout, waiting_for)
                return False
            poll = _LONG_POLL if still_alive is None else _WATCHFUL_POLL
            wait = 0.0 if abandon else min(poll, remaining)
            request = messages.Exit(
                protocol=messages.PROTOCOL,
                rank=rank,
                meeting=self._meeting_id,
                generation=self._generation,
                wait=wait,
                abandon=abandon,
            )
            try:
                answer = self._call(messages.EXIT, request, wait, patient=False)
            except SilentError:
                # Rank 0 may be busy with its last steps, perhaps too busy to answer.
                if abandon:
                    return False
                continue
            except UnreachableError as error:
                # Once may be a connection that a firewall forgot; twice in a row is rank 0 gone.
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
            waiting_for = self._describe(answer["missing"])
        return False

    def close(self) -> None:
        """Stops the server and ends any call under way; may be called more than once.

        Rank 0 first stays up to five seconds for ranks that have yet to hear the outcome of a
        completed rendezvous or exit barrier.
        """
        if self._closed.is_set():
            return
        if self._meeting is not None:
            self._meeting.close(linger=_LINGER)
        self._closed.set()
        if self._client is not None:
            self._client.close()
        if self._server is not None:
            self._server.close()

    def _call(self, method: str, request: Any, wait: float, *, patient: bool) -> dict[str, Any]:
        if self._client is not None:
            return self._client.call(method, request, wait, patient=patient)
        # Rank 0 asks itself: its own address may be one that only others can reach.
        meet = self._meeting.join if method == messages.JOIN else self._meeting.exit
        answer = meet(request, Caller())
        if answer["status"] == "refused":
            raise ClusterConfigError(f"{self._who()}: {answer['reason']}")
        return answer

    def _enter(self, answer: dict[str, Any]) -> Membership:
        self._generation = answer["generation"]
        self._meeting_id = answer["meeting"]
        key = data_key(
            self._settings.secret, answer["meeting"], str(self._generation), answer["salt"]
        )
        return Membership(self._generation, key, tuple(answer["addresses"]))

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

    def _describe(self, ranks: Iterable[int]) -> str:
        return ", ".join(self._cluster.describe_rank(rank) for rank in ranks)
