"""This worker's part in the queues of its job: the records that it reads, trains and commits.

A `Feed` is one queue, seen from here. Three threads use it: tf.data's, which takes tasks and counts
the records of each batch; the training's, which says that batches are trained; and one of this
module, which commits, and renews the leases.

    tf.data    lease -> read ... batch, batch, batch
    training                          step     step
    here                                           flush the pushes, report

A report is sent after the pushes of the steps that it covers have arrived, so a worker that dies
between the two repeats records, and never loses any. This is the one place that decides so.

With parameter servers the pushes themselves commit (`begin_steps`): the report only
renews the leases. A worker that has lost a task is told so by a push that is refused; it then gives
back the other tasks of that batch, whose next records do not follow the last trained ones.

Then the last epoch ends when all its tasks are done. The input has ended, so that the training gets
the last batch, however short, and waits for more (`wait_for_end`): if tasks have come back, another
pass reads them.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Container, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfdist.config.cluster import Cluster
from tfdist.control.client import ControlClient
from tfdist.control.encoding import JsonObject
from tfdist.control.held_calls import ClientContext
from tfdist.control.service import Method
from tfdist.control.waiting import Wait
from tfdist.data.queue.client import Call, OwnedTask, Pending, TaskClient
from tfdist.data.queue.description import Description, Spec
from tfdist.data.queue.master import TaskMaster
from tfdist.data.stream import Batching, Stream
from tfdist.errors import ClusterConfigError, NotInitializedError, TfdistError
from tfdist.job import process
from tfdist.ops.ps.client import ParameterClient
from tfdist.ops.trace import events

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_log = logging.getLogger("tfdist.data")
# Seconds between two reports of trained records, and the minimum. A lease is renewed three times.
_REPORT_PERIOD, _MIN_PAUSE = 0.5, 0.05
_RENEWALS = 3
# Seconds for which one call waits for the end of an epoch. tf.data cannot interrupt it.
_POLL = 0.5
# Seconds to wait for the master when this worker leaves.
_LEAVE_TIMEOUT = 10.0


class Feed:
    """One queue of this worker's job.

    Args:
      name: the queue's name.
      spec: the data that it is expected to deal out.
      describe: cuts the data into tasks.
      feeds: this worker's feeds.
    """

    def __init__(
        self, name: str, spec: Spec, describe: Callable[[], Description], feeds: Feeds
    ) -> None:
        self.name = name
        self.spec = spec
        self._describe = describe
        self._feeds = feeds
        self._lock = threading.RLock()
        self._reporting = threading.Lock()
        self._seed: int | None = None
        self._ended = -1
        self._fits = 0
        self._limit: int | None = None
        self._streams: list[Stream] = []  # the last one is read now
        self._number = feeds.next_number()
        self._in_steps = False  # between `begin_steps` and `train`
        self._trained = 0
        self._reported = 0
        self._reported_at = 0.0
        self._failure: Exception | None = None

    @property
    def seed(self) -> int:
        """The common seed of all workers."""
        assert self._seed is not None
        return self._seed

    def begin_iteration(self, batching: Batching | None = None, again: int | None = None) -> Stream:
        """Begins to read the dataset again; what was not trained until now is given back.

        Args:
          batching, again: as for `Stream`.
        """
        with self._lock:
            if self._streams and self._streams[-1].has_batches and not self._trained:
                _log.warning(
                    "%s: queue %r: its records were read, but no step has committed any, so they "
                    "are dealt out again: call tfdist.data.commit() after each step",
                    self._feeds.task_name,
                    self.name,
                )
            # A further pass begins before the training has used all batches of the one before, if
            # the master was started again meanwhile.
            is_pass = again is not None and bool(self._streams)
            stream = Stream(batching, again, self._streams[-1].waiting if is_pass else 0)
            if self._streams:
                self._streams[-1].end()
            self._streams.append(stream)
            if self._in_steps:
                self._push(stream)
            return stream

    def begin_fit(self, epochs: int) -> int:
        """Begins a training, which other workers may have begun before.

        Args:
          epochs: how many the training has; it reads no more of them.

        Returns:
          How many epochs of it are over.
        """
        client = self._open()
        self._fits += 1
        begun = client.begin(self.name, self._ended, self._fits)
        self._limit = begun.first + epochs
        over = begun.current if begun.epoch is not None else self._limit
        return max(0, min(over - begun.first, epochs))

    def tasks(self) -> Iterator[OwnedTask | None]:
        """Yields the tasks of one epoch; `None` while it waits for other workers."""
        client = self._open()
        with self._lock:
            if not self._streams:
                self.begin_iteration()
            stream = self._streams[-1]
            is_first = len(self._streams) == 1
        if stream.is_over:
            return
        if not is_first:  # the rest of the iteration before comes first
            self.report()
        epoch = stream.again
        if epoch is None:
            epoch = client.begin(self.name, self._ended).epoch
            if epoch is None or (self._limit is not None and epoch >= self._limit):
                stream.finish()
                return
        wait = Wait()
        while True:
            waits = self._feeds.can_wait
            with events.span("task lease", self.name):
                found = client.lease(self.name, epoch, waits=waits, wait=_POLL if waits else 0.0)
            if found is None:
                break
            if isinstance(found, OwnedTask):
                with self._lock:
                    is_current = self._streams[-1] is stream and not stream.is_over
                    if is_current:
                        stream.read(found.lease, found.first, found.size)
                if not is_current:  # another iteration has begun meanwhile
                    client.report(self.name, {}, [found.lease])
                    return
                self._feeds.watch()
                yield found
                continue
            if wait.is_log_due():
                _log.warning(
                    "%s: queue %r: at the end of epoch %d, waiting for %s",
                    self._feeds.task_name,
                    self.name,
                    epoch + 1,
                    self._feeds.cluster.describe_ranks(found),
                )
            yield None
        stream.finish()
        stream.ended = epoch
        self._ended = max(self._ended, epoch)
        self._feeds.wake()

    def wait_for_end(self, stream: Stream) -> Iterator[bool]:
        """Waits for the end of the last epoch, after an iteration has read all it could get.

        Args:
          stream: the iteration.

        Yields:
          False while it waits; True once, as the last value, if tasks have come back: another
          iteration `again` is to read them. Ends without it when all tasks are done.

        Raises:
          TfdistError: nothing was trained for too long, and tasks are pending.
        """
        epoch, pushes = stream.ended, self._feeds.pushes
        if epoch is None or pushes is None or not self._is_last(epoch):
            return
        if not (self._fits or stream.is_pushed):
            return  # reports commit: this worker's own records would wait for the training
        client, timeout = self._open(), self._feeds.timeout
        wait = Wait(timeout)
        seen = time.monotonic()
        before: tuple[tuple[int, ...], int] | None = None
        trained = -1
        while self._streams[-1] is stream and not stream.is_over:
            idle = not stream.has_batches and not self._in_steps
            pushes.parameters.push_accumulated()
            idle = idle and self._feeds.pushes_have_arrived(_POLL)
            now = time.monotonic()
            if stream.trained != trained or idle or self._in_steps:
                trained, seen = stream.trained, now
            if not self._fits and now - seen >= self.spec.lease:
                return  # the loop may ask for the next batch before it trains this one
            self.report()
            found = client.end(self.name, epoch, idle=idle, waits=self._feeds.can_wait, wait=_POLL)
            if not isinstance(found, Pending):
                if not found:
                    yield True
                return
            if (found.ranks, found.trained) != before:
                before = found.ranks, found.trained
                wait.heard()
            who = self._feeds.cluster.describe_ranks(found.ranks)
            if wait.is_over and found.ranks != (self._feeds.cluster.rank,):
                raise TfdistError(
                    f"{self._feeds.task_name}: queue {self.name!r}: {found.about} dealt out in the "
                    f"last epoch and are not trained; {who} had them, without any progress for "
                    f"{timeout:g} s"
                )
            if wait.is_log_due():
                _log.warning(
                    "%s: queue %r: the last epoch ends when all is trained; waiting for %s: %s "
                    "dealt out",
                    self._feeds.task_name,
                    self.name,
                    who,
                    found.about,
                )
            yield False

    def _is_last(self, epoch: int) -> bool:
        """Whether no later epoch deals out what comes back of this one."""
        last = [one for one in (self._limit, self.spec.epochs) if one is not None]
        return bool(last) and epoch + 1 >= min(last)

    def end_iteration(self) -> None:
        """Says that nothing more of this iteration is trained: its tasks are given back."""
        with self._lock:
            if not self._streams:
                return
            self._streams[-1].is_over = True
            self._streams[-1].end()
        self.report()

    def begin_steps(self, batches: int = 1) -> None:
        """Says that the next steps train the next batches of this iteration, one each.

        With parameter servers their pushes commit the batches; otherwise this does
        nothing. Call `train` after the steps all the same.
        """
        self._open()
        pushes = self._feeds.pushes
        if pushes is None:
            return
        with self._lock:
            self._in_steps = True
            stream = self._streams[-1] if self._streams else None
        if stream is not None and not stream.is_pushed:
            self.report()  # the records trained without pushes
            self._push(stream)
        pushes.commits.begin_steps(self._number, batches)

    def _push(self, stream: Stream) -> None:
        """Lets the pushes of steps commit the batches of an iteration from now on."""
        pushes, number = self._feeds.pushes, self._number
        assert pushes is not None
        if stream.again is None:  # else the batches of the pass before come first
            pushes.commits.forget_stream(number)
        stream.tell(lambda batch: pushes.commits.add_batch(number, batch))

    def end_steps(self) -> None:
        """Says that no push commits a batch until `begin_steps` is called again."""
        with self._lock:
            was_in_steps, self._in_steps = self._in_steps, False
        if was_in_steps and self._feeds.pushes is not None:
            self._feeds.pushes.commits.begin_steps(self._number, 0)

    def train(self, batches: int = 1) -> None:
        """Notes that the next batches of this iteration are trained.

        Raises:
          tf.errors.OpError: a server has refused a push of an earlier step.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        self.end_steps()
        with self._lock:
            stream = self._streams[-1] if self._streams else None
        if stream is None:
            return
        self._trained += stream.train(batches)
        if not stream.is_behind:
            self._feeds.wake()

    @property
    def is_read(self) -> bool:
        """Whether an iteration of it has begun."""
        return bool(self._streams)

    def report(self, *, leaves: bool = False, failed: bool = False) -> None:
        """Commits what is trained, renews the leases, and gives back what is not read any more.

        Args:
          leaves: whether this worker ends, and gives back all its tasks.
          failed: whether it ends with an error.
        """
        with self._reporting:
            with self._lock:
                streams = list(self._streams)
                old = [x for x in streams if leaves or x.is_over or x is not streams[-1]]
            if not streams:
                return
            trained = self._trained
            held: dict[int, int] = {}
            pushed: dict[int, int] = {}
            for stream in streams:
                positions = stream.positions()
                held |= positions
                pushed |= dict.fromkeys(positions, 0) if stream.is_pushed else {}
            released = [lease for stream in old for lease in stream.positions()]
            if released and not failed:
                self._feeds.push_rest()  # before their tasks are given back
            refused = self._feeds.take_refused(held)
            due = self._reported_at + self.spec.lease / _RENEWALS
            if trained == self._reported and not released and not refused and not leaves:
                if time.monotonic() < due:
                    return
            if trained != self._reported and not all(stream.is_pushed for stream in streams):
                self._flush(held)
            refused |= self._feeds.take_refused(held)  # of the pushes that have arrived meanwhile
            lost = self._open().report(
                self.name,
                held | pushed,
                [lease for lease in released if lease not in refused],
                list(refused),
                failed=failed,
                timeout=_LEAVE_TIMEOUT if leaves else None,
            )
            self._reported_at, self._reported = time.monotonic(), trained
            for stream in streams:
                stream.forget(held, refused.union(lost, released))
            with self._lock:
                self._streams = [x for x in self._streams if x not in old or x is streams[-1]]
            if lost:
                _log.warning(
                    "%s: queue %r: %d tasks that this worker was reading belong to others by now, "
                    "because it was silent for longer than its lease of %g s or the master was "
                    "started again; %s",
                    self._feeds.task_name,
                    self.name,
                    len(lost),
                    self.spec.lease,
                    "its steps on their records do not count"
                    if pushed
                    else "their records may be trained twice",
                )

    def _flush(self, held: Mapping[int, int]) -> None:
        """Waits until the pushes have arrived, and renews the leases meanwhile."""
        wait = Wait(self._feeds.timeout)
        try:
            while not self._feeds.pushes_have_arrived(self.spec.lease / _RENEWALS):
                if wait.is_over:
                    self._feeds.flush(_POLL)  # raises, and says which server owes an answer
                    return
                self._open().report(self.name, dict.fromkeys(held, 0))
        except Exception as error:
            self._failure = error  # of a push: for the training, not for this thread
            raise

    def _open(self) -> TaskClient:
        with self._lock:
            client = self._feeds.client()
            if self._seed is None:
                self._seed = client.open(self.name, self.spec, self._describe).seed
            return client


