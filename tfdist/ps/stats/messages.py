"""The request for a parameter server's statistics."""

from __future__ import annotations

import dataclasses

from tfdist.control.service import Service


@dataclasses.dataclass(frozen=True)
class StatsRequest:
    """A request for a parameter server's statistics."""

    wait: float


STATISTICS = Service("Statistics", 1, "a parameter server")
STATS = STATISTICS.method(StatsRequest)
