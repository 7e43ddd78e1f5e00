"""Which other processes of an elastic job answer, and which are proven dead.

Only an answer shows that a process runs: the kernel of a stopped process still accepts its
connections. A process is proven dead by a refused connection, at an address of this host, since no
process listens there; or by another process of its task, at its address or a new one, which the
scheduler starts after its end alone. A broken connection and silence prove nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tfdist.config.tls import Tls
from tfdist.control import callers, interfaces
from tfdist.control.client import (
    ANSWER_MARGIN,
    Caller,
    ControlClient,
    RefusedError,
    UnreachableError,
)
from tfdist.control.encoding import JsonObject
from tfdist.control.service import Method
from tfdist.elastic.protocol import messages, proofs
from tfdist.elastic.protocol.members import Member
from tfdist.errors import TfdistError

if TYPE_CHECKING:
    pass

_CONNECT_TIMEOUT = 0.5  # s


@dataclasses.dataclass(frozen=True)
class ProbeAnswer:
    """An answer to a probe.

    Attributes:
      is_member: it is a member of a job that was formed.
      number: of the latest generation that it knows to be established; 0 if there is none, or if it
        is none of this process's job.
      mark: of that generation; see `Generation.mark`.
      ended: the last generation that it has given up.
    """

    is_member: bool
    number: int
    mark: str
    ended: int
    _fields: Mapping[str, object]
    _nonce: str

    @classmethod
    def of(cls, fields: Mapping[str, object], nonce: str) -> ProbeAnswer | None:
        """Returns a process's answer to the probe with `nonce`; None if it makes no sense."""
        member = fields.get("member")
        number, mark, ended = (
            fields.get(field, other) for field, other in (("number", 0), ("mark", ""), ("ended", 0))
        )
        if (
            fields.get("status") == "here"
            and isinstance(member, bool)
            and isinstance(number, int)
            and isinstance(mark, str)
            and isinstance(ended, int)
        ):
            return cls(member, number, mark, ended, fields, nonce)
        return None

    def is_from(self, process: str) -> bool:
        """Whether the process with an id has given it."""
        return proofs.is_from(self._fields, self._nonce, process)


@dataclasses.dataclass
class _Silence:
    """The knowledge about one address; times are monotonic."""

    asked: float = 0.0  # the time of the latest question
    unanswered: float | None = None  # the time of the first question since the last answer
    failed: float = 0.0  # the time at which a question was last found to have no answer
    answered: float = 0.0
    answer: ProbeAnswer | None = None
    problem: Exception | None = None
    under_way: bool = False


