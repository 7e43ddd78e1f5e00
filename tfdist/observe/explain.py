"""Explains the flight recorder's files of a job: which task and which collective are the cause.

A pure function over the dumps. Collectives are compared by communicator, key and number: a
collective of all ranks has the same three on each. The findings, the likely cause first:

1. Tasks that are dead: a fatal signal, an exception, or no dump at all.
2. Collectives that the ranks started differently: another name at the same place (the order
   differs), another operation, dtype, shape or root.
3. Collectives that some ranks wait in and others have not started, and what those do instead: they
   wait in another one, have finished their program, wait for input, sleep, or compute.
4. Requests that a parameter server has not answered.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tfdist.observe.dumps import Dump, StackFrame, slug

if TYPE_CHECKING:
    from tfdist.ops.trace.events import RecordedEvent

_Id = tuple[int, int, int]  # communicator, key, number

# Frames of these packages are not the program's own.
_LIBRARIES = ("site-packages", "dist-packages", os.sep + "lib" + os.sep + "python")
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Functions in which a program waits for the next element of a dataset.
_INPUT_FUNCTIONS = ("iterator_get_next", "_next_internal", "get_next", "get_next_as_optional")
_INPUT_FILES = ("iterator_ops.py", "iterators.py", "data_adapter", "worker_input")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or may be.

    Attributes:
      kind: "dead", "order", "mismatch", "missing", "server" or "nothing".
      tasks: the tasks that differ from the others, or are missing.
      text: sentences for the reader.
      place: where an exception has ended its only task, as in "at train.py:9 in step: raise error";
        empty if it is not known, or for another kind.
    """

    kind: str
    tasks: tuple[str, ...]
    text: str
    place: str = ""


def explain(dumps: Sequence[Dump], crashes: Mapping[str, str] | None = None) -> list[Finding]:
    """Returns what is wrong with a job, the likely cause first.

    Args:
      dumps: of its tasks.
      crashes: the stacks that fatal signals have left, by the task's file name.
    """
    job = _Job(dumps, crashes or {})
    findings = [*job.dead(), *job.differences(), *job.missing(), *job.servers()]
    if not findings:
        findings = [Finding("nothing", (), job.nothing())]
    return sorted(findings, key=lambda finding: _ORDER.index(finding.kind))


_ORDER = ("mismatch", "order", "dead", "missing", "server", "nothing")


