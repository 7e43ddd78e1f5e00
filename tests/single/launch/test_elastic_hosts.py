"""The hosts of an elastic job come and go; a program in place of ssh starts their agents."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from single.launch.fake_ssh import make_fake_ssh
from support.launching import PACKAGE, PRELUDE, Launched
from support.patience import wait_until

# The script is asked more often than in a real job.
RUN = """
import sys
from tfdist.launch.hosts import discovery
discovery.INTERVAL = 0.1
from tfdist.cli.main import main
sys.exit(main(["run", *sys.argv[1:]]))
"""
# A worker leaves on SIGTERM, and ends well once there is a file "end".
WORKER = """
address = config["cluster"]["worker"][config["task"]["index"]]
signal.signal(signal.SIGTERM, lambda number, frame: os._exit(143))
(here / f".{me}").write_text(f"{os.getpid()} {os.getppid()}")
(here / f".{me}").rename(here / f"{me} {address.partition(':')[0]}")
wait_for_file("end")
"""


class Job:
    """A job with one worker on each of two hosts; it may have four."""

    def __init__(self, folder, *further, hosts=("127.0.0.2:1", "127.0.0.3:1")):
        self._folder = folder
        self._write(*hosts)
        script = folder / "discover"
        script.write_text(f"#!/bin/sh\necho >> {folder}/asked\ncat {folder}/named\n")
        script.chmod(0o755)
        (folder / "script.py").write_text(PRELUDE + WORKER)
        options = ["--ssh", make_fake_ssh(folder), "--host-discovery-script", script]
        words = ["--workers", "1:4:2", *options, *further, folder / "script.py"]
        self._launched = Launched(
            [sys.executable, "-c", RUN, *map(str, words)], {**os.environ, "PYTHONPATH": PACKAGE}
        )

    def name(self, *hosts):
        """Sets what the script prints, and waits until it has been asked."""
        self._write(*hosts)
        # The first call may have begun before.
        asked = self._asked()
        wait_until(lambda: self._asked() >= asked + 3, "three more questions")

    def wait(self, worker, host):
        """Waits until a worker has started on a host; returns its agent."""
        path = self._folder / f"worker {worker} {host}"
        wait_until(path.exists, str(path))
        agent = int(path.read_text().split()[1])
        path.unlink()
        return agent

    def finish(self):
        (self._folder / "end").touch()
        code, _, err = self._launched.finish()
        assert code == 0, err
        return [line.removeprefix("tfdist run: ") for line in err]

    def close(self):
        self._launched.close()

    def _asked(self):
        return len((self._folder / "asked").read_text())

    def _write(self, *hosts):
        (self._folder / ".named").write_text("".join(f"{host}\n" for host in hosts))
        (self._folder / ".named").rename(self._folder / "named")


@pytest.fixture
def job(tmp_path):
    found = Job(tmp_path)
    yield found
    found.close()


def test_workers_come_with_their_hosts_and_leave_with_them(job):
    job.wait(0, "127.0.0.2")
    job.wait(1, "127.0.0.3")
    job.name("127.0.0.2:1", "127.0.0.3:1", "127.0.0.4:2")
    job.wait(2, "127.0.0.4")
    job.wait(3, "127.0.0.4")
    job.name("127.0.0.3:1", "127.0.0.4:1", "127.0.0.5:1")
    job.wait(0, "127.0.0.5")
    said = job.finish()
    for line in (
        "host 127.0.0.4 has come, with 2 slots",
        "host 127.0.0.2 is gone",
        "host 127.0.0.4 has 1 slots, had 2",
        "worker 0: told to leave its host (SIGTERM)",
        "worker 3: told to leave its host (SIGTERM)",
        "worker 0 has left: exit code 143; workers now: 2",
    ):
        assert line in said, said


def test_a_job_begins_with_fewer_hosts_after_the_start_timeout(tmp_path):
    job = Job(tmp_path, "--start-timeout", "0.5", hosts=["127.0.0.2:1"])
    try:
        job.wait(0, "127.0.0.2")
        job.name("127.0.0.2:1", "127.0.0.3:1")
        job.wait(1, "127.0.0.3")
        said = job.finish()
        assert "waiting for 2 slots; there are 1" in said, said
    finally:
        job.close()


def test_a_lost_host_s_worker_moves(job):
    agent = job.wait(0, "127.0.0.2")
    job.wait(1, "127.0.0.3")
    job.name("127.0.0.2:1", "127.0.0.3:2")
    job.wait(2, "127.0.0.3")
    os.kill(agent, signal.SIGKILL)
    # The script still names it: it is connected to again, and its worker starts there.
    job.wait(0, "127.0.0.2")
    said = job.finish()
    # If the script is asked in the same moment, the worker counts as told to leave its old host.
    lost = ("worker 0 on 127.0.0.2 failed: its host 127.0.0.2 was lost: the connection ended",)
    lost += ("worker 0 has left: its host 127.0.0.2 was lost: the connection ended",)
    assert any(line.startswith(lost) for line in said), said
    assert "host 127.0.0.2 has come, with 1 slots" in said


@pytest.mark.long(covered_by="single/launch/test_host_list.py")
def test_bad_answers_change_nothing(job, tmp_path):
    job.wait(0, "127.0.0.2")
    job.wait(1, "127.0.0.3")
    job.name("not a host")
    job.name("127.0.0.2:1", "127.0.0.3:1", "127.0.0.9:1")
    said = job.finish()
    problem = f"{tmp_path / 'discover'}, line 1: expected 'HOST', 'HOST:SLOTS' or 'HOST slots=N'"
    assert sum(line.startswith(problem) for line in said) == 1, said
    assert any("127.0.0.9 port 22: No route to host" in line for line in said), said
    assert not any("told to leave" in line for line in said), said
