"""The founding of an elastic job: generation 1."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from tfdist.control.client import RefusedError, UnreachableError
from tfdist.control.encoding import JsonObject
from tfdist.control.held_calls import ClientContext
from tfdist.elastic.peers import Peers
from tfdist.elastic.protocol import messages
from tfdist.elastic.protocol.members import Generation
from tfdist.elastic.protocol.start_size import StartSize
from tfdist.elastic.tombstone import Tombstone
from tfdist.errors import AuthenticationError, ClusterConfigError, RendezvousTimeoutError

_log = logging.getLogger("tfdist.elastic")


class Founding:
    """One process's part in the founding of a job.

    Args:
      peers: the other processes.
      founders: the addresses of all training tasks; founders meet at the first one.
      start: the number of founders, and how long the last of them are waited for.
      last_refusal: returns what this process's server has refused last, or None.
      tombstone: tells that the job has ended, so that no process forms it again.
    """

    def __init__(
        self,
        peers: Peers,
        founders: Sequence[str],
        start: StartSize,
        last_refusal: Callable[[], str | None],
        tombstone: Tombstone,
    ) -> None:
        self._peers = peers
        self._founders = tuple(founders)
        self._start = start
        self._last_refusal = last_refusal
        self.tombstone = tombstone
        self._formed: Generation | None = None

    def run(self) -> Generation | None:
        """Forms the job with the others; returns None if it runs already.

        Raises the errors of `Membership.begin`.
        """
        others = [address for address in self._founders if address != self._peers.me.address]
        wait = self._peers.wait()
        began = time.monotonic()
        self._peers.ask(others, every=0.0)
        while self._peers.probes.under_way(others) and not self._meets_the_job(others, began):
            if wait.elapsed > self._peers.timing.survey:
                break
            self._peers.pause(self._peers.timing.check)
        waiting_for = self._peers.names[self._founders[0]]
        while not self._meets_the_job(others, began):
            for address in others:
                problem = self._peers.probes.problem(address)
                if isinstance(problem, (AuthenticationError, RefusedError)):
                    raise problem
            answer, missing = self.take_part(min(self._peers.timing.probe, wait.remaining))
            waiting_for = missing or waiting_for
            if answer == "newcomer":
                return None
            if answer != "complete" and wait.is_over:
                refusal = self._last_refusal()
                raise RendezvousTimeoutError(
                    f"{self._peers.me.name}: no founding within {self._peers.timeout:g} s; "
                    f"expected {self._expected()}, still missing: {waiting_for}"
                    + (f"; {refusal}" if refusal else "")
                )
            if wait.is_log_due():
                _log.warning("%s: the founding waits for %s", self._peers.me.name, waiting_for)
            self._peers.ask(others, every=self._peers.timing.probe)
        if self._formed is None and self._leads_the_job(began):
            # Perhaps this process is one of the founders, and the answer that says so was lost.
            self.take_part(0.0)
        return self.take()

    def take(self) -> Generation | None:
        """Returns generation 1 once, if this process has taken part in its founding."""
        formed, self._formed = self._formed, None
        return formed

    def take_part(self, wait: float) -> tuple[str, str]:
        """Takes part in the founding for some seconds, and adopts it if it is complete.

        Args:
          wait: those seconds.

        Returns:
          The answer's status, empty without one; and the missing founders, empty if unknown.

        Raises:
          JobEnded: the job has ended.
        """
        self.tombstone.check()
        leader = self._founders[0]
        # A process that accepts connections, but does not answer, may be of a living job.
        recently = time.monotonic() - self._peers.timing.answer
        stopped = [
            address
            for address in self._founders
            if self._peers.probes.is_asked(address)
            and self._peers.probes.answer(address, recently) is None
            and self._peers.probes.accepts(address)
        ]
        if stopped:
            self._peers.pause(min(self._peers.timing.retry, max(0.0, wait)))
            silent = [address for address in stopped if self._peers.probes.silent_for(address) > 0]
            return "", f"{self._peers.described(silent)} (no answer)" if silent else ""
        request = messages.ElasticFoundRequest(
            fingerprint=self._peers.fingerprint,
            process=self._peers.me.process,
            name=self._peers.me.name,
            address=self._peers.me.address,
            description=self._peers.state.description,
            start=self._start.number,
            least=self._start.least,
            patience=self._start.patience,
            wait=max(0.0, wait),
        )
        if leader == self._peers.me.address:
            answer: JsonObject = self._peers.state.admit_founder(request, ClientContext())
            if answer["status"] == "refused":
                raise ClusterConfigError(f"{self._peers.me}: {answer['reason']}")
        else:
            name = self._peers.names[leader]
            try:
                answer = self._peers.probes.call(leader, name, messages.ELASTIC_FOUND, request)
            except UnreachableError as error:
                self._peers.pause(min(self._peers.timing.retry, max(0.0, wait)))
                return "", f"{name} ({error})"
        if answer.get("status") == "complete":
            self._adopt(self._peers.received(answer))
        missing = [
            self._founders[rank]
            for rank in answer.get("missing", ())
            if isinstance(rank, int) and 0 <= rank < len(self._founders)
        ]
        return str(answer.get("status")), self._peers.described(missing or [leader])

    def _meets_the_job(self, addresses: Sequence[str], since: float) -> bool:
        """Whether the job runs, or was formed."""
        answers = (self._peers.probes.answer(address, since) for address in addresses)
        runs = any(answer is not None and answer.is_member for answer in answers)
        return runs or self._formed is not None

    def _leads_the_job(self, since: float) -> bool:
        """Whether the job's members are met at the first address, where founders meet."""
        if self._founders[0] == self._peers.me.address:
            return self._peers.state.reference is not None
        answer = self._peers.probes.answer(self._founders[0], since)
        return answer is not None and answer.is_member

    def _expected(self) -> str:
        """The processes that are to come, in words."""
        if not self._start.patience:
            return f"{self._start.number} processes"
        leader = self._peers.names[self._founders[0]]
        return (
            f"{self._start.number} processes, or {self._start.least} for "
            f"{self._start.patience:g} s, {leader} among them, at which they meet"
        )

    def _adopt(self, generation: Generation) -> None:
        if self._peers.state.reference != generation:
            self._peers.state.adopt(generation)
        self._formed = generation
        come = len(generation.members)
        if come < self._start.number:
            _log.warning(
                "%s: the job begins with %d of %d processes, %g s after %d had come; the others "
                "join it when they come",
                *(self._peers.me.name, come, self._start.number),
                *(self._start.patience, self._start.least),
            )
