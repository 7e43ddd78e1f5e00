"""A worker's calls to the master of the job's data tasks."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tfdist.config.cluster import Cluster
from tfdist.control import callers
from tfdist.control.client import UnreachableError
from tfdist.control.encoding import JsonObject
from tfdist.control.service import Method
from tfdist.control.waiting import Wait
from tfdist.data.queue import messages
from tfdist.data.queue.description import Description, Spec
from tfdist.errors import CheckpointError, ClusterConfigError, RendezvousTimeoutError, TfdistError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_log = logging.getLogger("tfdist.data.queue")
# Seconds between two calls of a worker that counts records, for which the others wait.
_KEEP_COUNTING = 3.0

Call = Callable[[Method, "DataclassInstance", float], JsonObject]


@dataclasses.dataclass(frozen=True)
class Opened:
    """A queue that this worker shares.

    Args:
      seed: the common seed.
      tasks, records: of one epoch.
    """

    seed: int
    tasks: int
    records: int


@dataclasses.dataclass(frozen=True)
class Begun:
    """An epoch that this worker begins.

    Args:
      epoch: its number; `None` if all epochs are over.
      current: the epoch that is dealt now, or the next one if this worker has ended that.
      first: the first epoch of the `fit` that was asked for.
    """

    epoch: int | None
    current: int
    first: int


@dataclasses.dataclass(frozen=True)
class OwnedTask:
    """A task that this worker owns.

    Args:
      lease, epoch, task, first, size: as in `Grant`.
      place: as in `Description.place`.
    """

    lease: int
    epoch: int
    task: int
    first: int
    size: int
    place: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Pending:
    """Tasks for which the end of the last epoch waits.

    Args:
      ranks: their owners.
      trained: how many records of the queue are trained: while it grows, there is progress.
      about: names the records, as in "3 records of task 7 (records 56 to 58) were".
    """

    ranks: tuple[int, ...]
    trained: int
    about: str


class TaskClient:
    """One worker's connection to the master; its methods may be called from any thread.

    Args:
      cluster: the job.
      process: this process's identity.
      call: sends a request of a method, which may be held for some seconds.
      master: the master's name, for messages.
      timeout: seconds to wait for a master that does not answer.
      closed: is set when this worker leaves.
    """

    def __init__(
        self,
        cluster: Cluster,
        process: str,
        call: Call,
        master: str,
        timeout: float,
        closed: threading.Event,
    ) -> None:
        self._cluster = cluster
        self._call = call
        self._master = master
        self._timeout = timeout
        self._closed = closed
        self._opened: dict[str, tuple[Spec, Callable[[], Description]]] = {}
        self._who: JsonObject = {
            "fingerprint": callers.fingerprint(cluster.training_addresses),
            "process": process,
            "rank": cluster.rank,
        }

    def open(self, queue: str, spec: Spec, describe: Callable[[], Description]) -> Opened:
        """Opens a queue together with the other workers.

        Args:
          queue: its name.
          spec: the data that this worker expects.
          describe: cuts the data into tasks; called if no other worker has.

        Raises:
          ClusterConfigError: the worker that opened the queue has other data.
          RendezvousTimeoutError: the master did not answer in time.
        """
        self._opened[queue] = spec, describe
        wait = Wait()
        while True:
            poll = wait.poll()
            answer = self._send(messages.TASK_OPEN, self._open_request(queue, spec, poll), poll)
            if answer["status"] == "describe":
                answer = self._describe(queue, spec, describe)
            elif answer["status"] == "compare":
                answer = self._tell(queue, spec, Description(spec))
            if answer["status"] == "open":
                return Opened(answer["seed"], answer["tasks"], answer["records"])
            if answer["status"] == "waiting" and wait.is_log_due():
                _log.warning(
                    "%s: queue %r: waiting for %s, which counts the records",
                    self._cluster.task_name,
                    queue,
                    self._cluster.describe_rank(answer["rank"]),
                )

    def begin(self, queue: str, ended: int, fit: int = 0) -> Begun:
        """Begins an epoch; see `TaskQueue.begin_epoch` and `begin_fit`."""
        answer = self._of_queue(queue, messages.TASK_BEGIN, 0.0, ended=ended, fit=fit)
        return Begun(answer["epoch"], answer["current"], answer["first"])

    def lease(
        self, queue: str, epoch: int, *, waits: bool, wait: float
    ) -> OwnedTask | tuple[int, ...] | None:
        """Asks for a task.

        Returns:
          A task; the ranks that it has waited for in vain; or `None` at the end of the epoch.
        """
        answer = self._of_queue(queue, messages.TASK_LEASE, wait, epoch=epoch, waits=waits)
        if answer["status"] == "task":
            names = [field.name for field in dataclasses.fields(OwnedTask) if field.name != "place"]
            return OwnedTask(**{n: answer[n] for n in names}, place=tuple(answer["place"]))
        return tuple(answer["ranks"]) if answer["status"] == "waiting" else None

    def end(
        self, queue: str, epoch: int, *, idle: bool, waits: bool, wait: float
    ) -> bool | Pending:
        """Asks whether all tasks of the last epoch are done; see `TaskQueue.end`.

        Returns:
          Whether the epoch is over, else there are tasks to take; or the tasks that are waited for.
        """
        answer = self._of_queue(queue, messages.TASK_END, wait, epoch=epoch, idle=idle, waits=waits)
        if answer["status"] == "waiting":
            return Pending(tuple(answer["ranks"]), answer["records"], answer["pending"])
        return answer["status"] == "ended"

    def report(
        self,
        queue: str,
        held: Mapping[int, int],
        released: Sequence[int] = (),
        refused: Sequence[int] = (),
        *,
        failed: bool = False,
        timeout: float | None = None,
    ) -> list[int]:
        """Renews this worker's leases, commits records and gives back tasks.

        Args:
          queue: the queue.
          held: for each lease, how many of its task's records are trained.
          released: leases to give back, after the commit.
          refused: others, because a server has refused a push of their records.
          failed: whether this worker dies.
          timeout: seconds to wait for a master that does not answer; `None`: this client's.

        Returns:
          The leases of `held` that this worker has lost.
        """
        fields = {
            "held": [messages.HeldLease(id, trained) for id, trained in held.items()],
            "released": list(released),
            "refused": list(refused),
            "failed": failed,
        }
        return self._of_queue(queue, messages.TASK_REPORT, 0.0, timeout, **fields)["lost"]

    def state(self) -> str:
        """Returns the state of all queues, for a checkpoint; "" if there are none."""
        return self._send_state(None)["state"]

    def restore(self, state: str) -> None:
        """Gives the master a state, at the start of a job; only rank 0 may.

        Raises:
          CheckpointError: the state is damaged, or one of other data.
        """
        try:
            self._send_state(state)
        except ClusterConfigError as error:
            raise CheckpointError(str(error)) from None

    def _describe(self, queue: str, spec: Spec, describe: Callable[[], Description]) -> JsonObject:
        with self._counting(queue, spec):
            description = describe()
        return self._tell(queue, spec, description)

    def _tell(self, queue: str, spec: Spec, description: Description) -> JsonObject:
        request = self._open_request(queue, spec, 0.0, description.text())
        return self._send(messages.TASK_OPEN, request, 0.0)

    def _counting(self, queue: str, spec: Spec) -> _Repeated:
        request = self._open_request(queue, spec, 0.0)
        return _Repeated(lambda: self._call(messages.TASK_OPEN, request, 0.0), _KEEP_COUNTING)

    def _open_request(
        self, queue: str, spec: Spec, wait: float, description: str | None = None
    ) -> messages.TaskOpenRequest:
        return messages.TaskOpenRequest(
            **self._who, queue=queue, digest=spec.digest, description=description, wait=wait
        )

    def _send_state(self, state: str | None) -> JsonObject:
        request = messages.TaskStateRequest(**self._who, state=state, wait=0.0)
        return self._send(messages.TASK_STATE, request, 0.0)

    def _of_queue(
        self,
        queue: str,
        method: Method,
        wait: float,
        timeout: float | None = None,
        **fields: object,
    ) -> JsonObject:
        request = method.request(**self._who, queue=queue, wait=wait, **fields)
        while True:
            answer = self._send(method, request, wait, timeout)
            if answer["status"] != "unknown":
                return answer
            # The master was started again, without this queue.
            _log.warning(
                "%s: %s was started again; queue %r is opened again",
                self._cluster.task_name,
                self._master,
                queue,
            )
            self.open(queue, *self._opened[queue])

    def _send(
        self, method: Method, request: DataclassInstance, wait: float, timeout: float | None = None
    ) -> JsonObject:
        """Calls the master, again and again while it cannot be reached."""
        retries = Wait(self._timeout if timeout is None else timeout, self._closed)
        while True:
            problem = "it reads its checkpoint"
            try:
                answer = self._call(method, request, wait)
                if answer["status"] != "starting":
                    return answer
            except UnreachableError as error:
                problem = str(error)
            if retries.is_closed:
                raise TfdistError(f"{self._cluster.task_name}: left while it called {self._master}")
            if retries.is_over:
                raise RendezvousTimeoutError(
                    f"{self._cluster.task_name}: {self._master}, which deals out the data tasks, "
                    f"did not answer within {retries.timeout:g} s: {problem}"
                )
            if retries.is_log_due():
                _log.warning(
                    "%s: waiting for %s, which deals out the data tasks (%s)",
                    self._cluster.task_name,
                    self._master,
                    problem,
                )
            retries.pause()


class _Repeated:
    """Calls a function every few seconds in a `with` block, in a thread of its own."""

    def __init__(self, function: Callable[[], object], period: float) -> None:
        self._function = function
        self._period = period
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tfdist-tasks-count", daemon=True)

    def _run(self) -> None:
        while not self._ended.wait(self._period):
            try:
                self._function()
            except (UnreachableError, TfdistError) as error:
                _log.warning("data tasks: %s", error)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
