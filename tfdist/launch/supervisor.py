"""The supervisor of a launched job: one loop over output, ended tasks, signals and deadlines.

A policy decides what follows from the end of a task, and the supervisor carries it out. Signals and
the time limit are the same for all jobs. `JobState` has the states of a job and a drawing of their
transitions. The workers of an elastic job come and go by `ElasticWorkers`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import signal
from collections.abc import Mapping, Sequence

from tfdist.config.printing import without_colours
from tfdist.errors import Preempted
from tfdist.launch.elastic_workers import ElasticWorkers
from tfdist.launch.job_state import JobState
from tfdist.launch.memory import about_kill, limit
from tfdist.launch.policies.decisions import EndDecision, JobPolicy, TaskEnd, Verdict
from tfdist.launch.running_job import Outcome, RunningJob, listed
from tfdist.launch.task import Task

TIMEOUT_CODE = 124
# Seconds in which a training task may follow a parameter server that was told to end.
_NOTICE_WAIT = 5.0


class Supervisor:
    """Starts the tasks of a job, and watches them until all have ended.

    Args:
      job: the tasks.
      policy: decides which start, and what follows from their ends.
      timeout: seconds the job may take, restarts included, or None.
      workers: starts and removes the workers of an elastic job; None for other jobs.
    """

    def __init__(
        self,
        job: RunningJob,
        policy: JobPolicy,
        *,
        timeout: float | None = None,
        workers: ElasticWorkers | None = None,
    ) -> None:
        self._job = job
        self._policy = policy
        self._timeout = timeout
        self._workers = workers
        # The task whose end leads to a restart of all.
        self._blamed: Task | None = None
        self._due = job.due
        self._lifecycle = job.lifecycle

    def run(self) -> int:
        """Runs the job to its end, when none of its processes is left; returns the exit code."""
        with contextlib.ExitStack() as stack:
            if self._workers is not None:
                stack.enter_context(self._workers.opened())
            stack.enter_context(self._job.opened())
            if self._timeout is not None:
                self._due.set("limit", self._timeout, self._time_is_up)
            start = self._job.start if self._workers is None else self._workers.start
            for index in self._policy.begin():
                start(index)
            while self._job.has_ends or not self._all_ended():
                while not self._all_ended():
                    self._step()
                self._decide()
                if self._lifecycle.is_restarting:
                    self._start_again()
            self._job.end_all()
            self._lifecycle.go(JobState.ENDED)
            if self._workers is not None:
                self._workers.refuse_requests()
            self._report()
            self._job.loop.flush()
        return self._job.outcome.code

    @property
    def exits(self) -> dict[str, int]:
        """The exit codes of the ended tasks, by their names."""
        return self._job.exits

    def _all_ended(self) -> bool:
        awaits_start = self._policy.awaits_start and not self._lifecycle.is_stopping
        return self._job.all_ended and not awaits_start

    def _start_again(self) -> None:
        # Their notes of failures are complete once they have ended.
        self._job.end_all()
        blamed, self._blamed = self._blamed, None
        if blamed is not None:
            first = self._job.first_of(blamed)
            if first.task is not blamed:
                self._job.say(f"{first.task.spec.title} failed first: {first.reason}")
        self._lifecycle.go(JobState.RUNNING)
        self._policy.begin()
        self._job.replace_all()

    def _step(self) -> None:
        """Waits for the next event or deadline and handles it."""
        loop = self._job.loop
        next_due = [] if self._due.next is None else [self._due.next]
        soonest = min([*next_due, *loop.next_beats], default=None)
        # A host may have told an end while something else was waited for.
        self._job.note_ends()
        if not self._job.has_ends:
            loop.wait(soonest)
        loop.beat()
        self._job.note_ends()
        # Before the deadlines: a job that has just ended is not at its time limit.
        self._decide()
        self._due.act()

    def _decide(self) -> None:
        """Handles the ended tasks and the signals since the last call."""
        self._job.revive_guard()
        self._handle_ends(self._job.take_ends())
        signals = self._job.loop.signals
        while signals:
            self._interrupted(signals.pop(0))
        if self._workers is not None:
            self._workers.handle_hosts()
        if self._lifecycle.state is JobState.RUNNING and self._policy.is_done:
            self._job.linger()
        if self._lifecycle.is_lingering:
            self._job.retire_data_tasks()
        # After the ended tasks: a request is about the workers that there are.
        if self._workers is not None:
            self._workers.handle_requests()

    def _handle_ends(self, ended: list[Task]) -> None:
        if self._lifecycle.is_stopping:
            return
        tasks = {task.index: task for task in ended}
        self._decide_on(tasks, [_end_of(task) for task in ended])

    def _decide_on(self, tasks: Mapping[int, Task], ends: Sequence[TaskEnd]) -> None:
        for end, decision in self._policy.decide(ends, bool(self._job.loop.signals)):
            self._carry_out(tasks[end.index], end, decision)
            if self._lifecycle.is_stopping:
                return

    def _carry_out(self, task: Task, end: TaskEnd, decision: EndDecision) -> None:
        match decision.verdict:
            case Verdict.NOTHING:
                pass
            case Verdict.REPLACE:
                self._replace(task)
            case Verdict.RESTART_ALL:
                self._restart_all(task)
            case Verdict.FAIL:
                self._job.fail(task, decision.reason)
            case Verdict.NOTICED:
                self._noticed(task)
            case Verdict.AWAIT_NOTICE:
                alone = dataclasses.replace(end, alone=True)
                again = functools.partial(self._decide_on, {task.index: task}, [alone])
                self._due.set(f"notice {task.spec.name}", _NOTICE_WAIT, again)
            case _:
                assert self._workers is not None
                self._workers.carry_out(task, decision)

    def _replace(self, task: Task) -> None:
        """Starts a task again at once, since others wait for it."""
        self._job.survived.append(f"{task.spec.title} ({task.exit})")
        left = f"restarts left: {self._policy.restarts_left}"
        self._job.say(f"{task.spec.title} failed: {task.exit}; starting it again ({left})")
        new = self._job.replace(task)
        if self._lifecycle.is_lingering:
            self._job.give_time(new)

    def _restart_all(self, task: Task) -> None:
        self._blamed = task
        running = self._job.running
        first = f"stopping {listed(running)}, then " if running else ""
        left = f"restarts left: {self._policy.restarts_left}"
        self._job.say(f"{task.spec.title} failed: {task.exit}; {first}starting all again ({left})")
        self._lifecycle.go(JobState.RESTARTING)
        self._job.stop(signal.SIGTERM, self._job.stop_grace)

    def _noticed(self, task: Task) -> None:
        """Ends the job, whose task was told to end by another program; that is no failure.

        The tasks that train tell each other. A second SIGTERM would end them while they save.
        """
        job = self._job
        job.outcome = Outcome(Preempted.EXIT_CODE, f"stopped by SIGTERM to {task.spec.title}")
        wait = f"; waiting {job.signal_grace:g} s for {listed(job.running)} to end, too"
        job.say(f"{task.spec.title} was told to end: {task.exit}{wait if job.running else ''}")
        self._lifecycle.go(JobState.NOTICED)
        for other in job.tasks:
            if other.exit is None and not (other.spec.trains or other.spec.serves):
                other.notify()
        self._due.cancel_all()
        stop = functools.partial(job.stop, signal.SIGTERM, job.stop_grace)
        self._due.set("stop", job.signal_grace, stop)

    def _time_is_up(self) -> None:
        running = listed(self._job.running)
        reason = f"stopped at the limit of {self._timeout:g} s; still running then: {running}"
        self._job.outcome = Outcome(TIMEOUT_CODE, reason)
        self._lifecycle.go(JobState.STOPPING)
        self._job.stop(signal.SIGTERM, self._job.stop_grace)

    def _interrupted(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._lifecycle.state is JobState.NOTICED:
            self._lifecycle.go(JobState.STOPPING)
            self._job.say(f"{name}: the tasks are ending already; once more kills them")
            return
        if self._lifecycle.state is JobState.STOPPING:
            self._job.say(f"{name}: killing all tasks")
            self._job.kill()
            return
        self._job.outcome = Outcome(128 + number, f"stopped by {name}")
        self._lifecycle.go(JobState.STOPPING)
        self._job.say(
            f"{name}: passed on to all tasks, which have {self._job.signal_grace:g} s to end; once "
            "more kills them"
        )
        self._job.stop(number, self._job.signal_grace, alone=number == signal.SIGTERM)

    def _report(self) -> None:
        """Prints the launcher's last lines: the reason for the job's end."""
        job = self._job
        job.report_logs()
        failed = job.first_failed()
        if failed is not None:
            task = failed.task
            life = task.end.at - task.started_at
            job.say(self._policy.cause(task.spec.title, failed.reason, life, job.survived))
            if task.end.code == -signal.SIGKILL and task.told_at is None:
                job.say(_about_kill(task, job.kills_before))
            for sentence in job.findings.sentences(failed) if job.findings is not None else ():
                job.say(sentence)
            if task.log is not None:
                job.say(f"its whole output: {task.log.path}")
            lines = task.tail.lines
            job.say("its last lines:" if lines else "it printed nothing")
            for line in lines:
                job.quote(without_colours(line))
        if job.outcome.reason:
            job.say(job.outcome.reason)


def _about_kill(task: Task, kills_before: int | None) -> str:
    """Returns a sentence about a task that SIGKILL has ended, and about the memory of its host."""
    closing = task.closing
    if task.spec.host and closing is not None and closing.about_kill:
        return closing.about_kill
    return about_kill(0 if closing is None else closing.peak, limit(), kills_before)


def _end_of(task: Task) -> TaskEnd:
    end = task.end
    return TaskEnd(task.index, end.code, task.started_at, end.at, task.told_to_stop)