class _Job:
    """The dumps of a job, and what they tell together."""

    def __init__(self, dumps: Sequence[Dump], crashes: Mapping[str, str]) -> None:
        self._dumps = dumps
        self._crashes = crashes
        # By collective, the event of each task that has started it.
        self._started: dict[_Id, dict[str, RecordedEvent]] = {}
        self._of = {dump.task: dump for dump in dumps}
        for dump in dumps:
            former = _former_communicators(dump)
            for event in dump.events:
                if (
                    event["kind"] == "collective"
                    and event["size"] > 1
                    and event["communicator"] not in former
                ):
                    self._started.setdefault(_id_of(event), {})[dump.task] = event
        # By communicator, its ranks' tasks, as far as events tell.
        self._members: dict[int, dict[int, str]] = {}
        for (communicator, _, _), events in self._started.items():
            for task, event in events.items():
                self._members.setdefault(communicator, {})[event["rank"]] = task

    # 1. Dead tasks.

    def dead(self) -> Iterable[Finding]:
        """Finds tasks that have ended without having done their work."""
        for task in self._expected():
            dump = self._of.get(task)
            crash = self._crashes.get(slug(task))
            if crash is not None:
                first = crash.splitlines()[0]
                where = next((line for line in crash.splitlines() if "File" in line), "").strip()
                at = f", in {where}" if where else ""
                yield Finding("dead", (task,), f"{task} was ended by a fatal signal: {first}{at}.")
            elif dump is None and not self._is_elastic:
                yield Finding("dead", (task,), self._no_dump(task))
            elif dump is not None and dump.exception and not _is_consequence(dump):
                place = _at(_own_frame(_main_stack(dump)), "at ")
                yield Finding(
                    "dead",
                    (task,),
                    f"{task} has ended with an exception: {_first_line(dump.exception)}"
                    f"{f', {place}' if place else ''}.",
                    place,
                )

    def _no_dump(self, task: str) -> str:
        waiting = [
            f"{dump.task} has waited {_age(dump, event)} for it in {_title(event)}"
            for dump in self._dumps
            for event in self._waiting_for(dump, task)
        ]
        text = (
            f"{task} has written no dump: its process is dead or stopped, was never started, or "
            "runs on another machine."
        )
        return f"{text} {'; '.join(waiting[:3])}." if waiting else text

    def _waiting_for(self, dump: Dump, task: str) -> list[RecordedEvent]:
        """Returns the pending events of a dump that need a task."""
        index = int(task.rpartition(" ")[2]) if task.startswith("ps ") else None
        return [
            event
            for event in dump.pending
            if (event["kind"] == "request" and event["peer"] == index)
            or (
                event["kind"] == "collective"
                and event["size"] > 1
                and task in dump.training
                and task not in self._started.get(_id_of(event), {})
            )
        ][:1]

    def _expected(self) -> list[str]:
        known = [name for dump in self._dumps for name in (*dump.training, *dump.servers)]
        return list(dict.fromkeys([*known, *self._of]))

    @property
    def _is_elastic(self) -> bool:
        return any(dump.elastic for dump in self._dumps)

    # 2. Collectives that the ranks started differently.

    def differences(self) -> Iterable[Finding]:
        """Finds the first collective of each communicator that its ranks started differently."""
        found: set[int] = set()
        for identity, events in self._in_order():
            if identity[0] in found or len(events) < 2:
                continue
            finding = self._difference(events)
            if finding is not None:
                found.add(identity[0])
                yield finding

    def _in_order(self) -> list[tuple[_Id, dict[str, RecordedEvent]]]:
        """Returns the collectives in the order of their first start on any machine's clock."""
        return sorted(
            self._started.items(),
            key=lambda item: min(event["sequence"] for event in item[1].values()),
        )

    def _difference(self, events: Mapping[str, RecordedEvent]) -> Finding | None:
        for kind, what, field in (
            ("order", "started", "name"),
            ("order", "started", "operation"),
            ("mismatch", "dtype", "dtype"),
            ("mismatch", "shape", "shape"),
            ("mismatch", "root", "peer"),
        ):
            by_value: dict[object, list[str]] = {}
            for task, event in events.items():
                by_value.setdefault(_value(event, field), []).append(task)
            if len(by_value) < 2:
                continue
            groups = sorted(by_value.values(), key=len)
            odd, others = groups[0], [task for group in groups[1:] for task in group]
            odd_event, other_event = events[odd[0]], events[groups[-1][0]]
            if kind == "order":
                # Names are for people: programs may name the same collective differently.
                if field == "name" and all(_went_well(event) for event in events.values()):
                    return None
                text = (
                    f"The order differs: {_list(odd)} started {_full(odd_event)} where "
                    f"{_list(others)} started {_full(other_event)}{self._called_at(odd, odd_event)}"
                )
            else:
                text = (
                    f"The {what} differs in {_title(odd_event)}: {_list(odd)} started it with "
                    f"{_shown(odd_event, what)}, {_list(others)} with {_shown(other_event, what)}"
                    f"{self._called_at(odd, odd_event)}"
                )
            return Finding(kind, tuple(odd), text + ".")
        return None

    # 3. Collectives that some ranks have not started.

    def missing(self) -> Iterable[Finding]:
        """Finds who is waited for in the oldest pending collective of each communicator."""
        seen: set[int] = set()
        for identity, events in self._in_order():
            communicator = identity[0]
            stuck = {task: event for task, event in events.items() if not _went_well(event)}
            if not stuck or communicator in seen:
                continue
            absent = [task for task in self._ranks(communicator, events) if task not in events]
            finding = self._absence(communicator, stuck, absent)
            if finding is not None:
                seen.add(communicator)
                yield finding

    def _ranks(self, communicator: int, events: Mapping[str, RecordedEvent]) -> list[str]:
        """Returns the tasks of a communicator, by rank, as far as is known."""
        known = dict(self._members.get(communicator, {}))
        size = next(iter(events.values()))["size"]
        if len(known) < size:
            # A task that has started none of its collectives. The job's own has all that train.
            for dump in self._dumps:
                if size == len(dump.training):
                    known = dict(enumerate(dump.training)) | known
                    break
        return [known[rank] for rank in sorted(known)]

    def _absence(
        self, communicator: int, stuck: Mapping[str, RecordedEvent], absent: Sequence[str]
    ) -> Finding | None:
        absent = [task for task in absent if task in self._of]
        if not absent:
            return None
        waits = self._waits(stuck)
        elsewhere = {}
        for task in absent:
            other = self._stuck_event(task, communicator)
            if other is not None:
                elsewhere[task] = other
        if len(elsewhere) == len(absent):
            return self._crossed(stuck, elsewhere)
        # Tasks in other collectives wait for the same ranks.
        absent = [task for task in absent if task not in elsewhere]
        done = [self._instead(task, communicator) for task in absent]
        return Finding(
            "missing",
            tuple(absent),
            f"{waits}, which {_list(absent)} did not start. {' '.join(done)}",
        )

    def _crossed(
        self, here: Mapping[str, RecordedEvent], there: Mapping[str, RecordedEvent]
    ) -> Finding:
        """Describes ranks that wait for each other in different collectives."""
        odd, others = (here, there) if len(here) <= len(there) else (there, here)
        odd_event, other_event = next(iter(odd.values())), next(iter(others.values()))
        advice = ""
        if len(odd) == 1:
            advice = (
                " A collective that one rank alone calls, such as in a callback of rank 0 or under "
                "`if rank == 0`, never ends."
            )
        text = (
            f"The ranks wait for each other in different collectives: {_list(odd)} in "
            f"{_full(odd_event)}{self._called_at(list(odd), odd_event)}, while {_list(others)} in "
            f"{_full(other_event)}.{advice}"
        )
        return Finding("order", tuple(odd), text)

    def _waits(self, stuck: Mapping[str, RecordedEvent]) -> str:
        event = next(iter(stuck.values()))
        task = next(iter(stuck))
        if event["state"] == "failed":
            verb = "had" if len(stuck) == 1 else "had all"
            return f"{_list(stuck)} {verb} waited {_age(self._of[task], event)} in {_full(event)}"
        verb = "has" if len(stuck) == 1 else "have"
        return f"{_list(stuck)} {verb} waited {_age(self._of[task], event)} in {_full(event)}"

    def _stuck_event(self, task: str, communicator: int) -> RecordedEvent | None:
        """Returns the collective in which a task waits, or has waited when all failed."""
        for event in self._of[task].events:
            if event["kind"] == "collective" and event["communicator"] == communicator:
                if not _went_well(event):
                    return event
        return None

    def _instead(self, task: str, communicator: int) -> str:
        """Says what a task did instead of starting a collective."""
        dump = self._of[task]
        last = next(
            (
                event
                for event in reversed(dump.events)
                if event["kind"] == "collective" and event["communicator"] == communicator
            ),
            None,
        )
        before = (
            f" Its last collective was {_full(last)}, which it ended."
            if last
            else (" It has started none before.")
        )
        if dump.has_finished:
            return f"{task} has finished its program, or returned early.{before}"
        if dump.exception is not None:
            return f"{task} has ended with {_first_line(dump.exception)}.{before}"
        return f"{task} {_doing(_main_stack(dump))}.{before}"

    def _called_at(self, tasks: Sequence[str], event: RecordedEvent) -> str:
        """Says where in the program a task waits in a collective, if it still does."""
        if event["state"] not in ("submitted", "started"):
            return ""
        return _at(_own_frame(_main_stack(self._of[tasks[0]])), " (called at ", ")")

    # 4. Requests to parameter servers.

    def servers(self) -> Iterable[Finding]:
        """Finds servers that have not answered for the longest time."""
        by_server: dict[int, list[tuple[Dump, RecordedEvent]]] = {}
        for dump in self._dumps:
            for event in dump.pending:
                if event["kind"] == "request":
                    by_server.setdefault(event["peer"], []).append((dump, event))
        for server, waiting in sorted(by_server.items()):
            name = f"ps {server}"
            if name not in self._of:
                continue  # told above
            dump, event = max(waiting, key=lambda pair: _waited_ns(*pair))
            about = f" ({event['detail']})" if event["detail"] else ""
            held = " A step's pull waits for the pushes of the other workers."
            text = (
                f"{name} has not answered {event['name']}{about} of {dump.task} for "
                f"{_age(dump, event)}.{held if event['operation'] == 'pull' else ''}"
            )
            yield Finding("server", (name,), text)

    def nothing(self) -> str:
        """Says that nothing is wrong, and what each task does."""
        if not self._dumps:
            return "There are no dumps."
        for dump in self._dumps:
            for communicator in dump.communicators:
                if communicator["failure"]:
                    return (
                        f"No task differs from the others. The collectives of {dump.task} ended "
                        f"by this: {_first_line(communicator['failure'])}."
                    )
        doing = [
            f"{dump.task} {'has finished' if dump.has_finished else _doing(_main_stack(dump))}"
            for dump in self._dumps
        ]
        return f"No collective and no request is waiting. {'; '.join(doing)}."


