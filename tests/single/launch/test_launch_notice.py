"""SIGTERM to `tfdist run` and to its tasks, which end their step, save and end with 143."""

from __future__ import annotations

import os
import signal

import pytest

from support.launching import Launcher, wait_until_gone

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def launch(tmp_path):
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


@pytest.mark.parametrize("restarts", ["0", "3"])
def test_a_notice_to_one_task_ends_the_job_and_is_no_failure(launch, restarts):
    launched = launch(
        """
        def stop(number, frame): say("told"); sys.exit(143)
        signal.signal(signal.SIGTERM, stop)
        say(str(os.getpid()) if me == "worker 1" else "0")
        wait_for_ever()
        """,
        *("--workers", "3", "--restarts", restarts, "--grace", "0.5"),
    )
    (pid,) = (int(line.split()[-1]) for line in launched.read_lines(3) if "worker 1" in line)
    os.kill(pid, signal.SIGTERM)
    code, out, err = launched.finish()
    assert code == 143
    assert sorted(out) == [f"[worker {i}] told" for i in range(3)]
    assert err == [
        "tfdist run: worker 1 was told to end: exit code 143; waiting 0.5 s for worker 0, worker 2 "
        "to end, too",
        "tfdist run: stopped by SIGTERM to worker 1",
    ]


def test_a_server_that_ends_before_its_workers_is_not_restarted(launch):
    launched = launch(
        """
        if me == "ps 0":
            wait_for_file("stops")
            leave_pid()
            sys.exit(143)
        say("ready")
        if me == "worker 0":
            (here / "stops").touch()
            wait_for_end("pid ps 0")
            sys.exit(143)
        wait_for_ever()
        """,
        *("--workers", "2", "--ps", "1", "--restarts", "3", "--grace", "0.5"),
    )
    code, _, err = launched.finish()
    assert code == 143
    assert err[-1] == "tfdist run: stopped by SIGTERM to worker 0"
    assert not any("starting" in line for line in err)


def test_the_grace_is_an_option(launch, tmp_path):
    launched = launch(
        """
        signal.signal(signal.SIGTERM, lambda *_: say("not now"))
        leave_pid()
        say("ready")
        while True: wait_for_ever()
        """,
        *("--workers", "2", "--grace", "0.5"),
    )
    launched.read_lines(2)
    launched.process.send_signal(signal.SIGTERM)
    code, _, err = launched.finish(timeout=20)
    assert code == 143
    assert err == [
        "tfdist run: SIGTERM: passed on to all tasks, which have 0.5 s to end; once more kills "
        "them",
        "tfdist run: killing worker 0, worker 1, which did not end within 0.5 s",
        "tfdist run: stopped by SIGTERM",
    ]
    for path in tmp_path.glob("pid *"):
        wait_until_gone(int(path.read_text()))


def test_the_children_of_a_task_go_on(launch):
    launched = launch(
        """
        child = subprocess.Popen(["sleep", "1000"])
        def stop(number, frame): say(f"child {child.poll()}"); sys.exit(143)
        signal.signal(signal.SIGTERM, stop)
        say("ready")
        wait_for_ever()
        """,
        *("--workers", "1"),
    )
    launched.read_lines(1)
    launched.process.send_signal(signal.SIGTERM)
    code, out, _ = launched.finish()
    assert (code, out) == (143, ["[worker 0] child None"])