class Feeds:
    """All queues of this process, and its connection to their master."""

    def __init__(self) -> None:
        self.cluster = Cluster.local()
        self._lock = threading.RLock()
        self._feeds: dict[str, Feed] = {}
        self._client: TaskClient | None = None
        self._control: ControlClient | None = None
        # Waits for this number of seconds until the pushes of steps have reached the servers.
        self.flush: Callable[[float], None] = lambda seconds: None
        # Seconds to wait without any progress.
        self.timeout = 0.0
        # Pushes the steps that the parameter servers' `n_push` has held back.
        self.push_rest: Callable[[], None] = lambda: None
        # With parameter servers: the client that tells their pushes which records they commit.
        self.pushes: ParameterClient | None = None
        self._refused: set[int] = set()  # leases of batches that the servers have refused
        self._numbers = itertools.count(1)
        self._closed = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self.can_wait = False
        self.is_on_servers = False

    def feed(self, name: str, spec: Spec, describe: Callable[[], Description]) -> Feed:
        """Returns this process's feed of a queue; the same one for the same name.

        Raises:
          ClusterConfigError: the queue has another spec here.
        """
        with self._lock:
            known = self._feeds.get(name)
            if known is None:
                known = self._feeds[name] = Feed(name, spec, describe, self)
            difference = known.spec.difference(spec)
            if difference:
                raise ClusterConfigError(
                    f"tfdist.data: there is already a data set of the name {name!r} with other data"
                    f" or arguments ({difference}); expected another name: name=..."
                )
            return known

    def next_number(self) -> int:
        """Returns a number that no other feed has."""
        return next(self._numbers)

    def take_refused(self, held: Container[int]) -> set[int]:
        """Returns the leases of which a refused batch had records."""
        if self.pushes is None:
            return set()
        batches, leases = self.pushes.commits.take_refused()
        if batches:
            _log.warning(
                "%s: %d steps on data tasks that belong to others by now did not count",
                self.task_name,
                batches,
            )
        with self._lock:
            self._refused |= leases
            found = {lease for lease in self._refused if lease in held}
            self._refused -= found
            return found

    def pushes_have_arrived(self, seconds: float) -> bool:
        """Waits for the servers' answers to all pushes; returns whether they came in time."""
        try:
            self.flush(seconds)
        except tf.errors.DeadlineExceededError:
            return False
        return True

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        return self.cluster.rank == 0

    @property
    def task_name(self) -> str:
        """This process's name in messages."""
        return self.cluster.task_name

    def all(self) -> list[Feed]:
        """Returns all feeds."""
        with self._lock:
            return list(self._feeds.values())

    def client(self) -> TaskClient:
        """Returns the connection to the master; the first call makes it.

        Raises:
          NotInitializedError: the job has several tasks, and this process has not joined it.
        """
        with self._lock:
            if self._client is None:
                self._closed = threading.Event()
                self._client = self._connect()
                process.current.before_leaving(self.leave)
            return self._client

    def watch(self) -> None:
        """Starts the thread that reports, if it does not run."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._report_periodically, name="tfdist-data", daemon=True
                )
                self._thread.start()

    def wake(self) -> None:
        """Lets the thread report now."""
        self._wake.set()

    def report(self) -> None:
        """Commits all that is trained by now, before it returns."""
        for feed in self.all():
            feed.report()

    def leave(self, failed: bool) -> None:
        """Commits for the last time, and gives back all tasks; later calls do nothing."""
        if self._client is None:
            return
        for feed in self.all():
            try:
                feed.report(leaves=True, failed=failed)
            except Exception as error:  # the job may be over; the leases expire
                _log.warning("%s: queue %r: %s", self.task_name, feed.name, error)
        self._closed.set()
        self._wake.set()
        with self._lock:
            self._client, self._thread, self._feeds, self.pushes = None, None, {}, None
            if self._control is not None:
                self._control.close()

    def _report_periodically(self) -> None:
        while not self._closed.is_set():
            leases = [feed.spec.lease / _RENEWALS for feed in self.all()]
            self._wake.wait(min([_REPORT_PERIOD, *leases]))
            self._closed.wait(_MIN_PAUSE)
            self._wake.clear()
            for feed in self.all():
                if self._closed.is_set():
                    return
                try:
                    feed.report()
                except Exception as error:
                    # The reader of the data gets the same error from its own call.
                    _log.warning("%s: queue %r: %s", self.task_name, feed.name, error)

    def _connect(self) -> TaskClient:
        current = process.current
        cluster = current.cluster("tfdist.data") if current.is_initialized else None
        if cluster is None:
            cluster = Cluster.from_environment()
            if not cluster.is_local:
                current.cluster("tfdist.data")  # raises
        settings = current.settings
        self.timeout = settings.rendezvous_timeout
        on_servers = current.has_server_variables and bool(cluster.ps)
        call: Call
        if cluster.rank is None or (cluster.world_size == 1 and not on_servers):
            # An evaluator has its data for itself.
            self.cluster, master = Cluster.local(), "this process"
            call = _direct(TaskMaster(self.cluster))
        else:
            self.cluster = cluster
            self.is_on_servers = on_servers
            if on_servers:
                worker: Any = current.ps_worker
                self.flush, self.push_rest = worker.client.flush, worker.flush
                self.can_wait = worker.config.mode == "async"
                self.pushes = worker.client
                master, address = f"ps 0 at {cluster.ps[0]}", cluster.ps[0]
            elif cluster.ps and current.job is None:
                raise NotInitializedError(
                    f"tfdist.data: {cluster.task_name} has made no strategy yet, so it is not known"
                    " which task deals out its data: make the strategy first"
                )
            else:
                master, address = cluster.describe_rank(0), cluster.training_addresses[0]
                job = current.join(cluster)
            if not on_servers and job.task_master is not None:
                call = _direct(job.task_master)
            else:
                self._control = ControlClient(
                    cluster, settings.secret, address, master, settings.tls
                )
                call = _remote(self._control)
        return TaskClient(
            self.cluster, uuid.uuid4().hex, call, master, settings.rendezvous_timeout, self._closed
        )


def _direct(master: TaskMaster) -> Call:
    """Calls a master in this process."""
    handlers = master.handlers

    def call(method: Method, request: DataclassInstance, wait: float) -> JsonObject:
        answer = handlers[method](request, ClientContext())
        if answer["status"] == "refused":
            raise ClusterConfigError(f"tfdist.data: {answer['reason']}")
        return answer

    return call


def _remote(control: ControlClient) -> Call:
    def call(method: Method, request: DataclassInstance, wait: float) -> JsonObject:
        return control.call(method, request, wait, patient=True)

    return call


current = Feeds()
