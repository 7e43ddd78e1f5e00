"""The other processes that a member of an elastic job knows, and how it asks them."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Collection, Iterable, Mapping

from tfdist.control import callers
from tfdist.control.client import ANSWER_MARGIN
from tfdist.control.encoding import MessageError
from tfdist.control.waiting import Wait
from tfdist.elastic.confirming import Confirming
from tfdist.elastic.protocol import messages
from tfdist.elastic.protocol.generations import Generations
from tfdist.elastic.protocol.members import Generation, Member
from tfdist.elastic.protocol.probes import ProbeAnswer, Probes
from tfdist.errors import ClusterConfigError, RendezvousTimeoutError, TfdistError

_log = logging.getLogger("tfdist.elastic")


@dataclasses.dataclass(frozen=True)
class Timing:
    """The protocol's times, in seconds.

    Args:
      answer: time in which a process has to answer a call, at least 1.
      grace: a member that has been silent for this long is not waited for.
      probe: between two probes of a member that is missing.
      check: between two looks at the ports of members of this host that are missing.
      retry: between two attempts that fail at once.
      log: between two log lines about missing members.
      survey: for which the founders' first look at all addresses may last.
      farewell: for which `leave` may last.
    """

    answer: float = 5.0
    grace: float = 10.0
    probe: float = 1.0
    check: float = 0.02
    retry: float = 0.1
    log: float = 10.0
    survey: float = 2.0
    farewell: float = 2.0


class Again(Exception):
    """A generation, or an attempt to form one, has failed: the next attempt is due."""


class Outside(Exception):
    """The job continues without this process."""


class CallOver(Exception):
    """The members have ended the call in which this newcomer waits."""


class Peers:
    """The other processes of an elastic job, as one of its processes knows them.

    Args:
      state: this process's part in forming generations.
      probes: its calls to other processes.
      names: by address, what messages call the processes that are known from the beginning.
      timing: the protocol's times.
      timeout: the rendezvous timeout in seconds.

    Attributes:
      me: this process.
      fingerprint: of the addresses that are known from the beginning.
      closed: this process leaves the job.
      confirming: asks at the addresses of processes that come.
    """

    def __init__(
        self,
        state: Generations,
        probes: Probes,
        names: Mapping[str, str],
        timing: Timing,
        timeout: float,
    ) -> None:
        self.me = state.me
        self.state = state
        self.probes = probes
        self.names = dict(names)
        self.fingerprint = callers.fingerprint(names)
        self._processes: dict[str, str] = {}  # the members' ids, by address
        self.timing = timing
        self.timeout = timeout
        self.closed = threading.Event()
        self.confirming = Confirming(state, lambda: self.probes, names, timing.retry, self.closed)

    @property
    def poll(self) -> float:
        """Seconds for which a call may be held: the callee must answer within `answer`."""
        return max(0.1, self.timing.answer - ANSWER_MARGIN)

    def reference(self) -> Generation:
        reference = self.state.reference
        assert reference is not None
        return reference

    def has_ended(self, member: Member) -> bool:
        """Whether a member is proven dead; its port is looked at if it is on this host."""
        if member.process in self.state.dead:
            return True
        if self.probes.refused(member.address):
            self.state.declare_dead(member.process, "nothing listens at its address")
            return True
        # Ray starts a task again at another address.
        if self.probes.silent_for(member.address) > 0 and self.state.has_successor(member):
            self.state.declare_dead(member.process, "its task was started again")
            return True
        return False

    def check_attempts(self, generation: Generation, wait: Wait) -> None:
        """Raises Again, after a pause, if others may continue without this process.

        Args:
          generation: the next one.
          wait: for the other members.

        Raises:
          RendezvousTimeoutError: the same at the deadline.
        """
        for attempt in self.state.attempts:
            living = [m for m in attempt.members if m == self.me or not self.has_ended(m)]
            absent = [m for m in living if m.process not in generation]
            if 2 * len(absent) <= len(living):
                continue
            why = (
                f"{self.me.name}: was in generation {attempt.number} until it failed, and cannot "
                f"know whether it has continued: expected at least half of its living members, "
                f"missing: {listed(absent)}"
            )
            if wait.is_over:
                raise RendezvousTimeoutError(
                    f"{why}; waited {self.timeout:g} s (TFDIST_RENDEZVOUS_TIMEOUT)"
                )
            _log.warning("%s", why)
            self.pause(self.timing.answer)
            raise Again(f"generation {generation.number} was not entered")

    def answer_of(self, member: Member, since: float) -> ProbeAnswer | None:
        """Returns a member's own answer to a probe; another process's is a proof of its death."""
        answer = self.probes.answer(member.address, since)
        if answer is None:
            return None
        if not answer.is_from(member.process):
            self.found_another_at(member)
            return None
        self.state.hear(member.process, answer.number, answer.mark)
        return answer

    def found_another_at(self, member: Member) -> None:
        """Records that another process answers at a member's address.

        Its task was started again, which the scheduler does after its end alone; or another program
        has taken its port.
        """
        self.state.declare_dead(member.process, "another process has its address")

    def form_request(self, wait: float) -> messages.ElasticFormRequest:
        reference = self.state.reference
        return messages.ElasticFormRequest(
            fingerprint=self.fingerprint,
            process=self.me.process,
            name=self.me.name,
            address=self.me.address,
            description=self.state.description,
            call=self.state.call,
            number=reference.number if reference is not None else 0,
            mark=reference.mark if reference is not None else "",
            holds_state=self.state.base is not None,
            highest=self.state.highest,
            dead=self._dead_members(reference),
            nonce="",
            proof="",
            wait=wait,
        )

    def _dead_members(self, reference: Generation | None) -> list[str]:
        dead = self.state.dead
        members = reference.members if reference is not None else ()
        return [member.process for member in members if member.process in dead]

    def received(self, answer: Mapping[str, object]) -> Generation:
        generation = generation_of(answer.get("generation"))
        if self.me.process not in generation:
            raise ClusterConfigError(
                f"{self.me.name}: in another member's answer: expected a generation with this "
                f"process, received {listed(generation.members)}"
            )
        self.state.receive(generation)
        for member in generation.members:
            self.learn(member)
        return generation

    def others(self) -> list[str]:
        """The addresses of all processes that this one knows, except itself."""
        reference = self.state.reference
        known = {member.address for member in reference.members} if reference else set()
        return [a for a in dict.fromkeys((*self.names, *known)) if a != self.me.address]

    def ask(self, addresses: Iterable[str], every: float) -> None:
        self.probes.ask(addresses, every, self.names, self._processes, self.state.job)

    def learn(self, member: Member) -> None:
        self.names[member.address] = str(member)
        self._processes[member.address] = member.process

    def described(self, addresses: Iterable[str]) -> str:
        return ", ".join(self.names.get(address, address) for address in addresses)

    def check(self) -> None:
        if self.closed.is_set():
            raise TfdistError(f"{self.me.name}: has left the job")

    def check_outside(self, given_up: Collection[str] = ()) -> None:
        """Raises Outside if the job is known to continue without this process."""
        if self.state.is_outside(given_up):
            raise Outside

    def wait(self, timeout: float | None = None, longest_pause: float | None = None) -> Wait:
        """Begins a wait for other processes, which ends when this process leaves the job.

        Args:
          timeout: seconds; the rendezvous timeout if None.
          longest_pause: as in `Wait`.
        """
        return Wait(
            self.timeout if timeout is None else timeout,
            self.closed,
            poll=self.poll,
            pause=self.timing.retry,
            longest_pause=longest_pause,
            log_interval=self.timing.log,
        )

    def pause(self, seconds: float) -> None:
        self.closed.wait(seconds)
        self.check()


def listed(members: Iterable[Member]) -> str:
    """Returns the members' names and addresses as one text."""
    return ", ".join(map(str, members))


def generation_of(fields: object) -> Generation:
    """Returns the generation in an answer; raises ClusterConfigError if there is none."""
    try:
        return Generation.from_fields(fields)
    except MessageError as error:
        raise ClusterConfigError(f"in another member's answer: {error}") from None


def member_of(fields: object) -> Member:
    """Returns the member in an answer; raises ClusterConfigError if there is none."""
    try:
        return Member.from_fields(fields)
    except MessageError as error:
        raise ClusterConfigError(f"in another member's answer: {error}") from None