def _id_of(event: RecordedEvent) -> _Id:
    return event["communicator"], event["key"], event["number"]


def _former_communicators(dump: Dump) -> set[int]:
    """Returns the communicators of an elastic job's former generations, whose failures are over."""
    if not dump.elastic:
        return set()
    used = [event["communicator"] for event in dump.events if event["kind"] == "collective"]
    return set(used) - set(used[-1:])


def _went_well(event: RecordedEvent) -> bool:
    return bool(event["state"] == "done")


def _is_consequence(dump: Dump) -> bool:
    """Whether the exception of a task came from a collective or request that failed."""
    named = ("DeadlineExceeded", "Unavailable", "InvalidArgument", "Cancelled", "Internal")
    failed = any(event["state"] == "failed" for event in dump.events)
    return failed and (dump.exception or "").startswith(named)


def _value(event: RecordedEvent, field: str) -> object:
    if field == "shape":
        return event["signature"], event["elements"]
    if field == "name":
        # Keras numbers the layers of a process.
        return re.sub(r"_\d+", "", event["name"])
    fields: Mapping[str, object] = event
    return fields[field]


def _shown(event: RecordedEvent, what: str) -> str:
    if what == "root":
        return f"root {event['peer']}"
    return str(event["detail"] or f"{event['dtype']}[{event['elements']}]")


