"""The master: the queues of a job's data tasks, behind the control server of one of its tasks.

With parameter servers it lives in ps 0, which outlives the workers; else in rank 0; without a
cluster in the process itself. A queue begins with its first worker:

    worker 0                      master                    worker 1
      |--- TaskOpen(digest) ------->|                          |
      |<-- describe ----------------|                          |   it counts the files' records
      |                             |<------- TaskOpen(digest)-|
      |                             |-------- waiting: 0 ----->|
      |--- TaskOpen(description) -->|                          |
      |<-- open --------------------|-------- open ----------->|
      |--- TaskBegin, TaskLease --->|   epochs and tasks
      |--- TaskReport ------------->|   the lease begins again; what is trained is committed,
      |                             |   unless the pushes of steps do so

A worker with another digest must also describe its data, so that the refusal can name the first
difference. The state of the queues goes into the job's checkpoints (`state`, `restore`); a queue
takes its restored state up when it is opened, unless it is of other data.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from tfdist.config.cluster import Cluster
from tfdist.control import callers
from tfdist.control.encoding import JsonObject
from tfdist.control.held_calls import ClientContext
from tfdist.control.server import Handler
from tfdist.control.service import Method
from tfdist.data.queue import messages
from tfdist.data.queue.description import Description, DescriptionError
from tfdist.data.queue.positions import LeasePositions, TaskPositions
from tfdist.data.queue.queue import MAX_DEATHS, Ended, Grant, Item, QueueEvent, Returned, TaskQueue
from tfdist.errors import CheckpointError

_log = logging.getLogger("tfdist.data.queue")
_MAX_QUEUES = 64
# Tasks of all queues; one may have a million.
_MAX_TASKS_OF_ALL = 4_000_000
_MAX_NAME = 100
_MAX_HELD = 1000
_MAX_WAIT = 30.0
# Seconds within which the worker that counts records must ask again.
_COUNTING = 15.0
# Seconds between two looks at leases while a call waits, and at positions, which pushes move.
_CHECK, _CHECK_POSITIONS = 0.5, 0.1
# Tasks that a sentence names.
_MAX_NAMED = 5
# Seconds over which the rate is measured.
_RATE_PERIOD = 60.0
_FORMAT = 1


@dataclasses.dataclass
class _Counting:
    """The worker that counts the records of a queue which does not exist yet."""

    rank: int
    process: str
    expires: float


class _Served:
    """A queue with its description, and the history of its commits."""

    def __init__(
        self, name: str, description: Description, by: int, seed: int, positions: TaskPositions
    ) -> None:
        self.description = description
        self.by = by
        self._name = f"{name}/{description.spec.data_digest}"
        self._positions = positions
        self.history: deque[tuple[float, int]] = deque()
        self.queue = self.new_queue(seed)

    def new_queue(self, seed: int) -> TaskQueue:
        """Returns a queue of this data."""
        return TaskQueue(
            self.description.plan(seed),
            first_lease=secrets.randbits(48) << 12,
            positions=self._positions,
            name=self._name,
        )

    def note(self, now: float) -> None:
        """Notes how many records are committed now."""
        if not self.history or now >= self.history[-1][0] + 1.0:
            self.history.append((now, self.queue.records))
        while now - self.history[0][0] > _RATE_PERIOD and len(self.history) > 2:
            self.history.popleft()

    def rate(self, now: float) -> float:
        """Returns committed records per second, over the last minute."""
        if not self.history or now <= self.history[0][0]:
            return 0.0
        since, records = self.history[0]
        return (self.queue.records - records) / (now - since)


class TaskMaster:
    """Answers the workers' requests.

    Args:
      cluster: the job.
      clock: returns the time, in seconds.
      is_ready: whether it has all that a checkpoint may give it; else it answers "starting" until
        `start`.
    """

    def __init__(
        self,
        cluster: Cluster,
        clock: Callable[[], float] = time.monotonic,
        is_ready: bool = True,
    ) -> None:
        self._cluster = cluster
        self._fingerprint = callers.fingerprint(cluster.training_addresses)
        self._clock = clock
        self._is_ready = is_ready
        self._positions: TaskPositions = LeasePositions()
        self._changed = threading.Condition()
        self._queues: dict[str, _Served] = {}
        self._counting: dict[str, _Counting] = {}
        self._restored: dict[str, JsonObject] = {}
        self._restored_positions: Mapping[str, int] | None = None

    @property
    def handlers(self) -> dict[Method, Handler]:
        """The handlers of the control server's methods."""
        return {
            messages.TASK_OPEN: self._guarded(self._open),
            messages.TASK_BEGIN: self._guarded(self._begin),
            messages.TASK_LEASE: self._guarded(self._lease),
            messages.TASK_REPORT: self._guarded(self._report),
            messages.TASK_END: self._guarded(self._end),
            messages.TASK_STATE: self._guarded(self._state),
            messages.TASK_STATUS: self._status,
        }

    def start(self, positions: TaskPositions | None = None) -> None:
        """Begins to answer, once a checkpoint is restored or there is none.

        Args:
          positions: of the tasks; `None`: the positions that workers report.
        """
        with self._changed:
            self._positions = self._positions if positions is None else positions
            self._is_ready = True
            self._changed.notify_all()

    def state(self) -> str:
        """Returns the state of all queues, as JSON; "" if there are none."""
        with self._changed:
            queues = dict(self._restored)
            for name, served in self._queues.items():
                served.queue.refresh(self._clock())
                queues[name] = {
                    "data": served.description.spec.data_digest,
                    "shuffle": served.description.spec.shuffle,
                    "seed": served.queue.plan.seed,
                    "queue": served.queue.state(),
                }
        return json.dumps({"format": _FORMAT, "queues": queues}) if queues else ""

    def saved(self) -> None:
        """The last `state` is in a checkpoint."""
        with self._changed:
            for served in self._queues.values():
                served.queue.saved()

    def restore(self, text: str, positions: Mapping[str, int] | None = None) -> None:
        """Takes up a state; leases of running workers end.

        Args:
          text: from `state`.
          positions: of tasks, by name, from the same checkpoint, if the positions given to `start`
            are restored too; `None`: they go back to the state.

        Raises:
          CheckpointError: it is no state, or one of other data.
        """
        queues = _parsed_state(text)
        with self._changed:
            self._restored = queues
            self._restored_positions = positions
            problems = [self._apply_restored(name, x) for name, x in self._queues.items()]
            self._changed.notify_all()
        if any(problems):
            raise CheckpointError("; ".join(filter(None, problems)))

    def lost(self) -> list[str]:
        """Returns sentences about records that were dealt out and are not trained.

        No worker has left them out on purpose. Once all workers have left, the job has failed.
        """
        with self._changed:
            return [
                f"queue {name!r}: {_some_records(served, lost)} dealt out and are not trained"
                for name, served in self._queues.items()
                if (lost := served.queue.lost())
            ]

    def unfinished(self) -> list[str]:
        """Returns sentences about other records that are not trained although they were dealt."""
        with self._changed:
            found = []
            for name, served in self._queues.items():
                queue = served.queue
                left_out = [item for item in queue.returned() if item.given]
                if left_out and queue.counts().todo == len(queue.returned()):
                    found.append(
                        f"queue {name!r}: {_some_records(served, left_out)} left out by their "
                        "worker, and are not trained"
                    )
                found += [
                    f"queue {name!r}: {served.description.name(item.task, item.done)} is parked"
                    for item in queue.parked.values()
                ]
            return found

    def _guarded(self, handle: Callable[[Any, float, ClientContext], dict]) -> Handler:
        """Returns a handler of requests that only members of the job may make."""

        def answer(request: messages.TaskRequest, context: ClientContext) -> dict[str, object]:
            problem = self._problem(request)
            if problem:
                return {"status": "refused", "reason": problem}
            with self._changed:
                if not self._is_ready:
                    self._changed.wait_for(lambda: self._is_ready, _bounded(request.wait))
                if not self._is_ready:
                    return {"status": "starting"}
                try:
                    return handle(request, self._clock(), context)
                finally:
                    self._tell()

        return answer

    def _problem(self, request: messages.TaskRequest) -> str | None:
        reason = callers.reason_to_refuse(request, self._fingerprint, self._cluster.world_size)
        if reason:
            return reason
        if not 0 < len(request.process) <= _MAX_NAME:
            return "expected the identity of a process"
        if not 0 < len(getattr(request, "queue", "-")) <= _MAX_NAME:
            return f"expected the name of a queue, of at most {_MAX_NAME} characters"
        return None

    def _open(
        self, request: messages.TaskOpenRequest, now: float, context: ClientContext
    ) -> dict[str, object]:
        served = self._queues.get(request.queue)
        if served is not None and served.description.spec.digest == request.digest:
            return self._opened(served)
        if request.description is not None:
            return self._described(request, request.description)
        if served is not None:
            return {"status": "compare"}
        return self._elect(request, now, context)

    def _elect(
        self, request: messages.TaskOpenRequest, now: float, context: ClientContext
    ) -> dict[str, object]:
        """Lets one worker describe a new queue; the others wait for it."""
        name = request.queue
        for other in [x for x, counting in self._counting.items() if now >= counting.expires]:
            if other != name:
                del self._counting[other]
        if len(self._queues) + len(self._counting) >= _MAX_QUEUES and name not in self._counting:
            return _refusal(f"expected at most {_MAX_QUEUES} queues")

        def is_open_to(now: float) -> bool:
            counting = self._counting.get(name)
            return counting is None or now >= counting.expires or counting.rank == request.rank

        deadline = now + _bounded(request.wait)
        while name not in self._queues and not is_open_to(now):
            if context.disconnected or now >= deadline:
                return {"status": "waiting", "rank": self._counting[name].rank}
            self._changed.wait(min(_CHECK, deadline - now))
            now = self._clock()
        if name in self._queues:
            return self._open(request, now, context)
        self._counting[name] = _Counting(request.rank, request.process, now + _COUNTING)
        return {"status": "describe"}

    def _described(self, request: messages.TaskOpenRequest, text: str) -> dict[str, object]:
        try:
            # To compare, the data need not be cut into tasks.
            description = Description.parse(text, is_whole=request.queue not in self._queues)
        except DescriptionError as error:
            return _refusal(f"queue {request.queue!r}: {error}")
        served = self._queues.get(request.queue)
        if served is None:
            problem = self._problem_with_tasks(request.queue, description)
            if problem:
                return _refusal(problem)
            served = _Served(
                request.queue,
                description,
                request.rank,
                seed=secrets.randbits(31),
                positions=self._positions,
            )
            problem = self._apply_restored(request.queue, served, description.spec.seed is None)
            if problem:
                return _refusal(problem)
            self._queues[request.queue] = served
            self._counting.pop(request.queue, None)
            self._changed.notify_all()
        difference = description.spec.difference(served.description.spec)
        if difference:
            return _refusal(
                f"queue {request.queue!r}: {self._name(request.rank)} has other data or arguments "
                f"than {self._name(served.by)}, which opened the queue: {difference}. Every worker "
                "must make the same data set; two data sets of one job need two names (name=...)"
            )
        return self._opened(served)

    def _opened(self, served: _Served) -> dict[str, object]:
        plan = served.queue.plan
        return {
            "status": "open",
            "seed": plan.seed,
            "tasks": len(plan.sizes),
            "records": sum(plan.sizes),
        }

    def _apply_restored(self, name: str, served: _Served, draws_seed: bool = True) -> str:
        """Gives a queue its restored state; returns why it cannot have it, else ""."""
        found = self._restored.get(name)
        if found is None:
            return ""
        spec = served.description.spec
        if found["data"] != spec.data_digest:
            return (
                f"queue {name!r}: the job's checkpoint is of other data than "
                f"{self._name(served.by)} has: expected the same files with the same sizes, or "
                "arrays, cut into tasks as before. To start over, start without that checkpoint "
                "or give the queue another name"
            )
        same_order = not spec.shuffle or draws_seed or found["seed"] == spec.seed
        if found["shuffle"] != spec.shuffle or not same_order:
            return f"queue {name!r}: expected shuffle and seed as in the job's checkpoint"
        queue = served.new_queue(found["seed"])
        try:
            queue.restore(found["queue"], self._restored_positions)
        except ValueError as error:
            return f"queue {name!r}: its state in the job's checkpoint is damaged: {error}"
        served.queue = queue
        served.history.clear()
        del self._restored[name]
        _log.warning("queue %r continues in epoch %d from a checkpoint", name, queue.epoch + 1)
        return ""

    def _begin(
        self, request: messages.TaskBeginRequest, now: float, context: ClientContext
    ) -> dict[str, object]:
        served = self._queues.get(request.queue)
        if served is None:
            return {"status": "unknown"}
        queue = served.queue
        queue.renew(request.rank, request.process, now)
        if not -1 <= request.ended < 2**31 or not 0 <= request.fit < 2**16:
            return _refusal(f"there is no epoch {request.ended} of fit {request.fit}")
        first = queue.begin_fit(request.fit, request.ended) if request.fit else 0
        return {
            "status": "begun",
            "epoch": queue.begin_epoch(request.ended),
            "first": first,
            "current": max(queue.epoch, request.ended + 1),
        }

    def _lease(
        self, request: messages.TaskLeaseRequest, now: float, context: ClientContext
    ) -> dict[str, object]:
        deadline = now + _bounded(request.wait)
        while True:
            served = self._queues.get(request.queue)
            if served is None:
                return {"status": "unknown"}
            if not 0 <= request.epoch < 2**31:
                return _refusal(f"there is no epoch {request.epoch}")
            served.note(now)
            plan = served.queue.plan
            if plan.epochs is not None and request.epoch >= plan.epochs:
                return _refusal(f"expected an epoch below {plan.epochs}, received {request.epoch}")
            owned = sum(lease.rank == request.rank for lease in served.queue.leases.values())
            if owned >= _MAX_HELD:
                return _refusal(
                    f"queue {request.queue!r}: {self._name(request.rank)} has {owned} tasks, "
                    f"expected at most {_MAX_HELD}: make the tasks larger, or read less ahead"
                )
            found = served.queue.ask(
                request.rank, request.process, request.epoch, now, waits=request.waits
            )
            if isinstance(found, Grant):
                place = served.description.place(found.task)
                return {"status": "task", "place": place, **dataclasses.asdict(found)}
            if isinstance(found, Ended):
                self._changed.notify_all()  # another one may wait for this worker
                return {"status": "ended"}
            if context.disconnected or now >= deadline:
                return {"status": "waiting", "ranks": list(found.ranks)}
            self._tell()
            self._changed.wait(min(_CHECK, deadline - now))
            now = self._clock()

    def _end(
        self, request: messages.TaskEndRequest, now: float, context: ClientContext
    ) -> dict[str, object]:
        deadline = now + _bounded(request.wait)
        idle = request.idle
        while True:
            served = self._queues.get(request.queue)
            if served is None:
                return {"status": "unknown"}
            if not 0 <= request.epoch < 2**31:
                return _refusal(f"there is no epoch {request.epoch}")
            found = served.queue.end(
                request.rank,
                request.process,
                request.epoch,
                now,
                idle=idle,
                waits=request.waits,
            )
            idle = False  # tasks that this worker takes later, in another thread, are not left out
            served.note(now)
            if isinstance(found, Returned | Ended):
                self._changed.notify_all()
                return {"status": "returned" if isinstance(found, Returned) else "ended"}
            if context.disconnected or now >= deadline:
                pending = [
                    lease for lease in served.queue.leases.values() if lease.rank in found.ranks
                ]
                return {
                    "status": "waiting",
                    "ranks": list(found.ranks),
                    "records": served.queue.records,
                    "pending": _some_records(served, [lease.item for lease in pending]),
                }
            self._tell()
            self._changed.wait(min(_CHECK_POSITIONS, deadline - now))
            now = self._clock()

    def _report(
        self, request: messages.TaskReportRequest, now: float, context: ClientContext
    ) -> dict[str, object]:
        served = self._queues.get(request.queue)
        if served is None:
            return {"status": "unknown"}
        for leases in (request.held, request.released, request.refused):
            if len(leases) > _MAX_HELD:
                return _refusal(f"expected at most {_MAX_HELD} leases, received {len(leases)}")
        if any(lease.trained < 0 for lease in request.held):
            return _refusal("expected numbers of records of at least 0")
        queue = served.queue
        # First: a worker that is heard of again keeps tasks that no other worker has asked for
        # meanwhile.
        queue.renew(request.rank, request.process, now)
        queue.expire(now)
        held = {lease.id: lease.trained for lease in request.held}
        lost = [i for i, upto in held.items() if not queue.commit(i, request.process, upto, now)]
        queue.forget(request.process, held)
        queue.release(request.process, request.refused, failed=False, refused=True)
        queue.release(request.process, request.released, failed=request.failed)
        served.note(now)
        self._changed.notify_all()
        return {"status": "reported", "lost": lost}

    def _state(
        self, request: messages.TaskStateRequest, now: float, context: ClientContext
    ) -> dict[str, object]:
        if request.state is None:
            return {"status": "state", "state": self.state()}
        if request.rank != 0:
            return _refusal("only rank 0 may restore the state of queues")
        try:
            self.restore(request.state)
        except CheckpointError as error:
            return _refusal(str(error))
        return {"status": "restored"}

    def _problem_with_tasks(self, name: str, description: Description) -> str:
        """Returns why a new queue cannot be kept, else ""."""
        others = sum(len(served.queue.plan.sizes) for served in self._queues.values())
        tasks = others + description.tasks
        if tasks <= _MAX_TASKS_OF_ALL:
            return ""
        return (
            f"queue {name!r}: expected at most {_MAX_TASKS_OF_ALL} tasks in all queues, received "
            f"{tasks}: make the tasks larger"
        )

    def _status(
        self, request: messages.TaskStatusRequest, context: ClientContext
    ) -> dict[str, object]:
        return {"status": "tasks", "queues": self.queues()}

    def queues(self) -> list[JsonObject]:
        """Returns the queues as `tfdist tasks` shows them."""
        with self._changed:
            now = self._clock()
            queues = [self._shown(name, x, now) for name, x in sorted(self._queues.items())]
            for name, counting in self._counting.items():
                by = self._cluster.name_of_rank(counting.rank)
                queues.append({"name": name, "counted_by": by})
            self._tell()
            return queues

    def _shown(self, name: str, served: _Served, now: float) -> JsonObject:
        queue, name_of = served.queue, served.description.name
        queue.expire(now)
        queue.refresh(now)
        served.note(now)
        counts, rate = queue.counts(), served.rate(now)
        epochs = queue.plan.epochs
        later = 0 if epochs is None else max(0, epochs - 1 - queue.epoch) * sum(queue.plan.sizes)
        return {
            "name": name,
            **dataclasses.asdict(counts),
            "epochs": epochs,
            "rate": rate,
            "time_left": None if not rate or epochs is None else (counts.left + later) / rate,
            "pending": [
                {
                    "task": name_of(lease.item.task, lease.item.done),
                    "epoch": lease.item.epoch,
                    # Not its address: without a secret, any process that knows all addresses may
                    # take part.
                    "owner": self._cluster.name_of_rank(lease.rank),
                    "seconds": now - lease.since,
                    "silent": max(0.0, now + queue.plan.lease - lease.expires),
                }
                for lease in queue.leases.values()
            ],
            "parked": [
                {"task": name_of(item.task, item.done), "deaths": item.deaths}
                for item in queue.parked.values()
            ],
        }

    def _tell(self) -> None:
        """Logs what has happened to tasks."""
        for name, served in self._queues.items():
            events, served.queue.events = served.queue.events, []
            for event in events:
                self._tell_of(
                    name, served.description.name(event.item.task, event.item.done), event
                )

    def _tell_of(self, queue: str, task: str, event: QueueEvent) -> None:
        owner = self._name(event.rank)
        if event.kind == "parked":
            _log.error(
                "queue %r: %s is parked: %d workers in a row have died while they had it, the last "
                "one was %s. It is not trained. See tfdist tasks",
                queue,
                task,
                MAX_DEATHS,
                owner,
            )
            return
        why = "which is dead" if event.kind == "died" else "which was silent for a whole lease"
        deaths = event.item.deaths
        _log.warning(
            "queue %r: %s came back from %s, %s (%d in a row)", queue, task, owner, why, deaths
        )

    def _name(self, rank: int) -> str:
        return self._cluster.describe_rank(rank)


