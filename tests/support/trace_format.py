"""The rules of Chrome's trace format, and queries of a timeline.

The rules come from Google's document "Trace Event Format": its "JSON Object Format", complete
events and metadata events, the only events of a timeline.
"""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any

_METADATA = {
    "process_name": ("name", str),
    "process_labels": ("labels", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}
# Times are written in us with three decimals, and added by readers: half a ns.
_ROUNDING = 0.0005


def problems(trace: Any) -> list[str]:
    """Returns which rules a trace breaks; none for a valid one."""
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        return ["expected an object with a list of traceEvents"]
    found = []
    if trace.get("displayTimeUnit", "ms") not in ("ms", "ns"):
        found.append(f"displayTimeUnit {trace['displayTimeUnit']!r}")
    rows = collections.defaultdict(list)
    named = {"process_name": set(), "thread_name": set()}
    for event in trace["traceEvents"]:
        pid, tid, name = event.get("pid"), event.get("tid"), event.get("name")
        if type(pid) is not int or type(tid) is not int or not isinstance(name, str):
            found.append(f"expected pid, tid and name: {event}")
        elif event.get("ph") == "M":
            field, kind = _METADATA.get(name, ("", object))
            if type(event.get("args", {}).get(field)) is not kind:
                found.append(f"expected metadata: {event}")
            named.get(name, set()).add((pid, tid) if name == "thread_name" else pid)
        elif event.get("ph") == "X":
            if not _is_time(event.get("ts")) or not _is_time(event.get("dur")):
                found.append(f"expected ts and dur of at least 0: {event}")
            elif not isinstance(event.get("cat"), str) or not isinstance(event.get("args"), dict):
                found.append(f"expected cat and args: {event}")
            else:
                rows[pid, tid].append(event)
        else:
            found.append(f"expected a complete event or metadata: {event}")
    for row, events in rows.items():
        found += _overlaps(events)
        if row not in named["thread_name"] or row[0] not in named["process_name"]:
            found.append(f"{row} has no name")
    return found


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _overlaps(events: list[dict[str, Any]]) -> list[str]:
    """Complete events of one thread must nest."""
    found = []
    around: list[dict[str, Any]] = []
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        while around and end_of(around[-1]) <= event["ts"] + _ROUNDING:
            around.pop()
        if around and end_of(event) > end_of(around[-1]) + _ROUNDING:
            found.append(f"{event} overlaps {around[-1]}")
        around.append(event)
    return found


def end_of(event: dict[str, Any]) -> float:
    """Returns the end of a complete event, in us."""
    return event["ts"] + event["dur"]


class Timeline:
    """A timeline that was read; its format is verified.

    Args:
      path: the file.

    Attributes:
      about: the file's facts about itself.
      clocks: by task, what it says of its clock.
    """

    def __init__(self, path: Path) -> None:
        trace = json.loads(path.read_text())
        assert problems(trace) == []
        self.about = trace["otherData"]
        self.clocks = {task["task"]: task["clock"] for task in self.about["tasks"]}
        self._events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
        self.processes = {
            event["args"]["name"]: event["pid"]
            for event in trace["traceEvents"]
            if event["name"] == "process_name"
        }

    def slices(self, process: str, category: str, name: str | None = None) -> list[dict[str, Any]]:
        """Returns the slices of a process, in the order of their beginning."""
        found = [
            event
            for event in self._events
            if event["pid"] == self.processes[process]
            and event["cat"] == category
            and name in (None, event["name"])
        ]
        return sorted(found, key=lambda event: event["ts"])

    def inside(self, outer: dict[str, Any], category: str) -> list[dict[str, Any]]:
        """Returns the slices of a category on the track of another one, and inside it."""
        return [
            event
            for event in self._events
            if (event["pid"], event["tid"]) == (outer["pid"], outer["tid"])
            and event["cat"] == category
            and event["ts"] >= outer["ts"] - _ROUNDING
            and end_of(event) <= end_of(outer) + _ROUNDING
        ]
