"""The report of this task for `tfdist top` and `tfdist dashboard`: the answer to `GET /state`.

`tfdist.observe.live.records` reads it. Times are ages, in seconds before the answer: clocks of
machines differ, and the reader knows when the answer came.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
import time

from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.job import process
from tfdist.observe.metrics import collector, fit_report
from tfdist.ops.trace import events

FORMAT = 2
STATE_PATH = "/state"
# Seconds of events that the dashboard shows, and of which a last state tells.
EVENTS_SECONDS = 10.0
# The latest events that an answer has at most: a page draws no more.
_MAX_EVENTS = 400


def task_state(
    cluster: Cluster, settings: Settings, server: collector.Server | None, seconds: float
) -> dict[str, object]:
    """Returns the state of this process's task, as an object for JSON.

    Args:
      cluster: the job.
      settings: of this process.
      server: of a `ps` task.
      seconds: of which the events are told; 0 tells neither events nor curves.
    """
    since, events = _events(seconds) if seconds else (0.0, [])
    fit = fit_report.current.state
    return {
        "format": FORMAT,
        "task": cluster.task_name,
        "role": cluster.task_type,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "script": os.path.basename(sys.argv[0]),
        "memory": _resident_bytes(),
        "cpu": time.process_time(),
        "metrics": [
            [family.name, list(labels), number]
            for family in collector.describe(cluster, settings, server)
            for labels, number in family.samples
        ],
        "traffic": _traffic(),
        "fit": None if fit is None else dataclasses.asdict(fit),
        "curves": fit_report.current.curves.points() if seconds else {},
        "events": events,
        "since": since,
    }


def _traffic() -> dict[str, tuple[int, int]]:
    """Returns the bytes sent to and received from each other task."""
    found: dict[str, tuple[int, int]] = {}
    group = process.current.group
    if group is not None:
        found |= group.communicator.traffic()
    worker = process.current.ps_worker
    if worker is not None:
        found |= worker.client.traffic()
    return found


def _events(seconds: float) -> tuple[float, list[dict[str, object]]]:
    """Returns the events that were under way in the last seconds, of the latest ones.

    Returns:
      How many seconds they cover: a busy task has more events in `seconds` than it tells.
      The events.
    """
    if not events.is_loaded():
        return seconds, []
    last = events.last()
    found = events.read(max(1, last - _MAX_EVENTS + 1), _MAX_EVENTS).events
    now = time.monotonic_ns()

    def age(at: int) -> float | None:
        return (now - at) / 1e9 if at else None

    # The events that are left out were submitted before the first one here.
    is_cut = bool(found) and found[0]["sequence"] > 1
    since = min(seconds, (now - found[0]["submitted"]) / 1e9) if is_cut else seconds
    told: list[dict[str, object]] = [
        {
            "kind": event["kind"],
            "operation": event["operation"],
            "name": event["name"],
            "detail": event["detail"],
            "bytes": event["bytes"],
            "failed": event["state"] == "failed",
            "submitted": age(event["submitted"]),
            "started": age(event["started"]),
            "ended": age(event["ended"]),
        }
        for event in found
        if not event["ended"] or now - event["ended"] < seconds * 1e9
    ]
    return since, told


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
