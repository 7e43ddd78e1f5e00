"""Which processes form the next generation of an elastic job. Without networking.

Every process of the job holds one `Generations`, since any process may have to lead. Generation 1
is the *founding* (see founders.py). Each later one is formed when members die or leave, or
newcomers wait:

```
  member 1        member 2 = leader       member 3         newcomer
     |                  |                    |                 |
   (dies)               |<------ Form ------ | (member 1 is    |
                        |                    |  dead: 2 leads) |
                        |<------ Form -------|-----------------|   held: round 1
                        |   decide()         |                 |
                        |-- complete ------->|---------------->|   members and ranks of g+1
                        |                    |                 |
                        |<------ Address ----|<--- Address ----|   held: round 2
                        |-- complete ------->|---------------->|   data addresses of all ranks
                        |<===== data connections, first collective ====>|
                        | establish()        | establish()     | establish()
```

**Leader.** The lowest-ranked member of the reference generation that lives and answers. A member
that follows another one answers `Form` with "redirect" to it.

**Base and reference.** A process's *base* is the last generation that it has established: it has
completed a collective in it. The *reference* is the latest generation that any process is known to
have established; it decides the members, the majority and the order of ranks. Two survivors may
have different bases, because one lost its peer just after the first collective. The latest base
counts, which is safe:

- A collective completes at a process only if all members take part in it. So if one process has
  established generation g+1, all members of g+1 have entered it, and the majority of g+1 may be
  applied to each.
- A training step of g+1 needs collectives after the first one, so each member has established g+1
  before any member commits a step in it. If no survivor has established g+1, no step was committed
  in it, and the survivors may continue from g as if g+1 had not been.

**Majority.** Generation g+1 needs more than half of the members of the reference that are not
proven dead. Two sets that both are more than half of the living have a member in common, and a
member follows one leader at a time, so at most one of two partitions continues. A process that was
stopped, or cut off, may wake when all other members of its generation are dead, but their
successors are not. So where the majority depends on proofs of death, the leader first asks all
addresses that it knows whether the job lives there (`asked_all`). A member that has told this
process that it leaves is no such case: it counts for the majority, as it is in no later generation.

**Attempts.** A process that has entered a generation, and lost it before it had established it,
cannot know whether another member has established it. Then those may continue from there, by the
majority of that generation. So it takes part in a later one only if that has at least half of the
attempt's members that are not proven dead: no majority of them can continue elsewhere. Two lines of
generations would need it in both.

**Belief.** A call is believed only as far as its caller has proven something (see `proofs`):

- Any process may probe this one: it says that it lives, and whether it is a member.
- Any process may come as a founder or newcomer. It is heard when the process at the address that it
  names has proven to be the caller; before that it reads refusals without values.
- A process that leaves shows its key.
- A member's call is believed about the dead (but a member whose call is held lives), the largest
  number, its own state, and a later established generation that this process has received from its
  leader.
- A later generation that it has not received is never believed in a call. If more than half of the
  other living members, of the reference or of an attempt, answer so, or all that are neither here
  nor given up, this process is out.
  No process is while more than half of all members are here, and know no attempt since the
  reference.

An established generation with this process in it is a generation that it has entered, as said
above, so that it need not learn its members and its salt from others. One without this process has
a majority of the living members of the reference, so that one of its members is here if more than
half of all are; and that one has entered it, and knows its number. If no process here knows such a
number, there is none. Else an answer counts, even of one member: to continue alone would be worse
than to wait.

**State.** A process holds the job's state if it has a base. A newcomer has none, and neither has a
member of a generation that failed before it was established; such processes do not lead, and their
ranks come after the others' ranks.

**Numbers only grow.** A generation that fails in a round is given up; its number is not used again,
since each call tells the largest number that its process has seen.
"""

from __future__ import annotations

import collections
import dataclasses
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from tfdist.config import validation
from tfdist.config.elastic import MAX_WORKERS, Elastic
from tfdist.control import callers, signing
from tfdist.control.held_calls import ClientContext, HeldCalls
from tfdist.control.server import Handler
from tfdist.control.service import Method
from tfdist.elastic.protocol import messages, proofs
from tfdist.elastic.protocol.address_round import AddressRound
from tfdist.elastic.protocol.arrivals import Arrival, Arrivals
from tfdist.elastic.protocol.founders import Founders
from tfdist.elastic.protocol.members import Generation, Member, problem_with_member
from tfdist.elastic.protocol.start_size import StartSize

_OF_ANOTHER = "the caller means another process, or is none of this job"
# Generations that this process has received since the reference; all but the last have failed.
_MAX_RECEIVED = 16


