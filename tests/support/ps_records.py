"""A parameter server in a test that tells what it remembers once it has served."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple
from unittest import mock

from tfdist import ops
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.ps.server import ServerTask


class Records(NamedTuple):
    """What one server remembers."""

    trace: list[ops.TraceEvent]
    stats: ops.ServerStats


def serve_and_tell(trace_events: int = 0) -> Records | None:
    """Serves until the job has ended if this process is a parameter server.

    Args:
      trace_events: how many of the latest events it is to remember.

    Returns:
      Its records; `None` at once in every other task.
    """
    cluster = Cluster.from_environment()
    if cluster.task_type != "ps":
        return None
    found = []

    class Recorded(ops.ParameterServer):
        def __init__(self, index, config, *args, **kwargs):
            # Each server's own matter, of which the workers need not know.
            config = dataclasses.replace(config, trace_events=trace_events)
            super().__init__(index, config, *args, **kwargs)

        def close(self):
            found.append(Records(self.trace(), self.stats()))
            super().close()

    with mock.patch.object(ops, "ParameterServer", Recorded):
        assert ServerTask(cluster, Settings.from_environment()).serve() == 0
    return found[0]
