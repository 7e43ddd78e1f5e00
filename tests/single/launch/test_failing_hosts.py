"""A host on which workers fail is left out for some time; not the real ssh starts the agents."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from pathlib import Path

import pytest

from single.launch.fake_ssh import make_fake_ssh
from support.launching import PACKAGE, PRELUDE, Launched
from tfdist.launch.hosts.cooldown import Cooldown
from tfdist.launch.hosts.elastic_hosts import ElasticHosts, NoRoomYetError
from tfdist.launch.hosts.host_list import Host
from tfdist.launch.hosts.pool import HostPool, JobCommand, Site
from tfdist.launch.policies.elastic import WorkerRange
from tfdist.launch.run import LaunchOptions, plan

pytestmark = pytest.mark.timeout(60)

# Shorter times than a real job's.
RUN = """
import sys
from pathlib import Path
from tfdist.launch import run
from tfdist.launch.policies.elastic import Backoff, WorkerRange
from tfdist.launch.hosts.cooldown import Cooldown
from tfdist.launch.hosts.host_list import parse_hosts
script, ssh, hosts, workers = sys.argv[1:]
sys.exit(run.run(run.LaunchOptions(
    Path(script), workers=WorkerRange.from_text(workers), hosts=parse_hosts(hosts), ssh=[ssh],
    backoff=Backoff(first=0.05, longest=0.2), cooldown=Cooldown(first=2.0, longest=3.0))))
"""
BODY = """
host = config["cluster"]["worker"][config["task"]["index"]].partition(":")[0]
(here / f"start {me} {host} {os.getpid()}").touch()
tries = len(list(here.glob(f"start {me} *")))
"""
BAD = "127.0.0.3"
FAILED = f"worker 1 on {BAD} failed: exit code 3"
MOVED = "starting it again on another host, or when its host is tried again"
MANY = "workers have failed there 3 times within 300 s"


@pytest.fixture
def launch(tmp_path):
    running = []

    def start(body, hosts, workers):
        script = tmp_path / "script.py"
        script.write_text(PRELUDE + BODY + textwrap.dedent(body))
        words = [script, make_fake_ssh(tmp_path), hosts, workers]
        running.append(
            Launched(
                [sys.executable, "-c", RUN, *map(str, words)], {**os.environ, "PYTHONPATH": PACKAGE}
            )
        )
        code, _, err = running[-1].finish(50)
        said = [line.removeprefix("tfdist run: ") for line in err if "job's file" not in line]
        return code, said

    yield start
    for launched in running:
        launched.close()


@pytest.mark.long(covered_by="test_its_worker_moves_to_a_free_slot_and_another_host_s_is_restarted")
def test_it_is_tried_again_after_a_cooldown_that_grows(launch):
    code, said = launch(
        """
        if me == "worker 1" and tries <= 4: sys.exit(3)
        wait_for_file("start worker 1 *", 5)
        """,
        f"127.0.0.2:1,{BAD}:1",
        "1:2:2",
    )
    assert code == 0, said
    waits = f"worker 1 waits for a host: no host but {BAD} has a free slot"
    assert said == [
        f"{FAILED}; starting it again in 0.05 s (restarts left: 9)",
        f"{FAILED}; starting it again in 0.1 s (restarts left: 8)",
        f"{FAILED}; {MOVED} (restarts left: 7)",
        f"host {BAD} takes no worker for 2 s: {MANY}",
        waits,
        f"host {BAD} is tried again after 2 s",
        f"{FAILED}; {MOVED} (restarts left: 6)",
        f"host {BAD} takes no worker for 3 s: a worker has failed again since it was tried again",
        waits,
        f"host {BAD} is tried again after 3 s",
    ]


def test_its_worker_moves_to_a_free_slot_and_another_host_s_is_restarted(launch, tmp_path):
    code, said = launch(
        f"""
        if host == "{BAD}": sys.exit(3)
        wait_for_file("start worker 1 127.0.0.4 *")
        if me == "worker 0" and tries == 1: sys.exit(5)
        wait_for_file("start worker 0 *", 2)
        """,
        f"127.0.0.2:1,{BAD}:1,127.0.0.4:1",
        "1:3:2",
    )
    assert code == 0, said
    assert said == [
        f"{FAILED}; starting it again in 0.05 s (restarts left: 9)",
        f"{FAILED}; starting it again in 0.1 s (restarts left: 8)",
        f"{FAILED}; {MOVED} (restarts left: 7)",
        f"host {BAD} takes no worker for 2 s: {MANY}",
        "worker 0 on 127.0.0.2 failed: exit code 5; starting it again in 0.05 s (restarts left: 6)",
    ]
    assert len(list(tmp_path.glob("start worker 0 127.0.0.2 *"))) == 2


def test_its_worker_does_not_take_the_slot_of_one_that_starts_again():
    sites = [Site(Host(name), None) for name in ("127.0.0.2", BAD)]
    options = LaunchOptions(Path("train.py"), workers=WorkerRange(1, 2, 2))
    specs = plan(options, sites=sites)
    pool = HostPool(JobCommand("python", [], {}), sites, sites)
    hosts = ElasticHosts(pool, specs, lambda host: None, Cooldown())
    times = [time.monotonic() + number for number in range(6)]
    assert [hosts.is_failing(1, *times[i : i + 2]) for i in (0, 2, 4)] == [False, False, True]
    hosts.leave_out(1)
    with pytest.raises(NoRoomYetError, match=f"no host but {BAD} has a free slot"):
        hosts.place(1, occupied=[], reserved=[0])
    assert hosts.capacity(occupied=[0]) == 1
    assert hosts.place(0, occupied=[], reserved=[0]).host == "127.0.0.2"
    assert hosts.place(1, occupied=[], reserved=[]).host == "127.0.0.2"


def test_a_host_that_the_job_needs_is_not_left_out(launch):
    code, said = launch(
        """
        if me == "worker 1": sys.exit(3)
        wait_for_ever()
        """,
        f"127.0.0.2:1,{BAD}:1",
        "2:2:2",
    )
    assert code == 3
    assert said[:3] == [
        f"{FAILED}; starting it again in 0.05 s (restarts left: 9)",
        f"{FAILED}; starting it again in 0.1 s (restarts left: 8)",
        f"{FAILED.replace('failed', 'has ended')}; it failed 3 times in a row, each within 60 s of "
        "its start; too few workers remain (1, expected at least 2); stopping worker 0",
    ]


def test_a_script_that_always_fails_ends_the_job_without_a_trial(launch, tmp_path):
    code, said = launch("sys.exit(3)", f"127.0.0.2:1,{BAD}:1", "1:2:2")
    assert code == 3
    assert len(list(tmp_path.glob("start *"))) == 6, said
    assert any("too few workers remain (0, expected at least 1)" in line for line in said), said
    assert not any("is tried again after" in line for line in said), said


def test_the_only_host_is_not_left_out(launch, tmp_path):
    code, said = launch(
        """
        if me == "worker 1": sys.exit(3)
        wait_for_file("start worker 1 *", 3)
        while any(Path(f"/proc/{path.name.split()[-1]}").exists()
                  for path in here.glob("start worker 1 *")): time.sleep(0.01)
        """,
        "127.0.0.2:2",
        "1:2:2",
    )
    assert code == 0, said
    assert not any("takes no worker" in line for line in said), said
    assert said[-1].endswith("left out, workers now: 1")
