"""A parameter server in a test that returns its records once it has served."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple
from unittest import mock

from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.ops.ps.server import ParameterServer
from tfdist.ops.ps.server_records import ServerStats, TraceEvent
from tfdist.ps.server import ServerTask


class Records(NamedTuple):
    """The records of one server."""

    trace: list[TraceEvent]
    stats: ServerStats


def serve_and_tell(trace_events: int = 0) -> Records | None:
    """Serves until the job has ended if this process is a parameter server.

    Args:
      trace_events: the number of latest events in the trace.

    Returns:
      The server's records; in every other task `None`, at once.
    """
    cluster = Cluster.from_environment()
    if cluster.task_type != "ps":
        return None
    found = []

    class Recorded(ParameterServer):
        def __init__(self, index, config, *args, **kwargs):
            # Set on the server only; it is not part of the configuration that workers agree on.
            config = dataclasses.replace(config, trace_events=trace_events)
            super().__init__(index, config, *args, **kwargs)

        def close(self):
            found.append(Records(self.trace(), self.stats()))
            super().close()

    with mock.patch("tfdist.ps.server.ParameterServer", Recorded):
        assert ServerTask(cluster, Settings.from_environment()).serve() == 0
    return found[0]