def _title(event: RecordedEvent) -> str:
    if event["kind"] == "request":
        return str(event["name"])
    return f"{event['operation']} '{event['name']}'"


def _full(event: RecordedEvent) -> str:
    return f"{_title(event)} {event['detail']}".rstrip()


def _waited_ns(dump: Dump, event: RecordedEvent) -> int:
    return int(event["ended"] or dump.steady_ns) - int(event["submitted"])


def _age(dump: Dump, event: RecordedEvent) -> str:
    return f"{max(0, _waited_ns(dump, event)) / 1e9:.1f} s"


def _list(tasks: Iterable[str]) -> str:
    names = list(tasks)
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:300] if text.strip() else text


def _main_stack(dump: Dump) -> list[StackFrame]:
    return next((thread["stack"] for thread in dump.threads if thread["main"]), [])


def _own_frame(stack: Sequence[StackFrame]) -> StackFrame | None:
    """Returns the innermost frame of the program itself, not of a library."""
    for frame in reversed(stack):
        file = frame["file"]
        if file.startswith("<") or file.startswith(_OWN + os.sep):
            continue
        if not any(part in file for part in _LIBRARIES):
            return frame
    return None


def _at(frame: StackFrame | None, before: str = ", at ", after: str = "") -> str:
    if frame is None:
        return ""
    code = f": {frame['code']}" if frame["code"] else ""
    return f"{before}{frame['file']}:{frame['line']} in {frame['function']}{code}{after}"


def _doing(stack: Sequence[StackFrame]) -> str:
    """Says what a main thread does, from its stack."""
    if not stack:
        return "has no Python stack"
    at = _at(_own_frame(stack) or stack[-1], " at ")
    inner = stack[-1]
    if any(
        frame["function"] in _INPUT_FUNCTIONS
        or (frame["function"] == "__next__" and frame["file"].endswith(_INPUT_FILES))
        for frame in stack
    ):
        return f"waits for its input pipeline{at}"
    if "sleep(" in inner["code"]:
        return f"sleeps{at}"
    if inner["file"].endswith(("threading.py", "queue.py", "selectors.py", "subprocess.py")):
        return f"waits for another thread or process{at}"
    if any(frame["function"] == "quick_execute" for frame in stack[-2:]):
        return f"computes in TensorFlow{at}"
    return f"runs Python code{at}"
