"""Free ports for the tasks of a test, which no test of another pytest worker gets.

A port is free until its task binds it, for a newcomer after seconds. Of some 6,000 ports that a run
chooses at random out of 27,000, now and then two tests at a time would get the same one.
"""

from __future__ import annotations

import os
import random

from tfdist.launch.ports import ephemeral_range, free_ports

_TRIED = 200


def worker_ports(count: int) -> list[int]:
    """As `free_ports`, out of this pytest worker's share of the ports."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    first, last = ephemeral_range()
    share = [*range(10000, first), *range(last + 1, 65536)][number::workers]
    if len(share) < _TRIED:
        return free_ports(count)
    return free_ports(count, random.SystemRandom().sample(share, _TRIED))
