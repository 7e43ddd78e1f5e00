"""Free ports for the tasks of a test, which no other pytest worker chooses here.

A port is free until its task binds it, for a newcomer after seconds. Of some 6,000 ports that a run
chooses at random out of 27,000, now and then two tests at a time would get the same one. What
`tfdist run` chooses for the tasks of a test is out of all ports.
"""

from __future__ import annotations

import os

from tfdist.launch.ports import free_ports, shuffled, usable_ports


def worker_ports(count: int) -> list[int]:
    """As `free_ports`, out of this pytest worker's share of the ports."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return free_ports(count, shuffled(usable_ports()[number::workers]))