class Probes:
    """Calls to the other processes of an elastic job.

    Args:
      caller: this process's task, in messages.
      secret: the shared secret or None.
      answer_timeout: seconds in which a process has to answer a probe, at least 1.
      tls: the origin of this task's certificate, or None.
    """

    def __init__(
        self,
        caller: Caller,
        secret: bytes | None,
        answer_timeout: float,
        tls: Tls | None = None,
    ) -> None:
        self._caller = caller
        self._tls = tls
        self._fingerprint = callers.fingerprint(caller.training_addresses)
        self._secret = secret
        self._probe_wait = max(0.0, answer_timeout - ANSWER_MARGIN)
        self._lock = threading.Lock()
        self._clients: dict[str, ControlClient] = {}
        self._silences: dict[str, _Silence] = {}
        self._own: dict[str, list[str]] = {}
        self._closed = False

    def call(self, address: str, name: str, method: Method, request: Any) -> JsonObject:
        """Calls the process at an address, and records whether it answers.

        Args:
          address: its control address.
          name: its name in errors.
          method: the method.
          request: the request.

        Raises the errors of `ControlClient.call`.
        """
        began = time.monotonic()
        self._asked(address, began)
        try:
            answer = self._client(address, name).call(method, request, request.wait, patient=False)
        except (UnreachableError, TfdistError) as error:
            with self._lock:
                silence = self._silence(address)
                silence.problem, silence.failed = error, time.monotonic()
            raise
        self.heard_from(address)
        return answer

    def call_member(
        self,
        member: Member,
        method: Method,
        request: messages.ElasticFormRequest | messages.ElasticAddressRequest,
    ) -> JsonObject:
        """Calls a member, and proves to it that this process is of its job.

        Returns:
          The answer; {"status": "other"} if another process than the member has given it.

        Raises the errors of `ControlClient.call`.
        """
        request = proofs.prove(request, member.process)
        other = {"status": "other"}
        try:
            answer = self.call(member.address, str(member), method, request)
        except RefusedError as error:
            if proofs.is_from(error.answer, request.nonce, member.process):
                raise
            return other
        return answer if proofs.is_from(answer, request.nonce, member.process) else other

    def probe(self, address: str, name: str, key: str) -> ProbeAnswer | None:
        """Asks the process at an address whether it lives; None if there is no valid answer.

        Args:
          address: its control address.
          name: its name in errors.
          key: its id or, if that is unknown, the job's; empty if both are.
        """
        request = messages.ElasticProbeRequest(
            self._fingerprint, nonce="", proof="", wait=self._probe_wait
        )
        request = proofs.prove(request, key)
        try:
            fields = self.call(address, name, messages.ELASTIC_PROBE, request)
        except (UnreachableError, TfdistError):
            return None
        answer = ProbeAnswer.of(fields, request.nonce)
        if answer is not None:
            with self._lock:
                silence = self._silence(address)
                silence.answer, silence.answered = answer, time.monotonic()
        return answer

    def probe_stranger(self, address: str) -> ProbeAnswer | None:
        """Asks at an address that an unknown caller has named, and tells nothing there."""
        request = proofs.prove(messages.ElasticProbeRequest("", "", "", self._probe_wait), "")
        name = f"a newcomer at {address}"
        client = ControlClient(self._caller, self._secret, address, name, self._tls)
        with contextlib.closing(client):
            try:
                fields = client.call(
                    messages.ELASTIC_PROBE, request, self._probe_wait, patient=False
                )
            except (UnreachableError, TfdistError):
                return None
        return ProbeAnswer.of(fields, request.nonce)

    def ask(
        self,
        addresses: Iterable[str],
        every: float,
        names: Mapping[str, str],
        keys: Mapping[str, str],
        job: str,
    ) -> None:
        """Begins to probe addresses in threads of their own; does not wait.

        Args:
          addresses: of other processes.
          every: seconds between two probes of one address. The next one begins after the end of
            the last one.
          names: their names in errors, by address.
          keys: their ids, by address, as far as they are known.
          job: the job's id; empty if it is unknown.
        """
        for address in addresses:
            now = time.monotonic()
            with self._lock:
                silence = self._silence(address)
                if self._closed or silence.under_way or now - silence.asked < every:
                    continue
                silence.under_way = True
            self._asked(address, now)
            name, key = names.get(address, address), keys.get(address, job)
            threading.Thread(
                target=self._probe_once,
                args=(address, name, key),
                name="tfdist-probe",
                daemon=True,
            ).start()

    def under_way(self, addresses: Iterable[str]) -> bool:
        """Whether probes of any of these addresses have not ended."""
        with self._lock:
            return any(self._silence(address).under_way for address in addresses)

    def answer(self, address: str, since: float) -> ProbeAnswer | None:
        """Returns the latest answer to a probe of an address.

        Args:
          address: of the process.
          since: monotonic time; an earlier answer does not count.
        """
        with self._lock:
            silence = self._silence(address)
            return silence.answer if silence.answered >= since else None

    def is_asked(self, address: str) -> bool:
        """Whether a question to an address has had no answer yet."""
        with self._lock:
            return self._silence(address).unanswered is not None

    def silent_for(self, address: str) -> float:
        """Returns the seconds for which an address is known to answer no question, or 0.

        They count from the first question without an answer to the end of the last one.
        """
        with self._lock:
            silence = self._silence(address)
            began = silence.unanswered
            return 0.0 if began is None else max(0.0, silence.failed - began)

    def heard_from(self, address: str) -> None:
        """Records that the process at an address has said something."""
        with self._lock:
            silence = self._silence(address)
            silence.unanswered = silence.problem = None

    def problem(self, address: str) -> Exception | None:
        """Returns the error of the last call to an address, or None."""
        with self._lock:
            return self._silence(address).problem

    def is_of_this_host(self, address: str) -> bool:
        """Whether "host:port" is an address of this host."""
        return bool(self._own_addresses(interfaces.host_of(address)))

    def refused(self, address: str) -> bool:
        """Whether this host's kernel refuses connections to an address of its own.

        Then no process listens there: the former process has ended.
        """
        found = self._own_addresses(interfaces.host_of(address))
        port = int(address.rpartition(":")[2])
        return bool(found) and all(_connect(host, port) == errno.ECONNREFUSED for host in found)

    def accepts(self, address: str) -> bool:
        """Whether an address accepts connections, which a stopped process does, too."""
        host, port = interfaces.host_of(address), int(address.rpartition(":")[2])
        return any(_connect(found, port) == 0 for found in interfaces.resolve(host))

    def close(self) -> None:
        """Closes the connections; calls under way raise UnreachableError."""
        with self._lock:
            self._closed = True
            clients = list(self._clients.values())
            self._clients = {}
        for client in clients:
            client.close()

    def _probe_once(self, address: str, name: str, key: str) -> None:
        try:
            self.probe(address, name, key)
        finally:
            with self._lock:
                self._silence(address).under_way = False

    def _client(self, address: str, name: str) -> ControlClient:
        with self._lock:
            client, is_closed = self._clients.get(address), self._closed
        if client is not None:
            return client
        if is_closed:
            raise UnreachableError("this process has left the job")
        # Without the lock: gRPC has locks of its own, and others ask here who is silent.
        made = ControlClient(self._caller, self._secret, address, name, self._tls)
        with self._lock:
            if not self._closed:
                client = self._clients.setdefault(address, made)
        if client is not made:
            made.close()
        if client is None:
            raise UnreachableError("this process has left the job meanwhile")
        return client

    def _asked(self, address: str, now: float) -> None:
        with self._lock:
            silence = self._silence(address)
            silence.asked = now
            if silence.unanswered is None:
                silence.unanswered = now

    def _silence(self, address: str) -> _Silence:
        return self._silences.setdefault(address, _Silence())

    def _own_addresses(self, host: str) -> list[str]:
        """The numeric addresses of a host, if all are this host's; else none."""
        with self._lock:
            if host in self._own:
                return self._own[host]
        found = interfaces.resolve(host)
        own = found if all(interfaces.is_of_this_host(address) for address in found) else []
        if found:
            with self._lock:
                self._own[host] = own
        return own


def _connect(host: str, port: int) -> int:
    """Returns the error number of a connection; 0 if it was accepted."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.closing(socket.socket(family)) as probe:
        probe.settimeout(_CONNECT_TIMEOUT)
        try:
            return probe.connect_ex((host, port))
        except OSError as error:
            return error.errno or errno.EIO
