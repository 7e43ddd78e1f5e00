"""Events of the flight recorder as slices of a trace.

A *slice* is a time with a name; a *track* is a row of slices that do not overlap, unless one is
inside another. Collectives overlap, so that each takes the first of several tracks that is free:

    steps            |step               |step               |
                     |forward+backw.|wait|up.|
    collectives        |bucket 1   |  |bucket 3     |
                       |wai.|travel|  |waiting|trav.|
    collectives 2         |bucket 2     |

A collective *waits* until all ranks have submitted it, as far as all are recorded, and its first
byte has moved here; then it *travels* until it has ended. A request waits until it is sent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfdist.ops.trace.events import RingEvent

# As in core/trace/event.h.
_COLLECTIVE, _REQUEST, _SPAN = 1, 2, 3
_FAILED = 4
# The tracks of spans that tfdist records itself; another span has a track of its name.
_OF_SPANS = {
    "step": "steps",
    "checkpoint": "checkpoints",
    "rendezvous": "rendezvous",
    "task lease": "task leases",
}
# From top to bottom.
TRACKS = ("steps", "collectives", "requests", "checkpoints", "rendezvous", "task leases")


@dataclasses.dataclass(frozen=True)
class Slice:
    """One slice; times are ns.

    Attributes:
      track: the kind of track it is on, such as "collectives".
      name: the shown name.
      category: "step", "phase", "collective", "request", "waiting", "travelling", or a span's name.
      begin, end: when.
      arguments: the arguments that a viewer shows.
      parts: slices inside this one, in order.
    """

    track: str
    name: str
    category: str
    begin: int
    end: int
    arguments: dict[str, Any]
    parts: tuple[Slice, ...] = ()


def slices_of(
    events: Sequence[RingEvent], convert: Callable[[int], int], until: int
) -> list[Slice]:
    """Returns the slices of one task, in the order of their beginning.

    Args:
      events: the fields of `Event` in core/trace/event.h.
      convert: returns a time of the task on the clock of the timeline, in ns.
      until: where an event ends that has not ended, in ns of the task's clock.
    """
    found = [_slice(event, convert, until) for event in events]
    return sorted(_with_phases(found), key=lambda one: (one.begin, -one.end))


def on_tracks(slices: Iterable[Slice]) -> Iterator[tuple[str, int, Slice]]:
    """Yields the kind of track, its index and the slice; no two slices on one overlap.

    Args:
      slices: in the order of their beginning.
    """
    ends: dict[str, list[int]] = {}
    for one in slices:
        busy_until = ends.setdefault(one.track, [])
        free = (index for index, end in enumerate(busy_until) if end <= one.begin)
        index = next(free, len(busy_until))
        if index == len(busy_until):
            busy_until.append(one.end)
        busy_until[index] = one.end
        yield one.track, index, one


def _slice(event: RingEvent, convert: Callable[[int], int], until: int) -> Slice:
    begin = convert(event["submitted"])
    end = convert(event["ended"] or max(until, event["submitted"]))
    arguments: dict[str, object] = {"detail": event["detail"]} if event["detail"] else {}
    if not event["ended"]:
        arguments["unfinished"] = True
    if event["state"] == _FAILED:
        arguments["error"] = event["error"]
    if event["kind"] == _SPAN:
        name = event["name"]
        return Slice(_OF_SPANS.get(name, name), name, name, begin, end, arguments)
    arguments |= {"operation": event["operation"], "bytes": event["bytes"]}
    if event["kind"] == _COLLECTIVE:
        # The same on all ranks: with it a query finds the other sides of a collective.
        arguments["id"] = f"{event['communicator']:x}/{event['key']:x}/{event['number']}"
        arguments |= {"dtype": event["dtype"], "rank": event["rank"], "ranks": event["size"]}
        if event["peer"] >= 0:
            arguments["root"] = event["peer"]
        track, category, name = "collectives", "collective", event["name"] or event["operation"]
    else:
        arguments["server"] = f"ps {event['peer']}"
        track, category, name = "requests", "request", event["operation"]
        if event["name"]:
            arguments["of"] = event["name"]
    started = convert(event["started"]) if event["started"] else end
    return Slice(track, name, category, begin, end, arguments, _waiting(track, begin, started, end))


def _waiting(track: str, begin: int, started: int, end: int) -> tuple[Slice, ...]:
    parts = (
        Slice(track, "waiting", "waiting", begin, started, {}),
        Slice(track, "travelling", "travelling", started, end, {}),
    )
    return tuple(part for part in parts if part.end > part.begin)


def wait_for_late_ranks(tasks: Mapping[str, Sequence[Slice]]) -> dict[str, list[Slice]]:
    """Lets collectives wait until the last rank has submitted them, which they name.

    Collectives with a root do not wait for all ranks, and stay as they are.

    Args:
      tasks: the slices of each task, by its name.
    """
    submitted: dict[str, list[tuple[int, str]]] = {}
    for task, slices in tasks.items():
        for one in slices:
            if one.category == "collective" and "root" not in one.arguments:
                submitted.setdefault(one.arguments["id"], []).append((one.begin, task))
    return {
        task: [_wait_for_late_rank(one, task, submitted) for one in slices]
        for task, slices in tasks.items()
    }


def _wait_for_late_rank(
    one: Slice, task: str, submitted: Mapping[str, Sequence[tuple[int, str]]]
) -> Slice:
    times = submitted.get(one.arguments.get("id", ""), ())
    if not times or len(times) != one.arguments["ranks"]:
        return one
    last, by = max(times)
    if by == task:
        return one
    started = max([last, *(part.begin for part in one.parts if part.category == "travelling")])
    return dataclasses.replace(
        one,
        arguments={**one.arguments, "last rank": by},
        parts=_waiting(one.track, one.begin, min(started, one.end), one.end),
    )


def _with_phases(slices: Sequence[Slice]) -> Iterator[Slice]:
    """Yields the slices; slices of steps have their phases inside."""
    ordered = sorted(slices, key=lambda one: one.begin)
    steps = [one for one in ordered if one.category == "step"]
    yield from (one for one in ordered if one.category != "step")
    others = [one for one in ordered if one.category in ("collective", "request")]
    at = 0
    for step in steps:
        while at < len(others) and others[at].begin < step.begin:
            at += 1
        inside = []
        for index in range(at, len(others)):
            if others[index].begin >= step.end:
                break
            inside.append(others[index])
        yield dataclasses.replace(step, parts=_phases(step, inside))


def _phases(step: Slice, inside: Sequence[Slice]) -> tuple[Slice, ...]:
    """Returns the phases of a step, as far as they follow from its communication.

    The forward and the backward pass end when the last gradient is handed over: to a collective, or
    to a push. The update begins when the last collective has ended; with parameter servers it is
    theirs.

    Args:
      step: the step.
      inside: the collectives and requests that it has begun, in order.
    """
    fetches = [one for one in inside if one.name in ("pull", "lookup")]
    gives = [one for one in inside if one.category == "collective" or one.name == "push"]
    if not gives:
        return ()
    begin = step.begin
    before = [one.end for one in fetches if one.begin < gives[-1].begin and one.name == "pull"]
    if before:
        begin = min(max(before), gives[-1].begin)
    handed_over = max(gives[-1].begin, begin)
    ended = min(step.end, max(one.end for one in gives))
    times = [step.begin, begin, handed_over, max(handed_over, ended), step.end]
    names = ["wait for variables", "forward and backward", "wait for gradients", "update"]
    if gives[-1].category == "request":
        names[2:] = ["push", "end of step"]
    return tuple(
        Slice(step.track, name, "phase", first, last, {})
        for name, first, last in zip(names, times[:-1], times[1:], strict=True)
        if last > first
    )
