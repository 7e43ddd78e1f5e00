"""`Membership`: this process's place among the members of an elastic job.

It carries the protocol of `tfdist.control.generations` over the network, and connects the
communicator among the members of each generation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdist._version import __version__
from tfdist.config.cluster import Cluster
from tfdist.config.elastic import Elastic
from tfdist.config.settings import Settings
from tfdist.control import messages
from tfdist.control.client import ANSWER_MARGIN, RefusedError, SilentError, UnreachableError
from tfdist.control.generations import Decision, Generations
from tfdist.control.members import Generation, Member
from tfdist.control.messages import MessageError
from tfdist.control.probes import Probes
from tfdist.control.rendezvous import ClientContext
from tfdist.control.server import ControlServer
from tfdist.control.signing import data_key
from tfdist.errors import (
    AuthenticationError,
    ClusterConfigError,
    RendezvousTimeoutError,
    TfdistError,
)
from tfdist.ops import Communicator

__all__ = ["Member", "Membership", "Timing", "World"]

_log = logging.getLogger("tfdist.elastic")
_MAX_THREADS = 512
# Part of the rendezvous timeout for which a member that answers, but does not come, is waited for.
_PATIENCE = 0.8
# Stands for the address of a process without a cluster, which nobody calls.
_ALONE = "localhost:1"


@dataclasses.dataclass(frozen=True)
class Timing:
    """The protocol's times, in seconds.

    Args:
      answer: time in which a process has to answer a call, at least 1.
      grace: a member that has been silent for this long is not waited for.
      probe: between two probes of a member that is missing.
      check: between two looks at the ports of members of this host that are missing.
      retry: between two attempts that fail at once.
      log: between two log lines about those who are missing.
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


@dataclasses.dataclass(frozen=True)
class World:
    """One generation, as one of its members sees it.

    Attributes:
      generation: 1, 2, ...; numbers grow, and may be left out.
      members: in rank order.
      rank: this process's own.
      newcomers: the ranks that did not hold the job's state when the generation was formed.
    """

    generation: int
    members: tuple[Member, ...]
    rank: int
    newcomers: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.members)

    @property
    def is_newcomer(self) -> bool:
        """Whether this process's state is not the job's."""
        return self.rank in self.newcomers


class _Again(Exception):
    """A generation, or an attempt to form one, has failed: the next attempt is due."""


class _Outside(Exception):
    """The job goes on without this process."""


