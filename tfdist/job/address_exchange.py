"""The exchange of hosts between processes that know the host of process 0 only.

A `Cluster` has the addresses of all tasks. MPI launchers and torchrun name at most the host of
process 0, `MASTER_ADDR`. The other processes tell it their hosts, and receive all of them:

    process 1 --- "my host is b" --->  process 0  <--- "my host is c" --- process 2
              <----- [a, b, c] ------             ------ [a, b, c] ---->

Their ports follow from the indices (`HostExchange`). The exchange has a port of its own: process 0
still answers the last of the others there while the first ones already call its control server.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import logging
import socket
import threading
import uuid
from collections.abc import Mapping, Sequence

from tfdist.config import validation
from tfdist.config.cluster import Cluster
from tfdist.config.environments.launched import HostExchange
from tfdist.config.settings import Settings
from tfdist.control import callers, interfaces, network
from tfdist.control.client import ControlClient, UnreachableError
from tfdist.control.held_calls import ClientContext, HeldCalls
from tfdist.control.server import ControlServer
from tfdist.control.waiting import LOG_INTERVAL, Wait
from tfdist.errors import RendezvousTimeoutError
from tfdist.job import messages

_log = logging.getLogger("tfdist.control")
# Seconds for which process 0 answers repeated calls, after all have been answered.
_LINGER = 5.0
_lock = threading.Lock()
_known: dict[HostExchange, list[str]] = {}


def exchange_addresses(exchange: HostExchange, environ: Mapping[str, str]) -> list[str]:
    """Returns "host:port" of each process, once all have told their hosts to process 0.

    Later calls of this process return the same addresses at once.

    Args:
      exchange: the exchange.
      environ: variables by name, for the settings.

    Raises:
      RendezvousTimeoutError: processes were missing at the deadline.
      AuthenticationError: this process and process 0 do not hold the same secret.
      ClusterConfigError: process 0 refuses this process, or a setting is unusable.
      AddressInUseError: another process listens on the port of the exchange.
    """
    with _lock:
        if exchange not in _known:
            _known[exchange] = addresses_of(exchange, Settings.from_environment(environ))
        return _known[exchange]


def addresses_of(exchange: HostExchange, settings: Settings) -> list[str]:
    """Returns "host:port" of each process, once all have told their hosts to process 0.

    Args:
      exchange: the exchange.
      settings: the secret, the timeout and the wanted interface.

    Raises:
      Exception: as for `exchange_addresses`.
    """
    hosts = (_collect if exchange.index == 0 else _ask)(exchange, settings)
    return [f"{host}:{exchange.port(index)}" for index, host in enumerate(hosts)]


class AddressBook:
    """The hosts that process 0 knows. Without networking.

    Args:
      exchange: the exchange.
    """

    def __init__(self, exchange: HostExchange) -> None:
        self._exchange = exchange
        self._calls = HeldCalls()
        # For process 0 itself.
        self._changed = threading.Condition(self._calls.lock)
        self._hosts: dict[int, str] = {0: exchange.host}
        self._process: dict[int, str] = {}
        self._unanswered = set(range(1, exchange.size))

    def add(self, request: messages.AddressRequest, context: ClientContext) -> dict[str, object]:
        """Records a process's host, and waits for the others' hosts.

        Args:
          request: the request.
          context: ends the wait if the connection breaks.

        Returns:
          {"status": "complete", "hosts"}, {"status": "waiting", "missing": [indices]} or
          {"status": "refused", "reason"}.
        """
        with self._calls.lock:
            reason = self._reason_to_refuse(request)
            if reason:
                return {"status": "refused", "reason": reason}
            self._hosts[request.rank] = request.host
            self._process[request.rank] = request.process
            if not self._missing():
                self._changed.notify_all()
                self._calls.wake_all()
            self._calls.hold(context, request.wait, lambda: not self._missing())
            missing = self._missing()
            if missing:
                return {"status": "waiting", "missing": missing}
            if not context.disconnected:
                self._unanswered.discard(request.rank)
                if not self._unanswered:
                    self._changed.notify_all()
            return {"status": "complete", "hosts": self._all()}

    def wait(self, timeout: float) -> list[str] | list[int]:
        """Returns all hosts, in order; or after `timeout` seconds the indices of the missing."""
        with self._changed:
            self._changed.wait_for(lambda: not self._missing(), timeout)
            return self._missing() or self._all()

    def wait_until_answered(self, timeout: float) -> None:
        """Waits until every other process has had its answer, for `timeout` seconds at most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unanswered, timeout)

    def _missing(self) -> list[int]:
        return [index for index in range(self._exchange.size) if index not in self._hosts]

    def _all(self) -> list[str]:
        return [self._hosts[index] for index in range(self._exchange.size)]

    def _reason_to_refuse(self, request: messages.AddressRequest) -> str | None:
        own = self._exchange
        reason = callers.reason_to_refuse_rank(request, own.size)
        if reason:
            return reason
        if (request.world_size, request.servers) != (own.size, own.servers):
            return (
                f"the caller counts {request.world_size} processes with TFDIST_PS="
                f"{request.servers}, this task counts {own.size} with TFDIST_PS={own.servers}"
            )
        if request.rank == 0:
            return "the caller says rank 0, which this task is; expected another index"
        problem = validation.address_problem(f"{request.host}:1")
        if problem:
            return f"expected a host, received {validation.show(request.host)}: {problem}"
        known = self._process.get(request.rank)
        if known not in (None, request.process) and not self._missing():
            return f"another process is rank {request.rank} of this job already"
        return None