def _parsed_state(text: str) -> dict[str, JsonObject]:
    if not text:
        return {}
    try:
        found = json.loads(text)
        if found["format"] != _FORMAT:
            raise ValueError(f"expected format {_FORMAT}, received {found['format']!r:.50}")
        types = {"data": str, "shuffle": bool, "seed": int, "queue": dict}
        for name, of_queue in found["queues"].items():
            for key, kind in types.items():
                if not isinstance(of_queue[key], kind):
                    raise ValueError(f"{name!r:.100}: {key} is no {kind.__name__}")
        return found["queues"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"expected the state of data tasks: {error!r:.200}") from None


def _some_records(served: _Served, items: list[Item]) -> str:
    """Names records that are not trained, as the beginning of a sentence."""
    sizes, name_of = served.queue.plan.sizes, served.description.name
    count = sum(sizes[item.task] - item.done for item in items)
    some = ", ".join(name_of(item.task, item.done) for item in items[:_MAX_NAMED])
    more = f" and {len(items) - _MAX_NAMED} more" if len(items) > _MAX_NAMED else ""
    return f"{count} records of {some}{more} were"


def _bounded(wait: float) -> float:
    return max(0.0, min(wait, _MAX_WAIT))


def _refusal(reason: str) -> dict[str, object]:
    return {"status": "refused", "reason": reason}