class Membership:
    """This process's place in an elastic job, from its start to its end.

    It starts the server on this task's address. `begin`, `form`, `establish` and `newcomers_wait`
    are called by one thread at a time; `leave` may be called by any thread, and ends a call in
    progress.

    Args:
      cluster: the tasks that this process knows, and its own, which trains.
      settings: the secret, the data port and the rendezvous timeout.
      elastic: the limits of the job.
      description: what all members must agree on, by field; the versions are added.
      timing: the protocol's times.

    Attributes:
      process: this process's unique id.
      world: the present generation, or None before the first.

    Raises:
      AddressInUseError: another process listens on this task's port.
      ClusterConfigError: this task does not train, or the limits do not fit the cluster.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        elastic: Elastic,
        description: Mapping[str, str],
        *,
        timing: Timing = Timing(),  # noqa: B008 - frozen
    ) -> None:
        if cluster.rank is None:
            raise ClusterConfigError(
                f"{cluster.task_name}: expected a chief or worker in an elastic job"
            )
        self.process = uuid.uuid4().hex
        self.world: World | None = None
        self._cluster = cluster
        self._settings = settings
        self._elastic = elastic
        self._timing = timing
        self._start = elastic.start(cluster)
        self._me = Member(self.process, cluster.task_name, cluster.address or _ALONE)
        self._names = {
            address: f"{cluster.name_of_rank(rank)} at {address}"
            for rank, address in enumerate(cluster.training_addresses or (_ALONE,))
        }
        self._closed = threading.Event()
        self._formed: Generation | None = None  # but not yet connected
        self._passed: dict[str, float] = {}  # by process: until when it is not asked to lead
        description = {"tfdist version": __version__, **description}
        self._founders = tuple(self._names)
        self._state = Generations(self._me, elastic, self._founders, self._start, description)
        self._probes = Probes(cluster, self.process, settings.secret, timing.answer)
        self._server: ControlServer | None = None
        if not cluster.is_local:
            self._server = ControlServer(
                cluster, settings.secret, self._state.handlers, max_threads=_MAX_THREADS
            )

    def describe(self, more: Mapping[str, str]) -> None:
        """Adds to what all members must agree on; call it before `form`."""
        self._state.describe(more)

    def begin(self) -> World | None:
        """Founds the job with the other founders, unless it runs already.

        Returns:
          Generation 1, to which `form` then connects; or None if a member of the running job has
          answered: this process is a newcomer.

        Raises:
          RendezvousTimeoutError: founders were missing at the deadline; names them.
          AuthenticationError: another task does not hold the same secret.
          ClusterConfigError: another task has another description or version.
          TfdistError: `leave` was called meanwhile.
        """
        others = [address for address in self._founders if address != self._me.address]
        began = time.monotonic()
        deadline = began + self._settings.rendezvous_timeout
        self._ask(others, every=0.0)
        while self._probes.under_way(others) and not self._meets_the_job(others, began):
            if time.monotonic() > began + self._timing.survey:
                break
            self._pause(self._timing.check)
        next_log = began + self._timing.log
        waiting_for = self._names[self._founders[0]]
        while not self._meets_the_job(others, began):
            for address in others:
                problem = self._probes.problem(address)
                if isinstance(problem, (AuthenticationError, RefusedError)):
                    raise problem
            answer, missing = self._found(min(self._timing.probe, deadline - time.monotonic()))
            waiting_for = missing or waiting_for
            if answer == "newcomer":
                return None
            now = time.monotonic()
            if answer != "complete" and now >= deadline:
                refusal = self._server.last_refusal if self._server is not None else None
                raise RendezvousTimeoutError(
                    f"{self._me.name}: no founding within {self._settings.rendezvous_timeout:g} s; "
                    f"expected {self._start} processes, still missing: {waiting_for}"
                    + (f"; {refusal}" if refusal else "")
                )
            if now >= next_log:
                _log.warning("%s: the founding waits for %s", self._me.name, waiting_for)
                next_log = now + self._timing.log
            self._ask(others, every=self._timing.probe)
        return None if self._formed is None else self._world(self._formed)

    def form(
        self,
        communicator: Communicator,
        *,
        admits: bool = True,
        on_too_few: Callable[[], None] | None = None,
    ) -> World:
        """Forms the next generation, and connects a communicator among its members.

        All members call it after a failure, or between two steps for a planned change; founders
        call it after `begin`; a newcomer calls it when it is ready to train. If members die
        meanwhile, further generations are formed. If the job went on without this process, it
        joins as a newcomer: see `World.is_newcomer`.

        Args:
          communicator: of any ranks; no collective of it is running.
          admits: if this process leads, it takes newcomers in. Without them the members may be
            fewer than `min_workers`.
          on_too_few: called once if this process is to lead a majority of the members that is
            smaller than `min_workers`, before it waits for newcomers.

        Returns:
          The new generation, whose communicator is connected.

        Raises:
          RendezvousTimeoutError: the majority, or `min_workers`, did not come in time.
          AuthenticationError: another member does not hold the same secret.
          ClusterConfigError: the members refuse this process; names the field, what they expect and
            what they received.
          tf.errors.UnavailableError: the data port cannot be bound.
          TfdistError: `leave` was called meanwhile.
        """
        communicator.leave()
        generation, self._formed = self._formed, None
        deadline = time.monotonic() + self._settings.rendezvous_timeout
        self._state.begin_forming(generation)
        try:
            while True:
                try:
                    if generation is None:
                        generation = self._agree(deadline, admits, on_too_few)
                    self._connect(communicator, generation, deadline)
                    break
                except _Again as failure:
                    _log.info("%s: %s", self._me.name, failure)
                    if generation is not None:
                        self._state.give_up(generation)
                    self._state.begin_forming()
                    generation = None
        except BaseException:
            self._state.stop_forming()
            raise
        self._state.enter(generation)
        self._passed = {}
        self.world = self._world(generation)
        _log.info(
            "%s: rank %d of %d in generation %d",
            self._me.name,
            self.world.rank,
            self.world.size,
            self.world.generation,
        )
        return self.world

    def establish(self) -> None:
        """Records that this process has completed the first collective of this generation.

        A newcomer calls it once it has received the job's state. Call it before the next training
        step: see generations.py for why no step may be committed in a generation that is not
        established.
        """
        self._state.establish()

    def newcomers_wait(self) -> bool:
        """Whether a newcomer waits here that can be taken in; only rank 0 ever sees True."""
        return self._state.newcomers_wait()

    def publish(self, news: str) -> None:
        """Lets other processes read a text of this member's."""
        self._state.publish(news)

    def news(self) -> str | None:
        """Returns what a member of the job has published; None if no member answers."""
        began = time.monotonic()
        others = self._others()
        self._ask(others, every=0.0)
        while True:
            for address in others:
                answer = self._probes.answer(address, began)
                if answer is not None and answer.get("member"):
                    return str(answer.get("news", ""))
            if not self._probes.under_way(others) or self._closed.is_set():
                return None
            self._pause(self._timing.check)

    def watch(
        self,
        communicator: Communicator,
        *,
        stalled: float = 5.0,
        silence: float = 10.0,
    ) -> None:
        """Begins to look after stalled collectives, in a thread, until `leave`.

        While a collective waits, the other members are probed. One that does not answer is given
        up: the collective then fails with `tf.errors.UnavailableError`, here and on the peers.

        Args:
          communicator: the one that is passed to `form`.
          stalled: seconds after which a collective is looked after.
          silence: seconds for which a member may leave probes unanswered.
        """
        threading.Thread(
            target=self._watch,
            args=(communicator, stalled, silence),
            name="tfdist-elastic-watch",
            daemon=True,
        ).start()

    def leave(self) -> None:
        """Tells all members that this process leaves, and closes; may be called again."""
        if self._closed.is_set():
            return
        self._closed.set()
        # First, so that nobody waits here for this process to lead.
        self._state.close()
        generation = self._state.entered or self._state.reference
        self._tell([m for m in generation.members if m != self._me] if generation else [])
        self._probes.close()
        if self._server is not None:
            self._server.close()

    # The founding.

    def _found(self, wait: float) -> tuple[str, str]:
        """Takes part in the founding for some seconds, and adopts it if it is complete.

        Returns:
          The answer's status, empty without one; and those who are missing, empty if unknown.
        """
        leader = self._founders[0]
        # A process that accepts connections, but does not answer, may be of a living job.
        recently = time.monotonic() - self._timing.answer
        stopped = [
            address
            for address in self._founders
            if self._probes.is_asked(address)
            and self._probes.answer(address, recently) is None
            and self._probes.accepts(address)
        ]
        if stopped:
            self._pause(min(self._timing.retry, max(0.0, wait)))
            silent = [address for address in stopped if self._probes.silent_for(address) > 0]
            return "", f"{self._described(silent)} (no answer)" if silent else ""
        request = messages.ElasticFound(
            protocol=messages.PROTOCOL,
            process=self._me.process,
            name=self._me.name,
            address=self._me.address,
            description=self._state.description,
            start=self._start,
            wait=max(0.0, wait),
        )
        if leader == self._me.address:
            answer = self._state.found(request, ClientContext())
            if answer["status"] == "refused":
                raise ClusterConfigError(f"{self._me}: {answer['reason']}")
        else:
            name = self._names[leader]
            try:
                answer = self._probes.call(leader, name, messages.ELASTIC_FOUND, request)
            except UnreachableError as error:
                self._pause(min(self._timing.retry, max(0.0, wait)))
                return "", f"{name} ({error})"
        if answer.get("status") == "complete":
            self._adopt(_generation(answer.get("generation")))
        missing = answer.get("missing")
        return str(answer.get("status")), self._described(missing if missing else [leader])

    def _meets_the_job(self, addresses: Sequence[str], since: float) -> bool:
        """Whether the job runs, or was founded; adopts the founding if this process is in it."""
        for address in addresses:
            answer = self._probes.answer(address, since)
            if answer is None or not answer.get("member"):
                continue
            generation = _generation(answer["reference"])
            if self.process in generation and generation.number == 1:
                self._adopt(generation)
            return True
        return self._formed is not None

    def _adopt(self, generation: Generation) -> None:
        if self._state.reference != generation:
            self._state.adopt(generation)
        for member in generation.members:
            self._learn_name(member)
        self._formed = generation

    # Round 1.

    def _agree(
        self, deadline: float, admits: bool, on_too_few: Callable[[], None] | None
    ) -> Generation:
        """Returns the next generation, of which this process is a member."""
        named: Member | None = None  # by a member that follows it
        while True:
            try:
                if self._state.reference is None:
                    return self._join()
                leader = named or self._find_leader()
                if leader == self._me:
                    found: Generation | Member | None = self._lead(deadline, admits, on_too_few)
                else:
                    found = self._follow(leader, deadline)
            except _Outside:
                _log.warning(
                    "%s: the job went on without this process, which joins it as a newcomer",
                    self._me.name,
                )
                self._state.become_newcomer()
                continue
            if isinstance(found, Generation):
                return found
            named = found if found is None or self._may_lead(found) else None
            if found is not None and named is None:
                self._pause(self._timing.retry)

    def _find_leader(self) -> Member:
        """Returns the first member that may lead, without asking it."""
        self._check()
        for member in self._reference().members:
            if member == self._me or self._may_lead(member):
                return member
        return self._me

    def _may_lead(self, member: Member) -> bool:
        return (
            self._passed.get(member.process, 0.0) <= time.monotonic()
            and self._probes.silent_for(member.address) < self._timing.answer
            and not self._has_ended(member)
        )

    def _lead(
        self, deadline: float, admits: bool, on_too_few: Callable[[], None] | None
    ) -> Generation | None:
        """Waits for the others and forms the next generation; None if another one is to lead."""
        state, timing = self._state, self._timing
        state.lead()
        began = time.monotonic()
        patient_until = began + _PATIENCE * self._settings.rendezvous_timeout
        next_log = began + timing.log
        told = False
        survey: list[str] | None = None
        while True:
            self._check()
            now, changes = time.monotonic(), state.changes
            missing = [member for member in state.missing() if not self._has_ended(member)]
            self._ask([member.address for member in missing], every=timing.probe)
            for member in missing:
                answer = self._answer_of(member, began)
                if answer is not None and answer.get("member") and self._is_before_me(member):
                    self._passed.pop(member.process, None)
                    state.follow(None)
                    return None
            given_up = {
                member.process
                for member in missing
                if self._probes.silent_for(member.address) >= timing.grace or now > patient_until
            }
            asked_all = False
            if survey is not None:
                asked_all = not self._probes.under_way(survey) or now > began + timing.answer
                self._look_for_the_job(survey, began)
            self._check_outside()
            decision = state.decide(given_up, asked_all=asked_all, admits=admits)
            if decision.generation is not None:
                if decision.gone:
                    _log.warning(
                        "%s: goes on without %s, silent for %g s",
                        self._me.name,
                        _listed(decision.gone),
                        timing.grace,
                    )
                return decision.generation
            if decision.lacks == "rank":
                state.follow(None)
                return None
            if decision.lacks in ("proof", "majority") or now > began + timing.answer:
                every = 0.0 if survey is None else timing.probe
                survey = self._others()
                self._ask(survey, every)
            if decision.lacks == "workers" and on_too_few is not None and not told:
                told = True
                on_too_few()
            if now >= deadline:
                raise RendezvousTimeoutError(self._why_not_formed(decision))
            if now >= next_log:
                _log.warning("%s: %s", self._me.name, self._why_not_formed(decision))
                next_log = now + timing.log
            state.wait(timing.check, changes)

    def _follow(self, leader: Member, deadline: float) -> Generation | Member | None:
        """Waits at a leader for the next generation.

        Returns:
          The generation; or, if another member is to lead, that one, or None if it is unknown.
        """
        self._state.follow(leader)
        next_log = time.monotonic() + self._timing.log
        missing = str(leader)
        while True:
            self._check()
            self._check_outside()
            now = time.monotonic()
            if now >= deadline:
                raise RendezvousTimeoutError(
                    f"{self._me.name}: no new generation within "
                    f"{self._settings.rendezvous_timeout:g} s; {leader} waits for {missing}"
                )
            if now >= next_log:
                _log.warning("%s: %s waits for %s", self._me.name, leader, missing)
                next_log = now + self._timing.log
            answer = self._call_leader(leader, min(self._poll, deadline - now))
            if answer is None:
                return None
            status = answer.get("status")
            if status == "complete":
                return self._received(answer)
            if status == "redirect":
                return _member(answer["leader"])
            if status == "out":
                raise _Outside
            if status == "waiting":
                missing = ", ".join(map(str, answer["missing"])) or str(leader)
                continue
            if status == "elsewhere":
                self._state.hear(str(answer["reference"]))
                self._check_outside()
            elif status == "other" and self._probes.is_of_this_host(leader.address):
                self._state.declare_dead(leader.process, "another process has its address")
            self._pass(leader)
            return None

    def _join(self) -> Generation:
        """Waits, as a newcomer, until the members of the job take this process in."""
        known = self._others()
        began = last_met = time.monotonic()
        next_log = began + self._timing.log
        target: tuple[str, str] | None = None
        while True:
            self._check()
            now = time.monotonic()
            if now >= last_met + self._settings.rendezvous_timeout:
                raise RendezvousTimeoutError(
                    f"{self._me.name}: no member of the job has answered for "
                    f"{self._settings.rendezvous_timeout:g} s; asked {self._described(known)}"
                )
            if now >= next_log:
                where = self._described(known) if target is None else target[1]
                _log.warning("%s: a newcomer, waits for %s", self._me.name, where)
                next_log = now + self._timing.log
            if target is None:
                known = self._others()
                target = self._a_member(known, now)
                if target is None:
                    # Perhaps all members have died. Then the newcomers found the job again.
                    generation = self._found_again()
                    if generation is not None:
                        return generation
                continue
            reply = self._call_as_newcomer(*target)
            status = reply.get("status")
            if status == "complete":
                return self._received(reply)
            if status == "waiting":
                last_met = time.monotonic()
            elif status == "redirect":
                leader = _member(reply["leader"])
                self._learn_name(leader)
                if (leader.address, str(leader)) == target:
                    self._pause(self._timing.retry)
                target = leader.address, str(leader)
            else:
                target = None
                self._pause(self._timing.retry)

    def _found_again(self) -> Generation | None:
        try:
            status, _ = self._found(self._timing.probe)
        except RefusedError as error:
            _log.info("%s", error)
            status = "refused"
        if status != "waiting":
            self._pause(self._timing.retry)
        generation, self._formed = self._formed, None
        return generation

    def _a_member(self, addresses: list[str], since: float) -> tuple[str, str] | None:
        """Asks all addresses; returns address and name of the leader, as a living member says."""
        self._ask(addresses, every=0.0)
        until = since + self._timing.answer
        while True:
            for address in addresses:
                answer = self._probes.answer(address, since)
                if answer is None or not answer.get("member"):
                    continue
                for member in _generation(answer["reference"]).members:
                    self._learn_name(member)
                if answer.get("leader") is not None:
                    leader = _member(answer["leader"])
                    # Members that have not noticed the leader's death still name it.
                    if not self._has_ended(leader):
                        return leader.address, str(leader)
                return address, self._names.get(address, address)
            if not self._probes.under_way(addresses) or time.monotonic() > until:
                return None
            self._pause(self._timing.check)

    def _call_as_newcomer(self, address: str, name: str) -> dict[str, Any]:
        request = self._form_request("", self._poll)
        try:
            return self._probes.call(address, name, messages.ELASTIC_FORM, request)
        except UnreachableError:
            return {}

    def _call_leader(self, leader: Member, wait: float) -> dict[str, Any] | None:
        """Returns a leader's answer; None if it gives none, and is then passed over for a time."""
        request = self._form_request(leader.process, max(0.0, wait))
        for attempt in range(2):
            try:
                return self._probes.call(
                    leader.address, str(leader), messages.ELASTIC_FORM, request
                )
            except (RefusedError, AuthenticationError):
                if not self._has_ended(leader):
                    raise
                return None
            except SilentError:
                self._pass(leader)
                return None
            except UnreachableError:
                if self._has_ended(leader):
                    return None
                # One failure may be a connection that a firewall dropped.
                if attempt:
                    self._pass(leader)
                    return None
            except ClusterConfigError as error:
                _log.warning("%s", error)
                if self._probes.is_of_this_host(leader.address):
                    self._state.declare_dead(leader.process, "another program has its address")
                self._pass(leader)
                return None
        return None

    def _form_request(self, to: str, wait: float) -> messages.ElasticForm:
        reference = self._state.reference
        return messages.ElasticForm(
            protocol=messages.PROTOCOL,
            to=to,
            process=self._me.process,
            name=self._me.name,
            address=self._me.address,
            description=self._state.description,
            reference=reference.to_text() if reference is not None else "",
            holds_state=self._state.base is not None,
            highest=self._state.highest,
            dead=json.dumps(self._dead_members(reference)),
            wait=wait,
        )

    def _dead_members(self, reference: Generation | None) -> list[str]:
        dead = self._state.dead
        members = reference.members if reference is not None else ()
        return [member.process for member in members if member.process in dead]

    def _received(self, answer: Mapping[str, Any]) -> Generation:
        generation = _generation(answer.get("generation"))
        self._state.receive(generation)
        for member in generation.members:
            self._learn_name(member)
        return generation

    # Round 2.

    def _connect(self, communicator: Communicator, generation: Generation, deadline: float) -> None:
        for member in generation.members:
            # They have called the leader a moment ago.
            self._probes.heard_from(member.address)
        communicator.reconfigure(generation.rank(self.process), len(generation.members))
        host = self._me.address.rpartition(":")[0]
        own = f"{host}:{communicator.port}"
        deadline = max(deadline, time.monotonic() + self._timing.grace)
        if generation.members[0] == self._me:
            addresses = self._collect_addresses(generation, own, deadline)
        else:
            addresses = self._ask_for_addresses(generation, own, deadline)
        key = data_key(
            self._settings.secret, generation.job, str(generation.number), generation.salt
        )
        with self._ending_attempt(communicator, generation):
            try:
                communicator.connect(
                    key,
                    generation.number,
                    addresses,
                    max(1.0, deadline - time.monotonic()),
                )
            except tf.errors.OpError as error:
                raise _Again(
                    f"generation {generation.number} could not connect: {error.message}"
                ) from None

    def _collect_addresses(self, generation: Generation, own: str, deadline: float) -> list[str]:
        """Returns the data addresses of the generation that this process leads."""
        state, timing = self._state, self._timing
        state.set_address(generation, own)
        began = time.monotonic()
        next_log = began + timing.log
        while True:
            self._check()
            changes = state.changes
            addresses = state.addresses(generation)
            if addresses is not None:
                return addresses
            missing = state.missing_addresses(generation)
            if missing is None:
                raise _Again(f"generation {generation.number} was given up by a member")
            why = self._why_lost(generation, missing, began)
            now = time.monotonic()
            if why or now >= deadline:
                raise _Again(why or f"no data address came from {_listed(missing)}")
            if now >= next_log:
                _log.warning("%s: round 2 waits for %s", self._me.name, _listed(missing))
                next_log = now + timing.log
            state.wait(timing.check, changes)

    def _ask_for_addresses(self, generation: Generation, own: str, deadline: float) -> list[str]:
        leader = generation.members[0]
        while True:
            self._check()
            now = time.monotonic()
            if now >= deadline:
                raise _Again(f"no data addresses came from {leader}")
            request = messages.ElasticAddress(
                protocol=messages.PROTOCOL,
                process=self.process,
                salt=generation.salt,
                description=self._state.description,
                data_address=own,
                wait=min(self._poll, deadline - now),
            )
            try:
                answer = self._probes.call(
                    leader.address, str(leader), messages.ELASTIC_ADDRESS, request
                )
            except UnreachableError as error:
                raise _Again(f"{leader} in round 2: {error}") from None
            if answer.get("status") == "complete":
                return [str(address) for address in answer["addresses"]]
            if answer.get("status") != "waiting":
                raise _Again(f"{leader} has given up generation {generation.number}")

    @contextlib.contextmanager
    def _ending_attempt(self, communicator: Communicator, generation: Generation) -> Iterator[None]:
        """While connecting: ends the attempt if a member dies or has given it up."""
        done = threading.Event()
        others = [member for member in generation.members if member != self._me]

        def look() -> None:
            began = time.monotonic()
            while not done.wait(5 * self._timing.check):
                why = self._why_lost(generation, others, began)
                if self._closed.is_set():
                    why = "this process leaves"
                if why:
                    communicator.abort(why)
                    return

        watcher = threading.Thread(target=look, name="tfdist-elastic-connect", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()

    def _why_lost(
        self, generation: Generation, members: Iterable[Member], began: float
    ) -> str | None:
        """Why a generation cannot be connected any more, or None."""
        members = list(members)
        for member in members:
            if self._has_ended(member):
                return f"{member} has ended: {self._state.dead[member.process]}"
        self._ask([member.address for member in members], every=self._timing.probe)
        for member in members:
            answer = self._answer_of(member, began)
            if answer is not None and int(answer.get("ended", 0)) >= generation.number:
                return f"{member} has given up generation {generation.number}"
            if self._probes.silent_for(member.address) >= self._timing.grace:
                return f"{member} does not answer"
        return None

    # What both rounds need.

    @property
    def _poll(self) -> float:
        """Seconds for which a call may be held: the callee must answer within `answer`."""
        return max(0.1, self._timing.answer - ANSWER_MARGIN)

    def _reference(self) -> Generation:
        reference = self._state.reference
        assert reference is not None
        return reference

    def _has_ended(self, member: Member) -> bool:
        """Whether a member is proven dead; its port is looked at if it is on this host."""
        if member.process in self._state.dead:
            return True
        if self._probes.refused(member.address):
            self._state.declare_dead(member.process, "nothing listens at its address")
            return True
        return False

    def _answer_of(self, member: Member, since: float) -> dict[str, Any] | None:
        """Returns a member's own answer to a probe; another process's is a proof of its death."""
        answer = self._probes.answer(member.address, since)
        if answer is None:
            return None
        if answer.get("process") != member.process:
            if self._probes.is_of_this_host(member.address):
                self._state.declare_dead(member.process, "another process has its address")
            return None
        self._state.hear(str(answer["reference"]))
        return answer

    def _look_for_the_job(self, addresses: Iterable[str], since: float) -> None:
        """Raises _Outside if the job, or another one, lives without this process."""
        reference = self._reference()
        for address in addresses:
            answer = self._probes.answer(address, since)
            if answer is None or not answer.get("member"):
                continue
            found = _generation(answer["reference"])
            later = found.job != reference.job or found.number > reference.number
            if later and self.process not in found:
                raise _Outside

    def _is_before_me(self, member: Member) -> bool:
        reference = self._reference()
        return reference.rank(member.process) < reference.rank(self.process)

    def _pass(self, member: Member) -> None:
        """Does not ask a member to lead for some time."""
        self._passed[member.process] = time.monotonic() + self._timing.answer

    def _others(self) -> list[str]:
        """The addresses of all processes that this one knows, but for itself."""
        reference = self._state.reference
        known = {member.address for member in reference.members} if reference else set()
        return [a for a in dict.fromkeys((*self._names, *known)) if a != self._me.address]

    def _ask(self, addresses: Iterable[str], every: float) -> None:
        self._probes.ask(addresses, every, self._names)

    def _learn_name(self, member: Member) -> None:
        self._names[member.address] = str(member)

    def _described(self, addresses: Iterable[str]) -> str:
        return ", ".join(self._names.get(address, address) for address in addresses)

    def _world(self, generation: Generation) -> World:
        return World(
            generation=generation.number,
            members=generation.members,
            rank=generation.rank(self.process),
            newcomers=tuple(
                rank
                for rank, member in enumerate(generation.members)
                if member.process in generation.newcomers
            ),
        )

    def _why_not_formed(self, decision: Decision) -> str:
        reference = self._reference()
        if decision.missing:
            return f"the next generation waits for {_listed(decision.missing)}"
        if decision.lacks == "workers":
            return (
                f"expected at least {self._elastic.min_workers} workers, there are "
                f"{decision.workers}"
            )
        return (
            f"expected more than half of the living members of generation {reference.number}, "
            f"missing: {_listed(decision.gone)}"
        )

    def _check(self) -> None:
        if self._closed.is_set():
            raise TfdistError(f"{self._me.name}: has left the job")

    def _check_outside(self) -> None:
        if self._state.outside is not None:
            raise _Outside

    def _pause(self, seconds: float) -> None:
        self._closed.wait(seconds)
        self._check()

    # The other threads.

    def _tell(self, others: Sequence[Member]) -> None:
        """Tells other members that this process leaves; silent ones are not waited for long."""
        request = messages.ElasticLeave(messages.PROTOCOL, self.process, wait=0.0)

        def tell(member: Member) -> None:
            with contextlib.suppress(UnreachableError, TfdistError):
                self._probes.call(member.address, str(member), messages.ELASTIC_LEAVE, request)

        threads = [
            threading.Thread(target=tell, args=(member,), name="tfdist-leave", daemon=True)
            for member in others
            if member.process not in self._state.dead
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + self._timing.farewell
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _watch(self, communicator: Communicator, stalled: float, silence: float) -> None:
        since: float | None = None
        while not self._closed.wait(min(self._timing.probe, stalled)):
            generation = self._state.entered
            if generation is None or communicator.closed or communicator.waiting(stalled) is None:
                since = None
                continue
            since = time.monotonic() if since is None else since
            others = [member for member in generation.members if member != self._me]
            self._ask([member.address for member in others], every=self._timing.probe)
            for member in others:
                self._answer_of(member, since)
                if self._has_ended(member):
                    why = f"{member} has ended: {self._state.dead[member.process]}"
                elif self._probes.silent_for(member.address) >= silence:
                    why = f"{member} does not answer"
                else:
                    continue
                _log.warning("%s: %s", self._me.name, why)
                if generation == self._state.entered:
                    communicator.abort(why)
                break


def _listed(members: Iterable[Member]) -> str:
    return ", ".join(map(str, members))


def _generation(text: Any) -> Generation:
    try:
        return Generation.from_text(str(text))
    except MessageError as error:
        raise ClusterConfigError(f"in another member's answer: {error}") from None


def _member(fields: Any) -> Member:
    try:
        return Member.from_fields(fields)
    except MessageError as error:
        raise ClusterConfigError(f"in another member's answer: {error}") from None
