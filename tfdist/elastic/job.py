"""An elastic job: its members run units of work together, and survive the loss of some of them.

A *unit of work* is the work of all members between two points at which their states are equal:
a step of training or validation, or an agreement at the end of an epoch. It is atomic: on each
member it is done, or has left no trace. When a member dies in unit 8:

    member 0        member 1        member 2        member 3
       7               7               7               7       units done
       |---------------|------x--------|---------------|       unit 8: member 1 is killed
       8                               7               7       member 0 has all results
       |=========== the next generation of members ====|
       |<----------- units done: 8, 7, 7 --------------|       one all-gather
       |-------- what unit 8 has written ------------->|       from the lowest that has done it
       8                               8               8       unit 9

Two survivors differ by one unit at most, because unit 9 needs all members of the old generation. If
no member has done unit 8, all do it again. All members derive the same decision from the same
all-gather. A *newcomer* receives the whole state in the same place. `Phase` has the phases of a
process's part in the job, and a drawing of their transitions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
import tensorflow as tf

from tfdist import ops
from tfdist.config.cluster import Cluster
from tfdist.config.elastic import Elastic
from tfdist.config.settings import Settings
from tfdist.config.validation import show
from tfdist.control import interfaces, waiting
from tfdist.elastic.calls import Calls
from tfdist.elastic.data_values import differences
from tfdist.elastic.membership import Membership, World
from tfdist.elastic.owed import OwedCalls
from tfdist.elastic.peers import Outside
from tfdist.elastic.phase import PHASE_TRANSITIONS, Phase, PlannedChange
from tfdist.elastic.records import CallRecords
from tfdist.elastic.values import (
    assign_values,
    broadcast_bytes,
    broadcast_values,
    fingerprint,
)
from tfdist.errors import TfdistError, brief
from tfdist.preemption.notice import notice
from tfdist.state_machine import StateMachine

_log = logging.getLogger("tfdist.elastic")
# A unit that fails more often with the same members is not tried again.
_MAX_VAIN = 5
# The members form at most so many generations, and for at least the rendezvous timeout, without
# doing a unit of work; from the tenth on they pause before the next one.
_MAX_IDLE_GENERATIONS, _PAUSES_AFTER, _LONGEST_PAUSE = 50, 10, 5.0


class _NotNow(Exception):
    """The members cannot take in the newcomers of the generation that was formed."""


class LeftBehindError(Exception):
    """The other members have continued without this process; it may join them as a newcomer."""


@dataclasses.dataclass(frozen=True)
class Unit:
    """A unit of work.

    Attributes:
      name: for messages.
      call: does it, with collectives; returns the result. If it raises, it has written nothing but
        what `undo` undoes.
      undo: is called after a failure.
      written: returns the resources of the variables that it writes.
      healed: returns the result on a member that has received what the others have written.
      admits: whether newcomers can join before this unit.
      lets_leave: whether a member that leaves after a step leaves before this unit.
      is_whole: whether it writes the whole state.
      equalizes: whether all members take the whole state of one of them in any case.
    """

    name: str
    call: Callable[[], object]
    undo: Callable[[], None] = lambda: None
    written: Callable[[], Sequence[tf.Tensor]] = tuple
    healed: Callable[[], object] = lambda: None
    admits: bool = False
    lets_leave: bool = True
    is_whole: bool = False
    equalizes: bool = False


class _Change(NamedTuple):
    """The result of the next generation for this process."""

    # The others have done its unit of work already.
    is_done: bool
    # All members had died, and this newcomer has formed the job again.
    is_formed_again: bool


class TrainedState(Protocol):
    """The state that a newcomer receives."""

    def handles(self) -> Sequence[tf.Tensor]:
        """The resources of all variables, in the same order on all members."""

    def describe(self) -> bytes:
        """The rest: the position in the training."""

    def restore(self, content: bytes) -> None:
        """Takes what `describe` has returned on another member; the variables are restored."""

    def save(self) -> None:
        """Saves a checkpoint, without a collective, because the job may end."""


def _advice(field: str) -> str:
    """The cause to look for if members describe a field differently."""
    if field.startswith("callbacks"):
        return "give the same callbacks to all workers"
    if field == "call":
        return (
            "do all run the same program? A call that raises an error on one worker alone, and is "
            "caught, counts there only"
        )
    return "do all run the same program, with the same data and seeds?"


class ElasticJob:
    """One member of an elastic job: a `PeerGroup` whose ranks come and go.

    Args:
      cluster: this process's task, and the addresses where others may be.
      settings: timeouts, ports and the secret.
      elastic: the limits of the number of members.
      description: the values that all members must agree on, by name.

    Attributes:
      communicator: the members.
      calls: the script's calls of `fit`, `evaluate` and `predict`.
      records: the records of ended calls.
      units: the number of units of work that are done.
      owed: the calls that rank 0 has made alone since the last unit of work.

    Raises:
      JobEnded: the job has ended.
      RendezvousTimeoutError: members were missing at the deadline.
      AuthenticationError: the tasks do not hold the same secret.
      AddressInUseError: this task's port is taken.
      ClusterConfigError: the job refuses this process.
    """

    is_elastic = True

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        elastic: Elastic,
        description: dict[str, str],
    ) -> None:
        self.cluster = cluster
        self.elastic = elastic
        self.start_workers = elastic.start(cluster)
        self.units = 0
        self.recoveries = 0
        self._part = StateMachine("a process", PHASE_TRANSITIONS, Phase.NEWCOMER)
        self._planned = PlannedChange.NONE
        self._described: tuple[str, ...] = ()
        self._has_told_notice = False  # in the last step
        self._last = Unit("nothing", lambda: None)  # the last unit of work that was done
        self.state: TrainedState | None = None
        self.owed = OwedCalls()
        self._followers: list[Callable[[World, int], None]] = []
        # How often one unit has failed with the same members.
        self._vain = 0
        self._failed_with: tuple[str, ...] = ()
        # Generations without a unit of work, and when the first one of them was formed.
        self._idle_generations, self._idle_since = 0, 0.0
        self._timeout = settings.rendezvous_timeout
        self._exit_timeout = settings.exit_timeout
        self._member_since = 0  # the number of a generation
        self._ended_because = ""
        # Saves for all members, whose next ranks are not known yet.
        self._leads = False
        self._pid = os.getpid()
        self._open = True
        self.records = CallRecords(settings.elastic_records)
        self._membership = Membership(cluster, settings, elastic, description, records=self.records)
        self.calls = Calls(self._membership, self.records)
        try:
            self.communicator = ops.Communicator(
                0,
                1,
                settings.data_port,
                interface=interfaces.data_interface(cluster, settings)[0],
                shared_memory=settings.peer_memory,
                resizable=True,
            )
            self._membership.watch(self.communicator)
            if self._membership.begin() is not None:
                self._part.go(Phase.MEMBER)
                self._go_on(Unit("the beginning of the job", lambda: None))
        except BaseException:
            self._membership.leave()
            raise

    @property
    def rank(self) -> int:
        """This process's rank among the members; 0 for a newcomer, which is alone."""
        return 0 if self._leads else self.communicator.rank

    @property
    def is_newcomer(self) -> bool:
        """Whether this process has not yet received the members' state."""
        return self._part.state in (Phase.NEWCOMER, Phase.STOPPING)

    @property
    def ends(self) -> bool:
        """Whether all members stop after the current step, because of preemption notices."""
        return self._part.state in (Phase.ENDING, Phase.STOPPING)

    @property
    def leaves(self) -> bool:
        """Whether this process alone stops after the current step."""
        return self._part.state is Phase.LEAVING

    @property
    def is_leader(self) -> bool:
        """Whether this process is rank 0 of the members; a newcomer is none of them."""
        return self._open and not self.is_newcomer and self.rank == 0

    @property
    def can_meet(self) -> bool:
        """Whether all members, who are at this place of the training, can do a unit of work.

        Not a newcomer, nor where this process saves for all, nor when all members are about to end.
        """
        return not self.is_newcomer and not self._leads and not self.ends

    @property
    def size(self) -> int:
        """The number of members."""
        return self.communicator.size

    @property
    def generation(self) -> int:
        """The number of the members' generation; 0 for a newcomer."""
        world = self._membership.world
        return 0 if world is None or self.is_newcomer else world.generation

    @property
    def id(self) -> str:
        """Identifies the job, from its founding to its end; "" for a newcomer."""
        world = self._membership.world
        return "" if world is None or self.is_newcomer else world.job

    @property
    def addresses(self) -> tuple[str, ...]:
        """The members' addresses, by rank."""
        world = self._membership.world
        if world is None or self.is_newcomer:
            assert self.cluster.address is not None
            return (self.cluster.address,)
        return tuple(member.address for member in world.members)

    def describe(self, description: dict[str, str]) -> None:
        """Sets the values that newcomers must agree on, by name, in place of the last call's."""
        # Else the requests of a program that calls `fit` many times would grow without end.
        self._membership.describe(description, instead_of=self._described)
        self._described = tuple(description)

    def check_description(self, description: dict[str, str], values: Sequence[float] = ()) -> None:
        """Ends this member's part in the job if it is described otherwise than the oldest member.

        All call it together. Founders form the job before they know their model. Newcomers are
        refused before.

        Args:
          description: the values that all members must agree on, by name.
          values: of the arrays that this member trains with; see `data_values`.

        Raises:
          TfdistError: a field differs; names it, and what the oldest member has.
          tf.errors.OpError: a member was lost.
        """
        text = json.dumps([description, list(values)]).encode()
        label = "the members' descriptions"
        with tf.device("/device:CPU:0"):
            since = ops.all_gather(
                tf.constant([self._member_since], tf.int64), self.communicator, label=label
            ).numpy()
        oldest = int(np.argmin(since))
        expected, theirs = json.loads(broadcast_bytes(text, self.communicator, oldest, label))
        for field, own in description.items():
            if expected.get(field) != own:
                assert self._membership.world is not None
                self.end(
                    f"expected the same {field} on all members: {show(expected.get(field))} as on "
                    f"{self._membership.world.members[oldest]}, received {show(own)}: "
                    f"{_advice(field)}"
                )
        assert self._membership.world is not None
        self.check_values(values, theirs, str(self._membership.world.members[oldest]))

    def check_values(self, own: Sequence[float], theirs: Sequence[float], member: str) -> None:
        """Ends this member's part in the job if its arrays have other values than a member's.

        Args:
          own: the result of `values_of`.
          theirs: its result on another member.
          member: that one, in words.

        Raises:
          TfdistError: they have.
        """
        text = differences(own, theirs)
        if text:
            self.end(
                f"expected the same data as on {member}, but {text}. Seed what draws data or their "
                "order, as with keras.utils.set_random_seed"
            )

    def end(self, reason: str) -> NoReturn:
        """Ends this process's part in the job, for good; the other members continue.

        Args:
          reason: why it cannot continue.

        Raises:
          TfdistError: always; has the reason. Later units of work raise it again.
        """
        raise self.ended_by(TfdistError(f"{self.cluster.task_name}: {reason}"))

    def ended_by(self, error: Exception) -> Exception:
        """Ends this process's part in the job, for good, because of an error; returns that.

        A program may catch it, and continue with its next call of `fit`, where this process has not
        what the other members have: its later units of work raise the error's text again.
        """
        if not self._ended_because:
            self._ended_because = str(error)
            self.leave(str(error))
        return error

    def _check_open(self) -> None:
        if self._ended_because:
            raise TfdistError(self._ended_because)

    def follow(self, call: Callable[[World, int], None]) -> None:
        """Registers what is told of each generation, once all members have the same state.

        Args:
          call: takes the generation, and the number of units of work that all its members have
            done. No member begins another unit before its own call returns. It is called at once
            if this process is a member.

        Raises:
          Exception: the exception of `call`.
        """
        self._followers.append(call)
        if not self.is_newcomer:
            assert self._membership.world is not None
            call(self._membership.world, self.units)

    def pause(self, seconds: float) -> None:
        """Waits; not longer than until this process leaves the job."""
        self._membership.pause(seconds)

    def check_has_state(self, what: str) -> None:
        """Refuses reductions before the members have brought their states together.

        Args:
          what: the caller, for the message.

        Raises:
          TfdistError: neither `fit` nor `tfdist.elastic.run` has begun.
        """
        if self.state is None:
            raise TfdistError(
                f"{self.cluster.task_name}: {what} outside of fit and of tfdist.elastic.run: the "
                "workers of an elastic job make their variables alone, and only there bring them "
                "together"
            )

    def run(self, unit: Unit) -> Any:
        """Does a unit of work together with all members; again, if some are lost meanwhile.

        Returns:
          The unit's result.

        Raises:
          RendezvousTimeoutError: too few members are left.
          LeftBehindError: the others have continued without this process.
          TfdistError: this process has ended its part in the job; or generation after generation
            was formed, in none of which the unit could be done.
          Exception: the unit's exception for another reason than a lost member.
        """
        self._check_open()
        if self._changes_before(unit) and self._go_on(unit).is_done:
            return unit.healed()
        while True:
            try:
                result = unit.call()
            except tf.errors.OpError as error:
                if not self.has_lost_members(error):
                    raise
                unit.undo()
                _log.warning("%s: %s: %s", self.cluster.task_name, unit.name, brief(error))
            else:
                self.count_unit(unit)
                return result
            self.recoveries += 1
            is_done = self._go_on(unit).is_done
            _log.warning(
                "%s: continues as rank %d of %d", self.cluster.task_name, self.rank, self.size
            )
            if is_done:
                return unit.healed()

    def enter(self, state: TrainedState) -> bool:
        """Joins the members as a newcomer: waits for a unit that admits newcomers.

        Args:
          state: receives the members' state.

        Returns:
          Whether it has; if all members have died, the newcomers have formed the job again.

        Raises:
          CallOver: the members have ended the call in which it waits.
          Exception: as for `run`.
        """
        self._check_open()
        self.state = state
        return not self._go_on(Unit("joining", lambda: None)).is_formed_again

    def count_unit(self, unit: Unit) -> None:
        """Notes that a unit of work is done."""
        self.owed.drop()
        self._last = unit
        self.units += 1
        self._vain = self._idle_generations = 0

    def has_lost_members(self, error: tf.errors.OpError) -> bool:
        """Whether a unit has failed because members were lost, and not for its own reasons.

        The same members may fail a few times: one of them may have been slow to notice a loss.
        """
        if isinstance(error, tf.errors.InvalidArgumentError) or not self.communicator.failed():
            return False
        self._vain = self._vain + 1 if self.addresses == self._failed_with else 1
        self._failed_with = self.addresses
        return self._vain <= _MAX_VAIN

    def synchronize(self, unit: Unit) -> bool:
        """Brings all members to the newest state, after a change of the members if one is due.

        Args:
          unit: the unit of all members at this point; its `call` is not used.

        Returns:
          Whether the members have changed.

        Raises:
          tf.errors.OpError: a member was lost; the next call forms the next generation.
          Exception: as for `run`.
        """
        is_due = self.is_newcomer or self.change_is_planned or self.communicator.failed()
        if not is_due or self._go_on(unit).is_formed_again:
            self._agree(unit)
        return is_due

    @property
    def change_is_planned(self) -> bool:
        """Whether all members form the next generation before their next unit of work."""
        return self._planned is not PlannedChange.NONE

    def _changes_before(self, unit: Unit) -> bool:
        departs = self._planned is PlannedChange.DEPARTURE and unit.lets_leave
        return departs or (self.change_is_planned and unit.admits)

    def flags(self) -> list[float]:
        """This member's flags for the others in a step: [newcomers wait, it has a notice]."""
        self._has_told_notice = notice.at is not None
        return [float(self._membership.newcomers_wait()), float(self._has_told_notice)]

    def take_flags(self, flags: Sequence[float]) -> None:
        """Takes the sum of all members' `flags` after a step."""
        newcomers, leaving = (round(flag) for flag in flags)
        if newcomers and not self.change_is_planned:
            self._planned = PlannedChange.ADMISSION
        if not leaving:
            return
        if self.size - leaving < self.elastic.min_workers:
            if not self.ends:
                self._part.go(Phase.STOPPING if self.is_newcomer else Phase.ENDING)
        elif not self._has_told_notice:
            self._planned = PlannedChange.DEPARTURE
        elif self._part.state is Phase.MEMBER:
            self._part.go(Phase.LEAVING)

    def _fall_behind(self) -> None:
        """Notes that the others have continued without this process."""
        if not self.is_newcomer:
            self._part.go(Phase.STOPPING if self.ends else Phase.NEWCOMER)
        self.owed.drop()

    def _join(self) -> None:
        """Notes that this newcomer is a member."""
        self._part.go(Phase.ENDING if self.ends else Phase.MEMBER)

    def mark_end(self) -> None:
        """Tells later processes that the job has ended, when a script has done its work.

        Rank 0 does, which writes the job's files, unless the members stop before that.
        """
        if self.is_leader and not (self.leaves or self.ends) and os.getpid() == self._pid:
            self._membership.tombstone.leave()

    def leave(self, failure: str | None = None) -> None:
        """Leaves the job; later calls, and calls in a forked child process, do nothing.

        Args:
          failure: the reason why this process ends before its work is done.
        """
        if not self._open or os.getpid() != self._pid:
            return
        if failure is None and not (self.is_newcomer or self.leaves or self.ends):
            self._membership.serve_records(self._exit_timeout)
        self._open = False
        self._membership.leave()
        if failure is not None:
            self.communicator.abort(f"{self.cluster.task_name} ended with {failure}"[:400])
        self.communicator.close()

    def _count_generation(self, unit: Unit) -> None:
        """Ends the job if generations follow each other, and no unit of work is done in any."""
        if self.is_newcomer:
            return
        now = time.monotonic()
        if not self._idle_generations:
            self._idle_since = now
        self._idle_generations += 1
        if self._idle_generations <= _PAUSES_AFTER:
            return
        seconds = now - self._idle_since
        if self._idle_generations > _MAX_IDLE_GENERATIONS and seconds > self._timeout:
            self.end(
                f"{unit.name}: could not be done in {self._idle_generations} generations of "
                f"members within {seconds:.0f} s; the last ones: {', '.join(self.addresses)}"
            )
        self.pause(min(_LONGEST_PAUSE, 0.1 * (self._idle_generations - _PAUSES_AFTER)))

    def _go_on(self, unit: Unit) -> _Change:
        """Forms the next generation, and brings this process to its state."""
        began = time.monotonic()
        before, was_newcomer = self.size, self.is_newcomer
        admits, is_formed_again = unit.admits, False
        while True:
            self._count_generation(unit)
            try:
                world = self._membership.form(
                    self.communicator,
                    admits=admits,
                    rejoins=self.is_newcomer,
                    on_too_few=self._save,
                )
            except Outside:
                self._fall_behind()
                # The members do not wait for it meanwhile.
                self.communicator.leave()
                raise LeftBehindError(
                    f"{self.cluster.task_name}: the others have continued without this worker"
                ) from None
            if self.is_newcomer and not world.is_newcomer:
                # All members had died, and the newcomers were founders.
                self._join()
                is_formed_again, self.units = True, 0
            # Without newcomers there may be too few members, which only then may continue.
            has_too_few = world.size < self.elastic.min_workers
            self._planned = PlannedChange.ADMISSION if has_too_few else PlannedChange.NONE
            try:
                with self._saying_that_it_waits():
                    is_done = self._agree(unit)
                self._tell_followers(world)
                if self.rank == 0:
                    # Rows of tables are whole only now.
                    self.owed.make()
            except tf.errors.OpError as error:
                if not self.has_lost_members(error):
                    raise
                _log.warning("%s: %s", self.cluster.task_name, brief(error))
                continue
            except _NotNow:
                admits = False
                continue
            joined = "joined the job: " if was_newcomer and not is_formed_again else ""
            _log.info(
                "%s: "
                + joined
                + "rank %d of %d (before: %d) in generation %d after %d units, in %.2f s",
                *(self.cluster.task_name, self.rank, self.size, before, world.generation),
                *(self.units, time.monotonic() - began),
            )
            return _Change(is_done, is_formed_again)

    def _saying_that_it_waits(self) -> contextlib.AbstractContextManager[None]:
        """While a newcomer waits for the members' state, its log says so."""
        if not self.is_newcomer:
            return contextlib.nullcontext()
        text = f"{self.cluster.task_name}: a newcomer: waits for the members' state"
        return waiting.logged(_log, text)

    def _tell_followers(self, world: World) -> None:
        if not self._followers:
            return
        # A member that has not received the newest state could survive all members that have it.
        # The message could not be taken back then.
        with tf.device("/device:CPU:0"):
            ops.all_reduce(
                tf.constant(self.units), self.communicator, "max", label="the members' states"
            )
        for call in self._followers:
            call(world, self.units)

    def _agree(self, unit: Unit) -> bool:
        """Makes all members' states equal; returns whether the others have done the unit."""
        whole = [] if self.state is None else self.state.handles()
        own = [
            *(self.units, self.is_newcomer, unit.admits),
            *(fingerprint(unit.written()), fingerprint(self._last.written()), fingerprint(whole)),
            *(self.calls.open_call, self.calls.ended),
        ]
        with tf.device("/device:CPU:0"):
            rows = ops.all_gather(
                tf.constant([own], tf.int64), self.communicator, label="the members' progress"
            ).numpy()
        units, is_new = rows[:, 0], rows[:, 1] != 0
        top = units[~is_new].max()
        source = int(np.flatnonzero(~is_new & (units == top))[0])
        behind = ~is_new & (units < top)
        if np.any(units[behind] < top - 1):
            raise RuntimeError(f"expected members within one unit of each other, found {units}")
        # The leader, which has admitted them, may be behind the source, and in another unit, or in
        # another call of fit.
        if is_new.any() and not (rows[source, 2] and np.all(rows[is_new, 6] == rows[source, 6])):
            raise _NotNow
        if not self.is_newcomer:
            self._membership.establish()
        is_done = not self.is_newcomer and self.units < top
        if is_done:
            self.owed.drop()
        elif self.rank == 0 and not self.is_newcomer and not self._followers:
            # Before a newcomer gets the state: as a member it would not know the owed calls.
            self.owed.make()
        # The unit of the members behind is a unit that the others have done.
        torn = self._last if behind.any() and not is_done else unit
        if is_new.any() or torn.equalizes or (torn.is_whole and behind.any()):
            self._check_equal(rows[:, 5], "the variables of the model and the optimizer")
            self._receive_state(source, torn, is_done)
        elif behind.any():
            written = np.where(behind, rows[:, 3], rows[:, 4])
            self._check_equal(written, f"the variables that {torn.name} writes")
            handles = torn.written()
            values = broadcast_values(handles, self.communicator, source, torn.name)
            if is_done:
                assign_values(handles, values)
        if is_done:
            self._last = unit
        self._become_member(int(top), int(rows[source, 7]))
        return is_done

    def _become_member(self, units: int, calls: int) -> None:
        """Notes that this process has the members' state.

        Args:
          units: how many units of work they have done.
          calls: how many calls they have ended.
        """
        assert self._membership.world is not None
        self.units = units
        if self.is_newcomer:
            self._join()
            self._member_since = self._membership.world.generation
            self.calls.begin_after(calls)
            self._membership.establish()

    def _receive_state(self, source: int, unit: Unit, is_behind: bool) -> None:
        state = self.state
        assert state is not None
        handles = state.handles()
        is_source = self.rank == source
        content = broadcast_bytes(
            state.describe() if is_source else b"", self.communicator, source, "the position"
        )
        values = broadcast_values(handles, self.communicator, source, "the members' state")
        is_changed = self.is_newcomer or (is_behind and unit.is_whole)
        if is_changed or (unit.equalizes and not is_source):
            assign_values(handles, values)
            state.restore(content)
        elif is_behind:
            received = dict(zip(map(id, handles), values, strict=True))
            own = unit.written()
            assign_values(own, [received[id(handle)] for handle in own])

    def _check_equal(self, fingerprints: np.ndarray, what: str) -> None:
        if len(set(fingerprints.tolist())) > 1:
            raise TfdistError(
                f"{self.cluster.task_name}: expected the same dtypes and shapes of {what} on all "
                f"members, but ranks {np.flatnonzero(fingerprints != fingerprints[0]).tolist()} "
                "differ from rank 0: do all run the same program?"
            )

    def _save(self) -> None:
        if self.state is not None:
            self._leads = True
            try:
                self.state.save()
            finally:
                self._leads = False