@dataclasses.dataclass(frozen=True)
class LeaderDecision:
    """The leader's findings; see `Generations.decide`.

    Attributes:
      generation: the next generation, or None if it cannot be formed yet.
      missing: members that have not come, and are neither dead nor given up.
      gone: members that have not come and are not waited for any more.
      lacks: why there is no generation although no process is waited for: "majority"; "workers"
        (fewer than `min_workers`); "proof" (the majority depends on proofs of death, and not all
        known addresses have been asked); "rank" (a lower-ranked member has come, which is to lead).
        Empty if members are missing or the generation was formed.
      workers: the number of processes that have come, newcomers included.
    """

    generation: Generation | None = None
    missing: tuple[Member, ...] = ()
    gone: tuple[Member, ...] = ()
    lacks: str = ""
    workers: int = 0


class Generations:
    """One process's part in forming the generations of an elastic job.

    Handlers (`probe`, `admit_founder`, `form`, `address`, `leave`) answer other processes in the
    server's threads. The other methods are this process's own. Calls wait inside the handlers, each
    at most as long as its request says.

    Args:
      me: this process.
      elastic: the limits.
      addresses: of the training tasks that this process knows, in the order of their ranks.
      start: the number of founders, and how long the last of them are waited for.
      description: the values that all members must agree on.
      ask: begins to ask a process at its address who it is, without waiting; see `confirm`. It
        is also told the host of the call.
      callers_are_signed: all callers hold the shared secret.
    """

    def __init__(
        self,
        me: Member,
        elastic: Elastic,
        addresses: Sequence[str],
        start: StartSize,
        description: Mapping[str, str],
        *,
        ask: Callable[[Member, str], None],
        callers_are_signed: bool = False,
    ) -> None:
        self.me = me
        self._ask = ask
        self._callers_are_signed = callers_are_signed
        self._fingerprint = callers.fingerprint(addresses)
        self._elastic = elastic
        self._description = dict(description)
        self._required = frozenset(description)
        self._calls = HeldCalls()
        # For this process itself.
        self._changed = threading.Condition(self._calls.lock)
        self._changes = 0
        self._closed = False
        self._founders = Founders(me, addresses, start)
        self._base: Generation | None = None
        self._reference: Generation | None = None
        self._entered: Generation | None = None
        # Entered and not established, by their members' ids: of equal ones the last.
        self._attempts: dict[frozenset[str], Generation] = {}
        self._job = ""
        self._received: collections.deque[Generation] = collections.deque(maxlen=_MAX_RECEIVED)
        # By member: the number of a generation without this process that it knows.
        self._claims: dict[str, int] = {}
        self._highest = 0
        self._ended = 0
        self._dead: dict[str, str] = {}
        self._left: set[str] = set()  # the dead members that have told this process
        self._forming = False
        self._described = False
        self._leader: Member | None = None
        self._arrived = Arrivals()
        self._round: AddressRound | None = None
        # The call in which this process stands, and how many it has ended.
        self._call = self._calls_ended = 0

    # This process's own view.

    @property
    def description(self) -> dict[str, str]:
        """The values that all members must agree on, by name."""
        with self._changed:
            return dict(self._description)

    def describe(self, more: Mapping[str, str], instead_of: Collection[str] = ()) -> None:
        """Adds values that all members must agree on, as soon as both of two have described them.

        Args:
          more: by field.
          instead_of: fields that are forgotten, unless `more` has them.
        """
        with self._changed:
            for field in instead_of:
                self._description.pop(field, None)
            self._description.update(more)
            self._notify()

    def stand(self, call: int, ended: int) -> None:
        """Notes where this process stands: newcomers are taken in only where they stand, too.

        Args:
          call: the number of the call of `fit` in which it is, from 1; 0 in none.
          ended: how many calls it has ended; see `tfdist.elastic.calls`.
        """
        with self._changed:
            self._call, self._calls_ended = call, ended
            self._notify()

    @property
    def call(self) -> int:
        """The number of the call in which this process stands; see `stand`."""
        with self._changed:
            return self._call

    @property
    def calls_ended(self) -> int:
        """How many calls this process has ended; see `stand`."""
        with self._changed:
            return self._calls_ended

    def knows_job(self, request: messages.ElasticRecordRequest) -> bool:
        """Whether a caller has the job's secret or, where there is none, its list of addresses."""
        return self._knows_job(request)

    @property
    def base(self) -> Generation | None:
        """The last generation that this process has established; None for a newcomer."""
        with self._changed:
            return self._base

    @property
    def reference(self) -> Generation | None:
        """The latest established generation that this process knows, and is a member of."""
        with self._changed:
            return self._reference

    def is_outside(self, given_up: Collection[str] = ()) -> bool:
        """Whether the job is known to continue without this process.

        Args:
          given_up: members that are not waited for.
        """
        with self._changed:
            return self._is_outside(given_up)

    @property
    def has_majority(self) -> bool:
        """Whether more than half of all members are here, and know no attempt since the reference.

        Then the job has not continued without them.
        """
        with self._changed:
            return self._has_majority()

    @property
    def claims(self) -> list[str]:
        """The members' statements that the job has continued without this process, in words."""
        with self._changed:
            members = self._reference.members if self._reference is not None else ()
            return [
                f"{member} says that generation {self._claims[member.process]} has continued "
                "without this process"
                for member in members
                if member.process in self._claims
            ]

    @property
    def job(self) -> str:
        """Identifies the job; empty for a process that was never a member."""
        with self._changed:
            return self._job

    @property
    def entered(self) -> Generation | None:
        """The generation whose members this process is connected to, or None."""
        with self._changed:
            return self._entered

    @property
    def attempts(self) -> list[Generation]:
        """The generations since the reference that this process has entered."""
        with self._changed:
            return list(self._attempts.values())

    @property
    def highest(self) -> int:
        """The largest generation number that this process has seen."""
        with self._changed:
            return self._highest

    @property
    def dead(self) -> Mapping[str, str]:
        """The processes that are proven dead, and why."""
        with self._changed:
            return dict(self._dead)

    def adopt(self, generation: Generation) -> None:
        """Takes part in generation 1, which the leader of the founding has completed."""
        with self._changed:
            self._set_reference(generation)
            self._base = generation
            self._notify()

    def become_newcomer(self) -> None:
        """Forgets the job: this process holds no state of it any more, or never did."""
        with self._changed:
            self._base = self._reference = self._entered = self._round = None
            self._forming = False
            self._leader = None
            self._arrived.clear()
            self._attempts.clear()
            self._claims.clear()
            self._notify()

    def begin_forming(self, first: Generation | None = None) -> None:
        """Waits for the next generation, and gives up the present one.

        Args:
          first: generation 1, if this process is to connect to its members.
        """
        with self._changed:
            self._forming = self._described = True
            if first is None:
                self._give_up()
            self._notify()

    def give_up(self, generation: Generation) -> None:
        """Gives up a generation to whose members this process could not connect."""
        with self._changed:
            self._ended = max(self._ended, generation.number)
            self._give_up()

    def lead(self) -> None:
        """Makes this process the leader, which decides."""
        self._set_leader(self.me)

    def follow(self, leader: Member | None) -> None:
        """Makes this process redirect others to `leader`; None while it looks for one."""
        self._set_leader(leader)

    def enter(self, generation: Generation) -> None:
        """Records that this process is connected to the members of a generation."""
        with self._changed:
            self._entered = generation
            if self._reference is not None and generation.number > self._reference.number:
                self._attempts[generation.processes] = generation
            self._forming = False
            self._leader = None
            self._notify()

    def stop_forming(self) -> None:
        """Records that this process does not wait for a generation any more."""
        with self._changed:
            self._forming = False
            self._leader = None
            self._notify()

    def establish(self) -> None:
        """Makes the present generation this process's base."""
        with self._changed:
            assert self._entered is not None
            self._set_reference(self._entered)
            self._base = self._entered

    def newcomers_wait(self) -> bool:
        """Whether the leader of the present generation can take in a process that waits here."""
        with self._changed:
            present = self._entered
            if self._forming or present is None or not self._arrived:
                return False
            limit = self._elastic.max_workers
            if present.members[0] != self.me or (limit and len(present.members) >= limit):
                return False
            self._arrived.expire()
            # A task that was started again waits until its former process is known to be dead.
            taken = {m.address for m in present.members if m.process not in self._dead}
            return any(
                arrival.member.process not in present
                and arrival.member.address not in taken
                and arrival.call == self._call
                for arrival in self._arrived.confirmed
            )

    def hear(self, process: str, number: int, mark: str) -> None:
        """Learns which generation another process knows to be established, by its own answer.

        Args:
          process: the other one.
          number: of that generation; 0 for none.
          mark: as in `Generation.mark`.
        """
        with self._changed:
            reference = self._reference
            if reference is None:
                return
            is_later = not self._learn_reference(number, mark) and number > reference.number
            if is_later and process in reference:
                self._claims[process] = number
                self._notify()

    def confirm(self, address: str, is_at: Callable[[str], bool]) -> None:
        """Learns which of the processes that say that they have an address is there.

        Args:
          address: the address.
          is_at: whether the process that answers there has an id.
        """
        with self._changed:
            waiting = (*self._arrived.at(address), *self._founders.at(address))
            for process in filter(is_at, dict.fromkeys(waiting)):
                is_news = process in self._arrived and self._arrived.confirm(process)
                if process in self._founders:
                    is_news |= self._founders.confirm(process)
                if is_news:
                    self._forget_death(process)
                    self._begin_if_complete()
                    self._notify()

    def declare_dead(self, process: str, why: str) -> None:
        """Records a proof that a process is dead."""
        with self._changed:
            if process != self.me.process and process not in self._dead:
                self._bury(process, why)

    def receive(self, generation: Generation) -> None:
        """Records a generation that a leader has formed, so that its number is not used again."""
        with self._changed:
            self._receive(generation)

    def missing(self) -> list[Member]:
        """Returns the members of the reference that have not come and are not proven dead."""
        with self._changed:
            self._arrived.expire()
            return self._missing()

    def has_successor(self, member: Member) -> bool:
        """Whether another process of a member's task, which is no member, waits here."""
        with self._changed:
            self._arrived.expire()
            reference = self._reference
            return reference is not None and any(
                arrival.member.name == member.name and arrival.member.process not in reference
                for arrival in self._arrived.confirmed
            )

    def decide(
        self, given_up: Collection[str], *, asked_all: bool, admits: bool = True
    ) -> LeaderDecision:
        """Forms the next generation if this process, the leader, can.

        Args:
          given_up: processes that are not waited for, because they have been silent for the grace.
          asked_all: all addresses that this process knows were asked, and no later generation of
            this job, and no other job, lives there.
          admits: takes newcomers in. Without them the members may be fewer than `min_workers`.

        Returns:
          The decision; with a generation, round 2 has begun.
        """
        with self._changed:
            self._arrived.expire()
            reference = self._reference
            # A newcomer has no reference, so that the leader holds the job's state.
            assert reference is not None and self._leader == self.me
            present = self._present(reference)
            taken_in = self._admissible(reference, present) if admits else []
            absent = self._missing()
            missing = tuple(member for member in absent if member.process not in given_up)
            gone = tuple(member for member in absent if member.process in given_up)
            workers = len(present) + len(taken_in)

            def lacking(what: str) -> LeaderDecision:
                return LeaderDecision(missing=missing, gone=gone, lacks=what, workers=workers)

            if missing:
                return lacking("")
            if 2 * len(present) <= len(present) + len(absent):
                return lacking("majority")
            if present[0].member != self.me:
                return lacking("rank")
            left = sum(member.process in self._left for member in reference.members)
            if 2 * (len(present) + left) <= len(reference.members) and not asked_all:
                return lacking("proof")
            if admits and workers < self._elastic.min_workers:
                return lacking("workers")
            formed = present + taken_in
            generation = Generation(
                number=self._highest + 1,
                members=tuple(arrival.member for arrival in formed),
                newcomers=frozenset(a.member.process for a in formed if not a.holds_state),
                job=reference.job,
                salt=secrets.token_hex(16),
            )
            self._begin_round(generation)
            for arrival in formed:
                self._arrived.pop(arrival.member.process, None)
            return LeaderDecision(generation=generation, gone=gone, workers=workers)

    def addresses(self, generation: Generation) -> list[str] | None:
        """Returns the data addresses of a generation that this process leads, by rank.

        Returns:
          None while some are missing.
        """
        with self._changed:
            found = self._round_of(generation)
            return found.addresses if found is not None and found.is_complete else None

    def missing_addresses(self, generation: Generation) -> list[Member] | None:
        """Returns the members whose data addresses are missing; None if round 2 has failed."""
        with self._changed:
            found = self._round_of(generation)
            return None if found is None else found.missing

    def set_address(self, generation: Generation, data_address: str) -> None:
        """Records this process's own data address in a generation that it leads."""
        with self._changed:
            found = self._round_of(generation)
            if found is not None:
                found.add(self.me.process, data_address)
                self._notify()

    def wait(self, seconds: float, changes: int) -> None:
        """Waits until something has changed since `changes`, at most for some seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._changes != changes, seconds)

    @property
    def changes(self) -> int:
        """The number of changes so far, for `wait`."""
        with self._changed:
            return self._changes

    def close(self) -> None:
        """Releases all waiting calls; later ones are answered with "closed"."""
        with self._changed:
            self._closed = True
            self._notify()

    # Handlers.

    def probe(
        self, request: messages.ElasticProbeRequest, context: ClientContext
    ) -> dict[str, object]:
        """Says that this process lives; to a process of its job, in which generation.

        Returns:
          {"status": "here", "member" (whether it is one of a job that was formed)}, or {"status":
          "refused", "reason"}. To a process of its job also "number" and "mark" of its reference,
          and "ended" (the last generation that it has given up).
        """
        with self._changed:
            if self._closed:
                return self._signed({"status": "closed"}, request)
            reference = self._reference
            is_of_job = self._is_proven(request) or proofs.is_proven(request, self._job)
            answer = {
                "status": "here",
                "member": reference is not None and not self._is_outside(),
            }
            if is_of_job:
                answer |= {
                    "number": reference.number if reference is not None else 0,
                    "mark": reference.mark if reference is not None else "",
                    "ended": self._ended,
                }
            return self._signed(answer, request)

    def admit_founder(
        self, request: messages.ElasticFoundRequest, context: ClientContext
    ) -> dict[str, object]:
        """Adds a founder and waits for the others; only the task of the first address is called.

        Returns:
          {"status": "complete", "generation"}, {"status": "waiting", "missing": [ranks]},
          {"status": "newcomer"} (the job was formed without the caller), {"status": "refused",
          "reason"} or {"status": "closed"}.
        """
        with self._changed:
            problem = _problem_with_caller(request)
            if problem:
                return {"status": "refused", "reason": problem}
            tells = self._knows_job(request)
            answer = self._answer_to_founder(request.process)
            answer = answer or self._difference(request.description, tells)
            if answer is not None:
                return answer
            reasons = self._founders.reason_to_refuse(
                StartSize(request.start, request.least, request.patience)
            )
            if reasons:
                return self._refused(*reasons, tells)
            member = Member(request.process, request.name, request.address)
            founder, evicted = self._founders.add(member, context)
            self._end_call_of(evicted)
            if not founder.is_confirmed:
                self._ask(member, context.host)
            self._begin_if_complete()
            self._notify()
            self._hold(
                context,
                request.wait,
                lambda: (
                    self._answer_to_founder(request.process) is not None
                    or request.process not in self._founders
                ),
            )
            answer = self._answer_to_founder(request.process)
            if answer is not None:
                return answer
            if context.disconnected:
                self._founders.remove(founder)
            founder.await_next_call()
            return {
                "status": "closed" if self._closed else "waiting",
                "missing": self._founders.missing(),
            }

    def form(
        self, request: messages.ElasticFormRequest, context: ClientContext
    ) -> dict[str, object]:
        """Takes a process's wish to be in the next generation, and waits until it is formed.

        Returns:
          {"status": "complete", "generation"}; {"status": "waiting", "missing": [texts], "reached"
          (whether the caller has answered at its address)}; {"status": "redirect", "leader"};
          {"status": "over"} (a newcomer waits in a call that this process has ended);
          {"status": "out", "number", "mark"} (the caller is no member of this reference);
          {"status": "elsewhere"} (this process cannot lead the caller); {"status": "refused",
          "reason"} or {"status": "closed"}.
        """
        with self._changed:
            return self._signed(self._form(request, context), request)

    def _form(
        self, request: messages.ElasticFormRequest, context: ClientContext
    ) -> dict[str, object]:
        if self._closed:
            return {"status": "closed"}
        problem = _problem_with_caller(request) or self._contradiction(request)
        if problem:
            return {"status": "refused", "reason": problem}
        caller = request.process
        is_proven = self._is_proven(request)
        if request.proof and not is_proven:
            return {"status": "refused", "reason": _OF_ANOTHER}
        if is_proven:
            self._learn(request)
        self._give_up_with(request)
        member = Member(caller, request.name, request.address)
        holds_state = is_proven and request.holds_state
        highest = request.highest if is_proven else 0
        arrival = Arrival(
            member, holds_state, is_proven, request.description, context, highest, request.call
        )
        former = self._arrived.get(caller)
        self._end_call_of(self._arrived.add(arrival))
        answer = self._form_answer(request, arrival, is_proven)
        if answer is not None:
            self._arrived.pop(caller, None)
            return answer
        if not arrival.is_confirmed:
            self._ask(member, context.host)
        elif former is None or former.holds_state != arrival.holds_state:
            self._notify()

        def decided() -> bool:
            return (
                self._arrived.get(caller) is not arrival
                or self._form_answer(request, arrival, is_proven) is not None
            )

        self._hold(context, request.wait, decided)
        answer = self._form_answer(request, arrival, is_proven)
        if self._arrived.get(caller) is arrival:
            if answer is not None or context.disconnected:
                del self._arrived[caller]
                self._notify()
            else:
                arrival.await_next_call()
        if answer is not None:
            return answer
        return {
            "status": "closed" if self._closed else "waiting",
            "missing": [str(member) for member in self._missing()] if is_proven else [],
            "reached": arrival.is_confirmed,
        }

    def address(
        self, request: messages.ElasticAddressRequest, context: ClientContext
    ) -> dict[str, object]:
        """Takes a member's data address, and waits for the others' addresses.

        Returns:
          {"status": "complete", "addresses"}; {"status": "waiting", "missing": [texts]};
          {"status": "again"} (the generation was given up); {"status": "refused", "reason"} or
          {"status": "closed"}.
        """
        with self._changed:
            return self._signed(self._address(request, context), request)

    def _address(
        self, request: messages.ElasticAddressRequest, context: ClientContext
    ) -> dict[str, object]:
        began = time.monotonic()
        if self._closed:
            return {"status": "closed"}
        reason = None if self._is_proven(request) else _OF_ANOTHER
        if reason is None and validation.address_problem(request.data_address):
            reason = f"expected a data address, received {validation.show(request.data_address)}"
        if reason:
            return {"status": "refused", "reason": reason}
        found = self._round
        if (
            found is None
            or not signing.same(request.mark, found.generation.mark)
            or request.process not in found.generation
        ):
            return {"status": "again"}

        def over() -> bool:
            return self._round is not found

        # A founder's description may grow until it calls this itself.
        self._hold(context, request.wait, lambda: over() or self._described)
        refusal = self._difference(request.description, tells=True) if self._described else None
        if refusal:
            return refusal
        if self._described and self._round is found:
            if found.add(request.process, request.data_address):
                self._notify()
            remaining = request.wait - (time.monotonic() - began)
            self._hold(context, remaining, lambda: over() or found.is_complete)
        if self._round is not found:
            return {"status": "again"}
        if found.is_complete:
            return {"status": "complete", "addresses": found.addresses}
        return {
            "status": "closed" if self._closed else "waiting",
            "missing": [str(member) for member in found.missing],
        }

    def leave(
        self, request: messages.ElasticLeaveRequest, context: ClientContext
    ) -> dict[str, object]:
        """Records that the process that has this key has left its job: it counts as dead."""
        with self._changed:
            process = proofs.process_id(request.key)
            waits = process in self._arrived or process in self._founders
            is_other = process != self.me.process and (waits or self._is_member(process))
            if not is_other:
                reason = "the caller is no other process of this job, and can make none leave"
                return {"status": "refused", "reason": reason}
            if self._is_member(process):
                self._left.add(process)
                self._bury(process, "it has left")
            else:
                self._forget(process)
            return {"status": "noted"}

    @property
    def handlers(self) -> dict[Method, Handler]:
        """The handlers, by method."""
        return {
            messages.ELASTIC_PROBE: self.probe,
            messages.ELASTIC_FOUND: self.admit_founder,
            messages.ELASTIC_FORM: self.form,
            messages.ELASTIC_ADDRESS: self.address,
            messages.ELASTIC_LEAVE: self.leave,
        }

    def is_from_the_job(self, request: object) -> bool:
        """Whether the caller has proven that it is of this job. Without the lock.

        A proof with the job's id does not count: it may have gone to a stranger.
        """
        return isinstance(request, proofs.Request) and self._is_proven(request)

    # With the lock.

    def _is_proven(self, request: proofs.Request) -> bool:
        """Whether a caller has proven that it is of this job, and means this process."""
        return proofs.is_proven(request, self.me.process)

    def _signed(self, answer: dict[str, object], request: proofs.Request) -> dict[str, object]:
        return proofs.sign(answer, request.nonce, self.me.process)

    def _form_answer(
        self, request: messages.ElasticFormRequest, arrival: Arrival, is_proven: bool
    ) -> dict[str, object] | None:
        """The answer to a member or newcomer, or None while it is to wait."""
        caller = request.process
        formed = self._round.generation if self._round is not None else None
        # It knows the id that the leader and the members alone have been told.
        if formed is not None and caller in formed and request.highest < formed.number:
            return {"status": "complete", "generation": formed.to_fields()}
        tells = is_proven or self._knows_job(request)
        refusal = self._difference(request.description, tells) if self._described else None
        if refusal:
            return refusal
        reference = self._reference
        if reference is None or self._is_outside():
            return {"status": "elsewhere"}
        if is_proven and request.number > reference.number:
            return {"status": "elsewhere"}
        if is_proven and request.number and caller not in reference:
            return {"status": "out", "number": reference.number, "mark": reference.mark}
        living = self._living_member_at(request.address)
        if living is not None and caller not in reference:
            reason = (
                f"{living} lives, and is another process than the caller: expected the caller to "
                "have an address of its own"
            )
            return {"status": "refused", "reason": reason}
        if caller not in reference and 0 < request.call <= self._calls_ended:
            return {"status": "over"}
        if not arrival.is_confirmed:
            return None
        leader = self._leader
        if leader is None and not self._forming and caller not in reference:
            # A newcomer, while the members train.
            leader = self._first_member()
        if leader is not None and leader != self.me:
            fields = dataclasses.asdict(leader)  # its id is for members alone
            if not is_proven:
                del fields["process"]
            return {"status": "redirect", "leader": fields}
        return None

    def _contradiction(self, request: messages.ElasticFormRequest) -> str | None:
        """Why a caller cannot be the process that it says it is, or None."""
        if self._reference is None:
            # A newcomer may call itself: at the address of its task's former process.
            return None
        if request.process == self.me.process:
            return f"the caller has the id of this process, {self.me}"
        caller = Member(request.process, request.name, request.address)
        for member in self._reference.members:
            if member.process == caller.process and member != caller:
                return f"the caller has the id of {member}, and says that it is {caller}"
        return None

    def _living_member_at(self, address: str) -> Member | None:
        """The member of the reference that has this address, if its call is held just now."""
        assert self._reference is not None
        if address == self.me.address and self.me.process in self._reference:
            return self.me
        for arrival in self._arrived.values():
            member = arrival.member
            if member.address == address and member.process in self._reference and arrival.is_held:
                return member
        return None

    def _differs(self, arrival: Arrival) -> bool:
        """Whether a waiting process is to be refused, since this one has described more since."""
        description = arrival.description
        return (
            description is not None
            and self._described
            and self._difference(description, tells=True) is not None
        )

    def _learn(self, request: messages.ElasticFormRequest) -> None:
        """Believes a caller that has proven that it is of this job."""
        caller = request.process
        self._highest = max(self._highest, min(request.highest, 2**62))
        self._forget_death(caller)
        self._learn_reference(request.number, request.mark)
        reference = self._reference
        # A process that the job continued without, or a newcomer, has no say about dead members.
        if reference is None or caller not in reference:
            return
        for process in request.dead:
            arrival = self._arrived.get(process)
            lives = process in (self.me.process, caller) or (arrival and arrival.is_held)
            if process in reference and process not in self._dead and not lives:
                self._bury(process, "another member has seen its end")

    def _give_up_with(self, request: messages.ElasticFormRequest) -> None:
        """Gives up a generation in round 2 if its member comes again: it has given it up."""
        formed = self._round
        if (
            formed is not None
            and request.process in formed.generation
            and request.highest >= formed.generation.number
            and not formed.is_complete
        ):
            self._give_up()

    def _learn_reference(self, number: int, mark: str) -> bool:
        """Takes a later established generation as the reference, if this process has received it.

        Returns:
          Whether it has.
        """
        if self._reference is None or number <= self._reference.number:
            return False
        for generation in list(self._received):
            if generation.number == number and signing.same(mark, generation.mark):
                self._set_reference(generation)
                self._notify()
                return True
        return False

    def _set_reference(self, generation: Generation) -> None:
        self._receive(generation)
        self._reference = generation
        for received in list(self._received):
            if received.number <= generation.number:
                self._received.remove(received)
        self._attempts = {
            processes: attempt
            for processes, attempt in self._attempts.items()
            if attempt.number > generation.number
        }
        self._claims.clear()

    def _receive(self, generation: Generation) -> None:
        self._highest = max(self._highest, generation.number)
        self._job = generation.job
        is_over = self._reference is not None and generation.number <= self._reference.number
        if not is_over and generation not in self._received:
            self._received.append(generation)

    def _is_outside(self, given_up: Collection[str] = ()) -> bool:
        reference = self._reference
        if reference is None or not self._claims or self._has_majority():
            return False
        return any(
            self._say_so(generation, given_up)
            for generation in (reference, *self._attempts.values())
        )

    def _say_so(self, generation: Generation, given_up: Collection[str]) -> bool:
        """Whether the other members of a generation say that the job has continued."""
        assert self._reference is not None
        others = [
            process
            for process in generation.processes & self._reference.processes
            if process != self.me.process and (process in self._claims or process not in self._dead)
        ]
        say_so = sum(process in self._claims for process in others)
        return 2 * say_so > len(others) or (
            say_so > 0
            and all(
                process in self._claims or process in given_up or self._arrived.has(process)
                for process in others
            )
        )

    def _has_majority(self) -> bool:
        reference = self._reference
        if reference is None or self._received:
            return False
        present = self._present(reference)
        newest = max(arrival.highest for arrival in present)
        return 2 * len(present) > len(reference.members) and newest <= reference.number

    def _is_member(self, process: str) -> bool:
        """Whether a process is a member of a generation that this one knows."""
        generations = (self._reference, self._entered, *self._received)
        return any(generation is not None and process in generation for generation in generations)

    def _begin_if_complete(self) -> None:
        if self._reference is None and self._founders.are_complete():
            generation = self._founders.first_generation()
            self._set_reference(generation)
            self._base = generation
            self._begin_round(generation)

    def _forget_death(self, process: str) -> None:
        """A process that comes is not dead."""
        self._dead.pop(process, None)
        self._left.discard(process)

    def _end_call_of(self, arrival: Arrival | None) -> None:
        """Lets a process that has made room for another one call again."""
        if arrival is not None and arrival.context is not None:
            self._calls.wake(arrival.context)

    def _give_up(self) -> None:
        in_round = self._round.generation if self._round is not None else None
        for generation in (in_round, self._entered):
            if generation is not None:
                self._ended = max(self._ended, generation.number)
        self._round = None
        self._notify()

    def _begin_round(self, generation: Generation) -> None:
        self._receive(generation)
        self._round = AddressRound(generation)
        self._notify()

    def _round_of(self, generation: Generation) -> AddressRound | None:
        """Round 2 of a generation; None if it has failed."""
        found = self._round
        return found if found is not None and found.generation == generation else None

    def _set_leader(self, leader: Member | None) -> None:
        with self._changed:
            if leader != self._leader:
                self._leader = leader
                self._notify()

    def _missing(self) -> list[Member]:
        if self._reference is None:
            return []
        return [
            member
            for member in self._reference.members
            if not self._arrived.has(member.process)
            and member.process not in self._dead
            and member != self.me
        ]

    def _present(self, reference: Generation) -> list[Arrival]:
        """The members of the reference that have come, in the order of their next ranks."""
        come = {arrival.member.process: arrival for arrival in self._arrived.confirmed}
        come[self.me.process] = Arrival(self.me, self._base is not None)
        present = [come[m.process] for m in reference.members if m.process in come]
        # A member that was new in a generation that it has not established is still new.
        return sorted(present, key=lambda arrival: not arrival.holds_state)

    def _admissible(self, reference: Generation, present: Sequence[Arrival]) -> list[Arrival]:
        """The newcomers that can be taken in beside the members that are present."""
        taken = {arrival.member.address for arrival in present}
        newcomers = [
            arrival
            for arrival in self._arrived.confirmed
            if arrival.member.process not in reference
            and arrival.member.address not in taken
            and arrival.call == self._call
            and not self._differs(arrival)
        ]
        limit = self._elastic.max_workers or MAX_WORKERS
        return newcomers[: max(0, limit - len(present))]

    def _first_member(self) -> Member | None:
        """The member that newcomers are sent to."""
        generation = self._entered or self._reference
        if generation is None:
            return None
        living = [m for m in generation.members if m.process not in self._dead]
        return living[0] if living else None

    def _bury(self, process: str, why: str) -> None:
        self._dead[process] = why
        self._forget(process)

    def _forget(self, process: str) -> None:
        """A process does not wait here any more."""
        self._arrived.pop(process, None)
        self._founders.forget(process)
        self._notify()

    def _answer_to_founder(self, process: str) -> dict[str, object] | None:
        if self._reference is None:
            return None
        if process in self._reference and self._reference.number == 1:
            return {"status": "complete", "generation": self._reference.to_fields()}
        return {"status": "newcomer"}

    def _knows_job(
        self,
        request: messages.ElasticFoundRequest
        | messages.ElasticFormRequest
        | messages.ElasticRecordRequest,
    ) -> bool:
        """Whether a caller has the job's secret or, where there is none, its list of addresses."""
        return self._callers_are_signed or request.fingerprint == self._fingerprint

    def _refused(self, reason: str, without_values: str, tells: bool) -> dict[str, object]:
        """Returns a refusal; a stranger reads no values of the job in it."""
        if tells:
            return {"status": "refused", "reason": reason}
        told = (
            f"{without_values}. This task's log has the values: they are told to callers that have "
            "the same training addresses, or a shared secret"
        )
        return {"status": "refused", "reason": told, "details": reason}

    def _difference(self, description: Mapping[str, str], tells: bool) -> dict[str, object] | None:
        """Why a process with another description is refused, or None.

        Args:
          description: the other one's.
          tells: whether it may know this process's description.
        """
        for field, ours in self._description.items():
            # Both may have further fields, which the other one will describe later.
            if field not in description and field not in self._required:
                continue
            theirs = description.get(field)
            if ours != theirs:
                what, expected, got = map(validation.show, (field, ours, theirs))
                return self._refused(
                    f"{what} differs: expected {expected} as on {self.me}, received {got}",
                    f"{what} differs: received {got}",
                    tells,
                )
        return None

    def _notify(self) -> None:
        self._changes += 1
        self._changed.notify_all()
        self._calls.wake_all()

    def _hold(self, context: ClientContext, seconds: float, done: Callable[[], bool]) -> None:
        self._calls.hold(context, seconds, lambda: self._closed or done())


def _problem_with_caller(
    request: messages.ElasticFoundRequest | messages.ElasticFormRequest,
) -> str | None:
    return problem_with_member(request.process, request.name, request.address)
