"""`Membership`: this process's place among the members of an elastic job.

It carries the protocol of `tfdist.elastic.protocol.generations` over the network, and connects the
communicator among the members of each generation: `founding` for generation 1, `agreement` and
`connection` for the two rounds of each later one, `joining` for a newcomer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from tfdist._version import __version__
from tfdist.config.cluster import Cluster
from tfdist.config.elastic import MAX_WORKERS, Elastic
from tfdist.config.settings import Settings
from tfdist.control import interfaces
from tfdist.control.client import UnreachableError
from tfdist.control.server import ControlServer
from tfdist.control.waiting import Wait
from tfdist.elastic.agreement import Agreement
from tfdist.elastic.connection import Connection
from tfdist.elastic.founding import Founding
from tfdist.elastic.joining import Joining
from tfdist.elastic.peers import Again, Peers, Timing
from tfdist.elastic.protocol import messages, proofs
from tfdist.elastic.protocol.generations import Generations
from tfdist.elastic.protocol.members import Generation, Member
from tfdist.elastic.protocol.probes import Probes
from tfdist.elastic.protocol.start_size import StartSize
from tfdist.elastic.record_exchange import MemberRecords, RecordServer
from tfdist.elastic.records import CallRecords, Record
from tfdist.elastic.tombstone import Tombstone
from tfdist.errors import ClusterConfigError, TfdistError
from tfdist.observe import clock, waits
from tfdist.ops import Communicator
from tfdist.ops.trace import events

__all__ = ["Member", "Membership", "Timing", "World"]

_log = logging.getLogger("tfdist.elastic")
# Each other worker may hold one of a leader's threads, and needs a further one for a short call;
# strangers may hold 128, see arrivals.py.
_MAX_THREADS = MAX_WORKERS + 128 + 64
# Stands for the address of a process without a cluster, which no process calls.
_ALONE = "localhost:1"


@dataclasses.dataclass(frozen=True)
class World:
    """One generation, as one of its members sees it.

    Attributes:
      generation: 1, 2, ...; numbers grow, and may be left out.
      members: in rank order.
      rank: this process's own.
      newcomers: the ranks that did not hold the job's state when the generation was formed.
      job: identifies the job, from its founding to its end.
    """

    generation: int
    members: tuple[Member, ...]
    rank: int
    newcomers: tuple[int, ...] = ()
    job: str = ""

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self.members)

    @property
    def is_newcomer(self) -> bool:
        """Whether this process's state is not the job's."""
        return self.rank in self.newcomers


class Membership:
    """This process's place in an elastic job, from its start to its end.

    It starts the server on this task's address. `begin`, `form`, `establish` and `newcomers_wait`
    are called by one thread at a time; `leave` may be called by any thread, and ends a call in
    progress.

    Args:
      cluster: the tasks that this process knows, and its own, which trains.
      settings: the secret, the data port, and the timeouts of the rendezvous and of the start.
      elastic: the limits of the job.
      description: the values that all members must agree on, by field; the versions are added.
      records: the records that newcomers may read.
      timing: the protocol's times.

    Attributes:
      process: this process's unique id.
      world: the present generation, or None before the first.
      tombstone: tells that the job has ended.

    Raises:
      JobEnded: the job has ended.
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
        records: CallRecords | None = None,
        timing: Timing = Timing(),  # noqa: B008 - frozen
    ) -> None:
        if cluster.rank is None:
            raise ClusterConfigError(
                f"{cluster.task_name}: expected a chief or worker in an elastic job"
            )
        self.tombstone = Tombstone(settings, cluster.task_name)
        self.tombstone.check()
        self._key = proofs.new_key()
        self.process = proofs.process_id(self._key)
        self.world: World | None = None
        start = StartSize.of(elastic, elastic.start(cluster), settings.elastic_start_timeout)
        me = Member(self.process, cluster.task_name, cluster.address or _ALONE)
        names = {
            address: f"{cluster.name_of_rank(rank)} at {address}"
            for rank, address in enumerate(cluster.training_addresses or (_ALONE,))
        }
        description = {"tfdist version": __version__, **description}
        self._state = Generations(
            me,
            elastic,
            tuple(names),
            start,
            description,
            ask=lambda member, host: self._peers.confirming.ask(member.address, host),
            callers_are_signed=settings.secret is not None,
        )
        probes = Probes(cluster, settings.secret, timing.answer, settings.tls)
        self._peers = Peers(self._state, probes, names, timing, settings.rendezvous_timeout)
        records = CallRecords(0) if records is None else records
        self._reader = MemberRecords(self._peers, records)
        self._served = RecordServer(records, self._state.knows_job)
        self._founding = Founding(
            self._peers, tuple(names), start, self._last_refusal, self.tombstone
        )
        joining = Joining(self._peers, self._founding)
        self._agreement = Agreement(self._peers, joining, elastic.min_workers)
        host = me.address.rpartition(":")[0]
        if not cluster.is_local:
            host = interfaces.data_interface(cluster, settings)[1]
        self._connection = Connection(self._peers, settings.secret, host)
        self._first_generation: Generation | None = None  # but not yet connected
        self._server: ControlServer | None = None
        if not cluster.is_local:
            self._server = ControlServer(
                cluster,
                settings.secret,
                {
                    **clock.HANDLERS,
                    **waits.HANDLERS,
                    **self._state.handlers,
                    **self._served.handlers,
                },
                max_threads=_MAX_THREADS,
                interface=settings.interface,
                is_from_the_job=self._state.is_from_the_job,
                role="a task of an elastic job; expected TFDIST_ELASTIC on every task",
                tls=settings.tls,
            )

    def describe(self, more: Mapping[str, str], instead_of: Collection[str] = ()) -> None:
        """Adds values that all members must agree on.

        Members may do so at different times: a field is compared as soon as both of two processes
        have it.

        Args:
          more: by field.
          instead_of: fields that are forgotten, unless `more` has them.
        """
        self._state.describe(more, instead_of)

    def begin(self) -> World | None:
        """Forms the job with the other founders, unless it runs already.

        Returns:
          Generation 1, to which `form` then connects; or None if a member of the running job has
          answered: this process is a newcomer.

        Raises:
          RendezvousTimeoutError: founders were missing at the deadline; names them.
          AuthenticationError: another task does not hold the same secret.
          ClusterConfigError: another task has another description or version.
          TfdistError: `leave` was called meanwhile.
        """
        self._first_generation = self._founding.run()
        return None if self._first_generation is None else self._world(self._first_generation)

    def form(
        self,
        communicator: Communicator,
        *,
        admits: bool = True,
        rejoins: bool = True,
        on_too_few: Callable[[], None] | None = None,
    ) -> World:
        """Forms the next generation, and connects a communicator among its members.

        All members call it after a failure, or between two steps for a planned change; founders
        call it after `begin`; a newcomer calls it when it is ready to train. If members die
        meanwhile, further generations are formed. If the job continued without this process, it
        joins as a newcomer: see `World.is_newcomer`.

        Args:
          communicator: of any ranks; no collective of it is running.
          admits: if this process leads, it takes newcomers in. Without them the members may be
            fewer than `min_workers`.
          rejoins: whether to join as a newcomer if the job continued without this process.
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
          Outside: the job continued without this process; a later call joins it as a newcomer.
          CallOver: as for `Joining.run`.
        """
        with events.span("rendezvous", self._peers.me.name):
            return self._form(communicator, admits, rejoins, on_too_few)

    def _form(
        self,
        communicator: Communicator,
        admits: bool,
        rejoins: bool,
        on_too_few: Callable[[], None] | None,
    ) -> World:
        communicator.leave()
        generation, self._first_generation = self._first_generation, None
        wait = self._peers.wait()
        self._state.begin_forming(generation)
        try:
            while True:
                try:
                    if generation is None:
                        generation = self._agreement.run(wait, admits, rejoins, on_too_few)
                    for member in generation.members:
                        self._peers.learn(member)
                    self._peers.check_attempts(generation, wait)
                    self._connection.run(communicator, generation, wait)
                    break
                except Again as failure:
                    _log.info("%s: %s", self._peers.me.name, failure)
                    if generation is not None:
                        self._state.give_up(generation)
                    self._state.begin_forming()
                    generation = None
        except BaseException:
            self._state.stop_forming()
            raise
        self._state.enter(generation)
        self.world = self._world(generation)
        _log.info(
            "%s: rank %d of %d in generation %d",
            self._peers.me.name,
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

    def pause(self, seconds: float) -> None:
        """Waits; not longer than until `leave`."""
        self._peers.closed.wait(seconds)

    def stand(self, call: int, ended: int) -> None:
        """Notes where this process stands; see `Generations.stand`."""
        self._state.stand(call, ended)

    def record(self, call: int) -> Record | None:
        """Reads what the members have of a call; see `MemberRecords.read`."""
        return self._reader.read(call)

    def serve_records(self, seconds: float) -> None:
        """Waits, at the end of the program, for newcomers that read records of this process.

        Args:
          seconds: how long at most.
        """
        wait = self._peers.wait(seconds)
        while self._served.is_read and not wait.is_over and not wait.is_closed:
            wait.pause()

    def record_when_ended(self, call: int) -> Record:
        """Waits until the members have ended a call; returns its record.

        Raises:
          JobEnded: no member answers any more, since the job has ended.
          TfdistError: no member answers any more, or `leave` was called.
          Exception: as for `record`.
        """
        timing = self._peers.timing
        wait = self._peers.wait(math.inf, longest_pause=timing.probe)
        self._reader.heard = time.monotonic()
        while True:
            self._peers.check()
            record = self._reader.read(call)
            if record is not None:
                return record
            if time.monotonic() > self._reader.heard + timing.grace:
                self.tombstone.check()
                raise TfdistError(
                    f"{self._peers.me.name}: a newcomer: no member of the job has answered for "
                    f"{timing.grace:g} s, while it waited for the results of their call number "
                    f"{call} of fit, evaluate and predict: start the program again"
                )
            if wait.is_log_due():
                _log.warning(
                    "%s: a newcomer: waits until the members have ended call number %d of fit, "
                    "evaluate and predict, for %.0f s by now",
                    *(self._peers.me.name, call, wait.elapsed),
                )
            wait.pause()

    def watch(
        self,
        communicator: Communicator,
        *,
        stalled: float = 5.0,
        silence: float = 10.0,
    ) -> None:
        """Begins to look after stalled collectives, in a thread, until `leave`.

        While a collective waits, the other members are probed. A member that does not answer is
        given up. The collective then fails with `tf.errors.UnavailableError`, here and on the
        peers.

        Args:
          communicator: the communicator passed to `form`.
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
        if self._peers.closed.is_set():
            return
        self._peers.closed.set()
        # First, so that no process waits here for this process to lead.
        self._state.close()
        generation = self._state.entered or self._state.reference
        self._tell([m for m in generation.members if m != self._peers.me] if generation else [])
        self._peers.probes.close()
        if self._server is not None:
            self._server.close()

    def _last_refusal(self) -> str | None:
        return self._server.last_refusal if self._server is not None else None

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
            job=generation.job,
        )

    def _tell(self, others: Sequence[Member]) -> None:
        """Tells other members that this process leaves; silent ones are not waited for long."""
        probes = self._peers.probes
        request = messages.ElasticLeaveRequest(self._key, wait=0.0)

        def tell(member: Member) -> None:
            with contextlib.suppress(UnreachableError, TfdistError):
                probes.call(member.address, str(member), messages.ELASTIC_LEAVE, request)

        threads = [
            threading.Thread(target=tell, args=(member,), name="tfdist-leave", daemon=True)
            for member in others
            if member.process not in self._state.dead
        ]
        for thread in threads:
            try:
                thread.start()
            except RuntimeError:
                # Newer Pythons start no thread during shutdown. Silence ends the job's wait, too.
                _log.warning("%s: leaves without a word to the others", self._peers.me.name)
                return
        farewell = Wait(self._peers.timing.farewell)
        for thread in threads:
            thread.join(farewell.remaining)

    def _watch(self, communicator: Communicator, stalled: float, silence: float) -> None:
        since: float | None = None
        while not self._peers.closed.wait(min(self._peers.timing.probe, stalled)):
            generation = self._state.entered
            if generation is None or communicator.closed or communicator.waiting(stalled) is None:
                since = None
                continue
            since = time.monotonic() if since is None else since
            others = [member for member in generation.members if member != self._peers.me]
            self._peers.ask([member.address for member in others], every=self._peers.timing.probe)
            for member in others:
                self._peers.answer_of(member, since)
                if self._peers.has_ended(member):
                    why = f"{member} has ended: {self._state.dead[member.process]}"
                elif self._peers.probes.silent_for(member.address) >= silence:
                    why = f"{member} does not answer"
                else:
                    continue
                _log.warning("%s: %s", self._peers.me.name, why)
                # Not if the next generation was formed meanwhile.
                if generation == self._state.entered and communicator.waiting(stalled) is not None:
                    communicator.abort(why)
                break
