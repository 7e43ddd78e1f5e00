"""The clock of a process in another time namespace, whose offset is known."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from support.launching import PACKAGE
from tfdist.config.cluster import Cluster
from tfdist.control.server import ControlServer
from tfdist.launch.ports import free_ports
from tfdist.observe import clock

SECONDS = 1234
CALLER = """
import json, sys
from tfdist.config.cluster import Cluster
from tfdist.observe import clock
from tfdist.observe.clock_client import ClockClient
cluster = Cluster(workers=tuple(sys.argv[1:]), task_index=1)
found = ClockClient(cluster, None, cluster.workers).measure()
print(json.dumps([found.reference, found.offset, found.error]))
"""


@pytest.mark.timeout(60)
def test_the_offset_of_a_time_namespace():
    workers = tuple(f"127.0.0.1:{port}" for port in free_ports(2))
    server = ControlServer(Cluster(workers=workers, task_index=0), None, clock.HANDLERS)
    try:
        away = ["unshare", "--user", "--map-root-user", "--time", "--monotonic", str(SECONDS)]
        found = subprocess.run(
            [*away, "--fork", "--kill-child", sys.executable, "-c", CALLER, *workers],
            env={"PYTHONPATH": PACKAGE},
            capture_output=True,
            text=True,
            timeout=50,
        )
    finally:
        server.close()
    assert found.returncode == 0, found.stderr
    _, offset, error = json.loads(found.stdout)
    assert abs(offset + SECONDS * 10**9) <= error < 10**9
