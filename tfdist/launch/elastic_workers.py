"""The workers of an elastic job come and go: restarts, requests of `tfdist scale`, and hosts.

`ElasticPolicy` decides, and this class carries it out: it starts and ends workers, keeps the timers
of the back-off, prints a line for each change, and answers `tfdist scale`.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import socket
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from tfdist.errors import Preempted
from tfdist.launch.hosts import discovery
from tfdist.launch.hosts.connection import HostConnection
from tfdist.launch.hosts.cooldown import Cooldown
from tfdist.launch.hosts.elastic_hosts import ElasticHosts, NoRoomYetError
from tfdist.launch.hosts.host_list import Host
from tfdist.launch.policies.decisions import EndDecision, Verdict
from tfdist.launch.policies.elastic import ElasticPolicy, ScaleError, SlotState
from tfdist.launch.running_job import Outcome, RunningJob
from tfdist.launch.scale_channel import ScaleRequest, ScaleServer
from tfdist.launch.task import Task


class ElasticWorkers:
    """Starts and removes the workers of an elastic job.

    Args:
      job: its tasks: the workers, by slot, then the parameter servers, which run as long as there
        are workers.
      policy: decides which workers run.
      listener: the socket at which `tfdist scale` is answered, see `scale_listener`.
      connect: begins to connect to a host that the script names; None if it needs none.
      cooldown: when a host on which workers fail is left out.
      discovery_script: names the job's hosts while it runs, or None.
    """

    def __init__(
        self,
        job: RunningJob,
        policy: ElasticPolicy,
        *,
        listener: socket.socket,
        connect: Callable[[Host], HostConnection | None],
        cooldown: Cooldown,
        discovery_script: Path | None = None,
    ) -> None:
        self._job = job
        self._policy = policy
        self._listener = listener
        self._connect = connect
        self._hosts = ElasticHosts(job.pool, job.specs, self._watched, cooldown)
        self._discovery_script = discovery_script
        self._requests: list[ScaleRequest] = []
        if job.specs[0].host:
            policy.slots_of_failing_host = self._slots_of_failing_host

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Answers requests, and asks for hosts."""
        with contextlib.ExitStack() as stack:
            readers = self._job.loop.readers
            server = ScaleServer(readers, self._take_request, self._listener)
            stack.callback(server.close)
            if self._discovery_script is not None:
                script = discovery.Discovery(
                    self._discovery_script, readers, self._take_hosts, self._job.say
                )
                stack.callback(script.close)
                self._ask_for_hosts(script)
            stack.callback(self.refuse_requests)
            yield

    def start(self, index: int) -> None:
        """Starts a worker on a host that has room, or a parameter server.

        Raises:
          OSError: it cannot be started.
        """
        job = self._job
        if job.specs[index].host:
            occupied = [task.index for task in job.tasks if task.exit is None]
            try:
                job.specs[index] = self._hosts.place(index, occupied, self._reserved())
            except NoRoomYetError:
                raise
            except OSError as error:
                name = job.specs[index].name
                raise OSError(error.errno, f"cannot start {name}: {error}") from error
        job.start(index)

    def carry_out(self, task: Task, decision: EndDecision) -> None:
        """Carries out the decision on the end of a worker."""
        if decision.verdict is Verdict.FINISHED:
            self._finished(task, decision)
            return
        slot, title = task.index, f"{task.spec.title} failed: {task.exit}"
        # First, so that its last output precedes the message.
        self._job.remove(task)
        match decision.verdict:
            case Verdict.TOO_LATE:
                name = task.spec.name
                self._job.say(f"{name} came too late: {task.exit}; {decision.reason}")
            case Verdict.FAIL_AT_END:
                self._job.note_failure(task)
                self._job.say(f"{title}; {decision.reason}, so the others end by themselves")
            case Verdict.RESTART | Verdict.LEAVE_OUT:
                self._job.survived.append(f"{task.spec.title} ({task.exit})")
                self._start_later_or_never(slot, title, decision)
            case Verdict.MOVE:
                self._job.survived.append(f"{task.spec.title} ({task.exit})")
                self._move(slot, title, decision.wait)
            case Verdict.LEFT | Verdict.RETURN:
                self._left(task, returns=decision.verdict is Verdict.RETURN)
            case verdict:
                raise AssertionError(f"expected the verdict on a worker, received {verdict}")

    def _finished(self, task: Task, decision: EndDecision) -> None:
        """Starts none again that waits for its restart, since a worker has finished."""
        for slot in decision.cancelled:
            name = self._job.specs[slot].name
            self._job.due.cancel(f"start {name}")
            self._job.say(f"{task.spec.name} has finished; {name} is not started again")

    def handle_hosts(self) -> None:
        """Uses the hosts that are connected by now; ends workers that wait in vain."""
        come = self._hosts.take_connected()
        for line in come:
            self._job.say(line)
        if come and not self._job.lifecycle.is_stopping and not self._policy.is_ending:
            self._fill_hosts()
        for slot in self._policy.latecomers:
            self._give_latecomer_time(slot)

    def handle_requests(self) -> None:
        """Answers the requests of `tfdist scale` since the last call."""
        while self._requests and not self._job.lifecycle.is_stopping and self._has_workers:
            request = self._requests.pop(0)
            if not request.is_awaited:
                self._job.say(
                    f"scale: {request.workers} workers: not done, since the asker has gone"
                )
                request.refuse("the asker has gone")
                continue
            try:
                request.done(self._scale(request.workers))
            except ScaleError as error:
                request.refuse(str(error))
        if self._job.lifecycle.is_stopping:
            self.refuse_requests()

    def refuse_requests(self) -> None:
        """Refuses the requests that are left, since the job is ending."""
        while self._requests:
            self._requests.pop(0).refuse("the job is ending")

    @property
    def _has_workers(self) -> bool:
        return not self._job.all_ended or self._policy.awaits_start

    def _take_request(self, request: ScaleRequest) -> None:
        # A job that has ended writes the rest of its output, for as long as that takes.
        if self._job.lifecycle.has_ended:
            request.refuse("the job has ended")
        else:
            self._requests.append(request)

    def _watched(self, host: Host) -> HostConnection | None:
        connection = self._connect(host)
        if connection is not None:
            self._job.loop.watch(connection)
        return connection

    def _ask_for_hosts(self, script: discovery.Discovery) -> None:
        script.ask()
        ask = functools.partial(self._ask_for_hosts, script)
        self._job.due.set("hosts", discovery.INTERVAL, ask)

    def _take_hosts(self, hosts: Sequence[Host]) -> None:
        """Lets the workers of hosts that are gone leave; connects to new hosts."""
        if self._job.lifecycle.is_stopping or self._policy.is_ending:
            return
        changes = self._hosts.update(hosts, self._running())
        for line in changes.lines:
            self._job.say(line)
        for slot in self._policy.release(changes.leave):
            self._job.say(f"{self._job.specs[slot].name}: told to leave its host (SIGTERM)")
            self._ask_to_leave(slot)
        if changes.lines:
            self._fill_hosts()

    def _is_running(self, task: Task) -> bool:
        return task.spec.trains and self._policy.state(task.index) is SlotState.RUNNING

    def _running(self) -> list[int]:
        return [task.index for task in self._job.tasks if self._is_running(task)]

    def _fill_hosts(self) -> None:
        """Starts workers in the free slots of the hosts, as many as the job may have."""
        workers = self._policy.workers
        count = min(workers.maximum, self._hosts.capacity(self._running()))
        if count > self._count() and count >= workers.minimum:
            self._scale(count)

    def _slots_of_failing_host(
        self, slot: int, started: float, ended: float
    ) -> Collection[int] | None:
        if not self._hosts.is_failing(slot, started, ended):
            return None
        return self._hosts.on_host_of(slot)

    def _move(self, slot: int, title: str, wait: float) -> None:
        """Leaves out the host of a failed worker, which starts elsewhere, or later."""
        name, seconds, reason = self._hosts.leave_out(slot)
        self._job.say(
            f"{title}; starting it again on another host, or when "
            f"its host is tried again (restarts left: {self._policy.restarts_left})"
        )
        self._job.say(f"host {name} takes no worker for {seconds:g} s: {reason}")
        self._start_later(slot, wait)
        self._job.due.set(f"try host {name}", seconds, lambda: self._try_host(name, seconds))

    def _try_host(self, name: str, seconds: float) -> None:
        """Starts the workers that have waited for a host whose cool-down is over."""
        if self._job.lifecycle.is_stopping or self._policy.is_ending:
            return
        self._job.say(f"host {name} is tried again after {seconds:g} s")
        for slot in self._policy.held:
            self._job.due.cancel(f"start {self._job.specs[slot].name}")
            self._restart_slot(slot)
        if self._discovery_script is not None:
            self._fill_hosts()

    def _start_later_or_never(self, slot: int, what: str, decision: EndDecision) -> None:
        """Carries out a decision after which the job continues; `what` happened."""
        if decision.verdict is Verdict.LEAVE_OUT:
            self._job.say(f"{what}; {decision.reason}; left out, workers now: {self._count()}")
            return
        left = f"restarts left: {self._policy.restarts_left}"
        self._job.say(f"{what}; starting it again in {decision.wait:g} s ({left})")
        self._start_later(slot, decision.wait)

    def _start_later(self, slot: int, wait: float) -> None:
        name = self._job.specs[slot].name
        self._job.due.set(f"start {name}", wait, lambda: self._restart_slot(slot))

    def _left(self, task: Task, returns: bool) -> None:
        name = task.spec.name
        self._job.due.cancel(f"kill {name}")
        if returns:
            self._job.say(
                f"{name} has left: {task.exit}; starting it again, as 'tfdist scale' asked"
            )
            self._try_to_start(task.index)
            return
        self._job.say(f"{name} has left: {task.exit}; workers now: {self._count()}")
        if self._policy.is_done and not self._policy.finished:
            self._job.outcome = Outcome(Preempted.EXIT_CODE, "all workers have left")

    def _restart_slot(self, slot: int) -> None:
        if not self._job.lifecycle.is_stopping:
            self._policy.restarted(slot)
            self._try_to_start(slot)

    def _try_to_start(self, slot: int) -> bool:
        """Starts a worker of a running job; returns False if that fails, which is a failure of it.

        Raises:
          OSError: it fails, and the job with it.
        """
        try:
            self.start(slot)
        except NoRoomYetError as error:
            self._policy.hold(slot)
            self._job.say(f"{self._job.specs[slot].name} waits for a host: {error.strerror}")
            return False
        except OSError as error:
            decision = self._policy.failed(slot, life=0.0)
            if decision.verdict is Verdict.FAIL:
                raise
            self._start_later_or_never(slot, str(error), decision)
            return False
        return True

    def _reserved(self) -> list[int]:
        """Returns the slots that are about to start again, each on its own host if it can."""
        ended = (task for task in self._job.tasks if task.exit is not None)
        return [
            *self._policy.backing_off,
            *(task.index for task in filter(self._is_running, ended)),
        ]

    def _scale(self, count: int) -> list[str]:
        """Changes the number of workers; returns what was done, as lines.

        Raises:
          ScaleError: the number is outside the job's range, or the job is ending.
        """
        before = self._count()
        changes = self._policy.scale(count)
        specs = self._job.specs
        lines = []
        for slot in changes.start:
            started = self._try_to_start(slot)
            lines.append(f"{specs[slot].name}: {'started' if started else 'did not start'}")
        for slot in changes.start_later:
            lines.append(f"{specs[slot].name}: leaves first, then starts")
        for slot in changes.leave:
            self._ask_to_leave(slot)
            lines.append(f"{specs[slot].name}: told to leave (SIGTERM)")
        for slot in changes.cancel:
            name = specs[slot].name
            self._job.due.cancel(f"start {name}")
            lines.append(f"{name}: is not started again")
        start = self._policy.workers.start
        if count < start:
            # The workers agree on START, on which batch sizes depend, and cannot change it.
            lines.append(
                f"START is {start}: a job that has not begun yet, or begins again after all its "
                f"workers have died, waits for {start} workers"
            )
        lines = [f"workers: {before} before, {self._count()} now", *lines]
        for line in lines:
            self._job.say(f"scale: {line}")
        return lines

    def _ask_to_leave(self, slot: int) -> None:
        task = self._job.task(slot)
        # To the process alone: it ends its step, and still needs its children.
        task.notify()
        grace = self._job.signal_grace

        def kill() -> None:
            if task.exit is not None:
                return
            self._job.say(f"killing {task.spec.name}, which did not leave within {grace:g} s")
            task.signal(signal.SIGKILL)

        self._job.due.set(f"kill {task.spec.name}", grace, kill)

    def _give_latecomer_time(self, slot: int) -> None:
        """Ends a worker some time after the others have finished, if it does not end by itself."""
        task = self._job.task(slot)
        name = f"end {task.spec.name}"
        is_ending = self._job.lifecycle.is_stopping or task.exit is not None or task.told_to_stop
        if not is_ending and name not in self._job.due:
            retire = functools.partial(self._job.retire, task)
            self._job.due.set(name, self._job.signal_grace, retire)

    def _count(self) -> int:
        """The number of workers that run or will be started again."""
        return len(self._policy.working)
