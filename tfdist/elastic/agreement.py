"""Round 1 of a generation: its members and their ranks."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable

from tfdist.control.client import RefusedError, SilentError, UnreachableError
from tfdist.control.encoding import JsonObject
from tfdist.control.waiting import Wait
from tfdist.elastic.joining import Joining
from tfdist.elastic.peers import Outside, Peers, listed, member_of
from tfdist.elastic.protocol import messages
from tfdist.elastic.protocol.generations import LeaderDecision
from tfdist.elastic.protocol.members import Generation, Member
from tfdist.errors import AuthenticationError, ClusterConfigError, RendezvousTimeoutError

_log = logging.getLogger("tfdist.elastic")
# Part of the rendezvous timeout for which a member that answers, but does not come, is waited for.
_PATIENCE = 0.8


class Agreement:
    """One process's part in agreeing on the next generation.

    Args:
      peers: the other processes.
      joining: a newcomer's steps instead.
      min_workers: the least number of members.
    """

    def __init__(self, peers: Peers, joining: Joining, min_workers: int) -> None:
        self._peers = peers
        self._joining = joining
        self._min_workers = min_workers
        self._passed: dict[str, float] = {}  # by process: until when it is not asked to lead

    def run(
        self,
        wait: Wait,
        admits: bool,
        rejoins: bool,
        on_too_few: Callable[[], None] | None,
    ) -> Generation:
        """Returns the next generation, of which this process is a member.

        Args:
          wait: for the other members.
          admits: as for `Membership.form`.
          rejoins: as for `Membership.form`.
          on_too_few: as for `Membership.form`.

        Raises the errors of `Membership.form`.
        """
        self._passed = {}
        named: Member | None = None  # by a member that follows it
        while True:
            try:
                if self._peers.state.reference is None:
                    return self._joining.run()
                leader = named or self._find_leader()
                if leader == self._peers.me:
                    found: Generation | Member | None = self._lead(wait, admits, on_too_few)
                else:
                    found = self._follow(leader, wait)
            except Outside:
                self._peers.state.become_newcomer()
                if not rejoins:
                    raise
                _log.warning(
                    "%s: the job continued without this process, which joins it as a newcomer",
                    self._peers.me.name,
                )
                continue
            if isinstance(found, Generation):
                return found
            named = found if found is None or self._may_lead(found) else None
            if found is not None and named is None:
                # It was silent when this process asked last; its follower hears it.
                self._peers.ask([found.address], every=self._peers.timing.probe)
                self._peers.pause(self._peers.timing.retry)

    def _find_leader(self) -> Member:
        """Returns the first member that may lead, without asking it."""
        self._peers.check()
        for member in self._peers.reference().members:
            if member == self._peers.me or self._may_lead(member):
                return member
        return self._peers.me

    def _may_lead(self, member: Member) -> bool:
        return (
            self._passed.get(member.process, 0.0) <= time.monotonic()
            and self._peers.probes.silent_for(member.address) < self._peers.timing.answer
            and not self._peers.has_ended(member)
        )

    def _lead(
        self, wait: Wait, admits: bool, on_too_few: Callable[[], None] | None
    ) -> Generation | None:
        """Waits for the others and forms the next generation; None if another one is to lead."""
        state, probes, timing = self._peers.state, self._peers.probes, self._peers.timing
        state.lead()
        began = time.monotonic()
        patient_until = began + _PATIENCE * self._peers.timeout
        told = False
        asked_all = False
        survey: list[str] = []
        surveyed = 0.0  # monotonic time of the first questions of the survey
        # When a network heals, all come again, but not at once: the first to come are not enough.
        lacked_majority = False
        waits_until, fewest = 0.0, math.inf
        while True:
            self._peers.check()
            now, changes = time.monotonic(), state.changes
            missing = [member for member in state.missing() if not self._peers.has_ended(member)]
            self._peers.ask([member.address for member in missing], every=timing.probe)
            for member in missing:
                answer = self._peers.answer_of(member, began)
                if answer is not None and answer.is_member and self._is_before_me(member):
                    self._passed.pop(member.process, None)
                    state.follow(None)
                    return None
            if lacked_majority and len(missing) < fewest:
                waits_until = now + timing.answer + timing.probe
            fewest = min(fewest, len(missing))
            given_up = {
                member.process
                for member in missing
                if now >= waits_until
                and (probes.silent_for(member.address) >= timing.grace or now > patient_until)
            }
            if survey:
                asked_all |= not probes.under_way(survey) or now > surveyed + timing.answer
                self._look_for_the_job(survey, began)
            self._peers.check_outside(given_up)
            decision = state.decide(given_up, asked_all=asked_all, admits=admits)
            if decision.generation is not None:
                for claim in state.claims:
                    _log.warning(
                        "%s: %s: more than half of the members are here, so that it has not",
                        self._peers.me.name,
                        claim,
                    )
                if decision.gone:
                    _log.warning(
                        "%s: continues without %s, silent for %g s",
                        self._peers.me.name,
                        listed(decision.gone),
                        timing.grace,
                    )
                return decision.generation
            if decision.lacks == "rank":
                state.follow(None)
                return None
            lacked_majority |= decision.lacks == "majority"
            if decision.lacks in ("proof", "majority") or now > began + timing.answer:
                # Not later than the next decision, since all have to be asked after `began`.
                every = timing.probe if survey else 0.0
                surveyed = surveyed or now
                survey = self._peers.others()
                self._peers.ask(survey, every)
                asked_all |= not survey
            if decision.lacks == "workers" and on_too_few is not None and not told:
                told = True
                on_too_few()
            if wait.is_over:
                raise RendezvousTimeoutError(
                    f"{self._peers.me.name}: {self._why_not_formed(decision)}; waited "
                    f"{self._peers.timeout:g} s (TFDIST_RENDEZVOUS_TIMEOUT)"
                )
            if wait.is_log_due():
                _log.warning(
                    "%s: %s; waits at most %.0f s more (TFDIST_RENDEZVOUS_TIMEOUT)",
                    self._peers.me.name,
                    self._why_not_formed(decision),
                    wait.remaining,
                )
            state.wait(timing.check, changes)

    def _follow(self, leader: Member, wait: Wait) -> Generation | Member | None:
        """Waits at a leader for the next generation.

        Returns:
          The generation; or, if another member is to lead, that one, or None if it is unknown.
        """
        self._peers.state.follow(leader)
        waits_for = str(leader)
        while True:
            self._peers.check()
            self._peers.check_outside()
            if wait.is_over:
                raise RendezvousTimeoutError(
                    f"{self._peers.me.name}: the workers did not meet again within "
                    f"{self._peers.timeout:g} s (TFDIST_RENDEZVOUS_TIMEOUT); waited for {waits_for}"
                )
            if wait.is_log_due():
                _log.warning("%s: waits for %s", self._peers.me.name, waits_for)
            answer = self._call_leader(leader, wait.poll())
            if answer is None:
                return None
            status = answer.get("status")
            if status == "complete":
                return self._peers.received(answer)
            if status == "redirect":
                return member_of(answer["leader"])
            if status == "waiting":
                missing = ", ".join(map(str, answer["missing"])) or "more workers"
                waits_for = f"{leader}, which waits for {missing}"
                continue
            if status == "out":
                self._peers.state.hear(leader.process, answer["number"], answer["mark"])
                self._peers.check_outside()
            elif status == "other":
                self._peers.found_another_at(leader)
            self._pass(leader)
            return None

    def _call_leader(self, leader: Member, wait: float) -> JsonObject | None:
        """Returns a leader's answer; None if it gives none, and is then passed over for a time."""
        request = self._peers.form_request(wait)
        for attempt in range(2):
            try:
                return self._peers.probes.call_member(leader, messages.ELASTIC_FORM, request)
            except RefusedError:
                if not self._peers.has_ended(leader):
                    raise
                return None
            except SilentError:
                self._pass(leader)
                return None
            except UnreachableError:
                if self._peers.has_ended(leader):
                    return None
                # One failure may be a connection that a firewall dropped.
                if attempt:
                    self._pass(leader)
                    return None
            except (AuthenticationError, ClusterConfigError) as error:
                _log.warning("%s", error)
                if self._peers.probes.is_of_this_host(leader.address):
                    why = "another program has its address"
                    self._peers.state.declare_dead(leader.process, why)
                self._pass(leader)
                return None
        return None

    def _look_for_the_job(self, addresses: Iterable[str], since: float) -> None:
        """Raises Outside if the job, or another one, lives without this process."""
        state = self._peers.state
        members = {member.address: member for member in self._peers.reference().members}
        for address in addresses:
            answer = self._peers.probes.answer(address, since)
            if answer is None or not answer.is_member or state.has_majority:
                continue
            member = members.get(address)
            if member is not None and answer.is_from(member.process):
                state.hear(member.process, answer.number, answer.mark)
                continue
            # A member may answer at a second name of its address, too: of the same generation.
            state.hear("", answer.number, answer.mark)
            if not 0 < answer.number <= self._peers.reference().number:
                raise Outside

    def _is_before_me(self, member: Member) -> bool:
        reference = self._peers.reference()
        return reference.rank(member.process) < reference.rank(self._peers.me.process)

    def _pass(self, member: Member) -> None:
        """Does not ask a member to lead for some time."""
        self._passed[member.process] = time.monotonic() + self._peers.timing.answer

    def _why_not_formed(self, decision: LeaderDecision) -> str:
        reference = self._peers.reference()
        if self._peers.state.claims:
            return "; ".join(self._peers.state.claims)
        if decision.missing:
            return f"the next generation waits for {listed(decision.missing)}"
        if decision.lacks == "workers":
            return f"expected at least {self._min_workers} workers, there are {decision.workers}"
        return (
            f"expected more than half of the living members of generation {reference.number}, "
            f"missing: {listed(decision.gone)}"
        )
