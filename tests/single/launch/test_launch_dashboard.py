"""`tfdist run --dashboard`, and `tfdist dashboard` during a job and after its end."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from support.launching import PACKAGE, Launcher
from support.patience import wait_until
from tfdist.config.settings import Settings
from tfdist.errors import ClusterConfigError
from tfdist.launch.hosts.host_list import Host
from tfdist.launch.hosts.pool import Site, this_machine
from tfdist.launch.job_registry import jobs
from tfdist.launch.run import LaunchOptions, _metrics, plan

pytestmark = pytest.mark.timeout(120)
# Serves until another thread gets a Ctrl-C: the wait of the main thread does not notice it.
INTERRUPTED = """
import signal, sys, threading, time
from tfdist.cli.main import main

def interrupt():
    time.sleep(2)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

threading.Thread(target=interrupt).start()
sys.exit(main(["dashboard", "--targets", "127.0.0.1:1"]))
"""
# A task without TensorFlow, which leaves a state at its end.
SCRIPT = """
sys.path.insert(0, os.environ["TESTS"])
from single.observe.live.live_states import fit, state
from tfdist.observe.metrics import last_state
say(f"{me} is here")
wait_for_file("continue")
curves = {"loss": [[1, 2.0]], "val_loss": [[1, 3.0]]}
states = Path(os.environ["TFDIST_STATE_DIR"])
last_state.leave(states, me, lambda: state(me, steps=7, fit=fit(has_ended=True), curves=curves))
sys.exit(3 * (me == "worker 1"))
"""


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("TESTS", str(Path(__file__).parents[2]))


@pytest.fixture
def launch(tmp_path):
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


def address_in(line):
    found = re.search(rb"tfdist dashboard: (http://127.0.0.1:\d+)/\?token=(\S+)", line)
    assert found, line
    return found[1].decode(), found[2].decode()


def job_at(address):
    url, token = address
    with urllib.request.urlopen(f"{url}/job.json?token={token}", timeout=20) as answer:
        return json.load(answer)


def read_until(read, text):
    """Reads lines up to the first that contains the text; returns that."""
    while text not in (line := read()):
        assert line, f"no line with {text}"
    return line


def is_gone(address):
    with contextlib.suppress(OSError):
        job_at(address)
        return False
    return True


def check_end(fields):
    """The last state of a job whose second worker has failed."""
    assert fields["end"]["code"] == 3 and fields["end"]["exits"]["worker 1"] == 3
    assert [task["steps"] for task in fields["tasks"]][1] == 7
    assert fields["fit"]["has_ended"] and fields["fit"]["curves"]["val_loss"] == [[1, 3.0]]


@contextlib.contextmanager
def dashboard_of(*options):
    """`tfdist dashboard` as a process; yields its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tfdist", "dashboard", *options],
        env={**os.environ, "PYTHONPATH": PACKAGE},
        stdout=subprocess.PIPE,
    )
    try:
        yield address_in(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_page_beside_the_job(launch, tmp_path):
    """Without a terminal it ends with the job, whose last state another page shows later."""
    running = launch(SCRIPT, "--workers", "2", "--dashboard")
    running.read_lines(2)
    address = address_in(read_until(running.process.stderr.readline, b"tfdist dashboard: "))
    fields = job_at(address)
    assert fields["end"] is None and [task["name"] for task in fields["tasks"]] == [
        *("worker 0", "worker 1"),
    ]
    # The tasks of this test serve nothing.
    assert all("does not listen" in task["problem"] for task in fields["tasks"])
    with dashboard_of() as other:
        (tmp_path / "continue").touch()
        assert running.finish()[0] == 3
        assert is_gone(address)
        # It was there before the end, and sees it.
        wait_until(lambda: job_at(other)["end"] is not None, "the end of the job")
        check_end(job_at(other))
    (job,) = jobs()
    assert not Path(job.job_file).exists()
    with dashboard_of("--job", job.job_file) as late:
        check_end(job_at(late))


def test_in_a_terminal_the_page_stays_until_ctrl_c(launch, tmp_path):
    ours, theirs = pty.openpty()
    (tmp_path / "continue").touch()
    running = launch(SCRIPT, "--dashboard", streams={"stdout": theirs, "stderr": theirs})
    os.close(theirs)
    with open(ours, "rb", buffering=0) as terminal:
        address = address_in(read_until(terminal.readline, b"tfdist dashboard: "))
        told = read_until(terminal.readline, b"the job is over")
        assert b"(exit code 0); the dashboard shows its last state until Ctrl-C" in told
        wait_until(lambda: job_at(address)["end"] is not None, "the end of the job")
        assert job_at(address)["end"]["exits"] == {"worker 0": 0}
        running.process.send_signal(signal.SIGINT)
        # A terminal buffers little: the rest must be read.
        with contextlib.suppress(OSError):
            while terminal.read(1024):
                pass
        assert running.process.wait(60) == 0
    assert is_gone(address)


def test_a_page_ends_with_a_job_that_is_stopped_or_killed(launch):
    for number in (signal.SIGTERM, signal.SIGKILL):
        running = launch(SCRIPT, "--dashboard")
        running.read_lines(1)
        address = address_in(read_until(running.process.stderr.readline, b"tfdist dashboard: "))
        assert job_at(address)["end"] is None
        running.process.send_signal(number)
        running.process.wait(60)
        wait_until(lambda address=address: is_gone(address), "the end of the page")


def test_ctrl_c_ends_the_page_though_the_wait_misses_it():
    """A signal just before the wait is missed in the same way."""
    process = [sys.executable, "-c", INTERRUPTED]
    environment = {**os.environ, "PYTHONPATH": PACKAGE, "TFDIST_SECRET": "a secret of a test"}
    assert subprocess.run(process, env=environment, timeout=40).returncode == 130


def test_a_page_about_several_hosts_needs_metrics():
    options = LaunchOptions(Path("train.py"), dashboard=True)
    here, elsewhere = this_machine(), Site(Host("node1"), None)
    assert _metrics(options, plan(options), Settings(), [here]).by_default
    with pytest.raises(ClusterConfigError, match="--dashboard: expected .* TFDIST_METRICS_PORT=0"):
        _metrics(options, plan(options), Settings(), [elsewhere])
    asked = _metrics(options, plan(options), Settings(metrics_port=0), [elsewhere])
    assert asked.addresses and not asked.by_default