@dataclasses.dataclass(frozen=True)
class _Caller:
    """This process in messages, before it has a cluster."""

    task_name: str
    address: str | None
    training_addresses: Sequence[str] = ()


def _collect(exchange: HostExchange, settings: Settings) -> list[str]:
    """Returns all hosts, on process 0."""
    book = AddressBook(exchange)
    # The other hosts are not known yet; no name in ".invalid" exists (RFC 2606).
    port = exchange.first_port + exchange.size
    others = (f"rank-{index}.invalid:{port}" for index in range(1, exchange.size))
    server = ControlServer(
        Cluster(workers=(exchange.address, *others)),
        settings.secret,
        {messages.ADDRESS: book.add},
        interface=settings.interface,
        tls=settings.tls,
    )
    atexit.register(server.close)
    wait = Wait(settings.rendezvous_timeout)
    while True:
        found = book.wait(min(LOG_INTERVAL, wait.remaining))
        hosts = [host for host in found if isinstance(host, str)]
        if len(hosts) == exchange.size:
            break
        who = f"rank 0 of {exchange.size} at {exchange.address}"
        missing = validation.show_some(map(str, found))
        if wait.is_over:
            refusal = server.last_refusal
            server.close()
            raise RendezvousTimeoutError(
                f"{who}: expected the host of every rank within {settings.rendezvous_timeout:g} s, "
                f"still missing: rank {missing}" + (f"; {refusal}" if refusal else "")
            )
        _log.warning("%s: waiting for the host of rank %s", who, missing)

    def close_later() -> None:
        book.wait_until_answered(settings.rendezvous_timeout)
        threading.Event().wait(_LINGER)
        server.close()

    threading.Thread(target=close_later, name="tfdist-addresses", daemon=True).start()
    return hosts


def _ask(exchange: HostExchange, settings: Settings) -> list[str]:
    """Returns all hosts, on another process than 0."""
    who = f"rank {exchange.index} of {exchange.size}"
    wait = Wait(settings.rendezvous_timeout)
    process = uuid.uuid4().hex
    waiting_for = f"rank 0 at {exchange.address}"
    with contextlib.ExitStack() as opened:
        control: ControlClient | None = None
        host: str | None = None
        while True:
            if wait.is_over:
                raise RendezvousTimeoutError(
                    f"{who}: expected the hosts of all ranks within "
                    f"{settings.rendezvous_timeout:g} s, still missing: {waiting_for}"
                )
            if wait.is_log_due():
                _log.warning("%s: waiting for %s", who, waiting_for)
            host = host or _own_host(exchange.host, settings)
            if host is None:
                waiting_for = f"an address of {exchange.host}, the host of rank 0 (MASTER_ADDR)"
                wait.pause()
                continue
            if control is None:
                caller = _Caller(who, f"{host}:{exchange.port(exchange.index)}")
                name = f"rank 0 at {exchange.address}"
                control = ControlClient(
                    caller, settings.secret, exchange.address, name, settings.tls
                )
                opened.callback(control.close)
            poll = wait.poll()
            request = messages.AddressRequest(
                rank=exchange.index,
                world_size=exchange.size,
                servers=exchange.servers,
                host=host,
                process=process,
                wait=poll,
            )
            try:
                answer = control.call(messages.ADDRESS, request, poll, patient=True)
            except UnreachableError as error:
                waiting_for = f"rank 0 at {exchange.address} ({error})"
                wait.pause()
                continue
            if answer["status"] == "complete":
                return [str(known) for known in answer["hosts"]]
            waiting_for = f"the host of rank {validation.show_some(map(str, answer['missing']))}"


def _own_host(host_of_rank_0: str, settings: Settings) -> str | None:
    """Returns the host that this process tells; None while rank 0's host has no address."""
    if settings.interface is not None:
        address = network.select(settings.interface)
        return f"[{address}]" if ":" in address else address
    found = interfaces.resolve(host_of_rank_0.strip("[]"))
    if not found:
        return None
    if all(interfaces.is_of_this_host(address) for address in found):
        # In the same words on all of its tasks, so that they know that they share a host.
        return host_of_rank_0
    for address in found:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            # Sends nothing: the kernel chooses the route, and with it this host's address.
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address, 9))
                own = str(probe.getsockname()[0]).partition("%")[0]
        except OSError:
            continue
        return f"[{own}]" if ":" in own else own
    return None
