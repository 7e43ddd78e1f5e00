"""The report of this task for `tfdist top` and `tfdist dashboard`: the answer to `GET /state`.

`tfdist.observe.live.records` reads it. Times are ages, in seconds before the answer: clocks of
machines differ, and the reader knows when the answer came.
"""

from __future__ import annotations

import os
import socket
import sys
import time

from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.job import process
from tfdist.observe.metrics import collector, curve
from tfdist.ops.trace import events

FORMAT = 1
STATE_PATH = "/state"
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
      seconds: of which the events are told; 0 tells none.
    """
    return {
        "format": FORMAT,
        "task": cluster.task_name,
        "role": cluster.task_type,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "script": os.path.basename(sys.argv[0]),
        "memory": _resident_bytes(),
        "metrics": [
            [family.name, list(labels), number]
            for family in collector.describe(cluster, settings, server)
            for labels, number in family.samples
        ],
        "traffic": _traffic(),
        "loss": curve.loss.points() if seconds else [],
        "events": _events(seconds) if seconds else [],
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


def _events(seconds: float) -> list[dict[str, object]]:
    """Returns what was under way in the last seconds, of the latest events."""
    if not events.is_loaded():
        return []
    found = events.read(max(1, events.last() - _MAX_EVENTS + 1), _MAX_EVENTS).events
    now = time.monotonic_ns()

    def age(at: int) -> float | None:
        return (now - at) / 1e9 if at else None

    return [
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


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
