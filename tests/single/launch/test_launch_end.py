"""How a job started by `tfdist run` ends: failures, limits, signals, and nothing left behind."""

from __future__ import annotations

import signal
import time

import pytest

from support.launching import Launcher, wait_until_gone


@pytest.fixture
def launch(tmp_path):
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


@pytest.mark.alone  # within the seconds between SIGTERM and SIGKILL
def test_the_first_failure_stops_the_rest_and_is_reported_last(launch, tmp_path):
    started = time.monotonic()
    code, _, err = launch(
        """
        if me != "worker 1":
            leave_pid()
            wait_for_ever()
        wait_for_file("pid *", 2)
        for i in range(30): say(f"line {i}")
        sys.exit(3)
        """,
        *("--workers", "3", "--log-dir", str(tmp_path / "logs")),
    ).finish()
    assert code == 3
    assert "tfdist run: worker 1 has ended: exit code 3; stopping worker 0, worker 2" in err
    last = err.index("tfdist run: its last lines:")
    assert err[last - 2].startswith("tfdist run: worker 1 failed first: exit code 3, after ")
    assert err[last - 1] == f"tfdist run: its whole output: {tmp_path}/logs/worker-1.log"
    assert err[last + 1 :] == [f"    line {i}" for i in range(10, 30)]
    for name in ("pid worker 0", "pid worker 2"):
        wait_until_gone(int((tmp_path / name).read_text()))
    assert time.monotonic() - started < 10


def test_the_killed_task_is_reported_not_those_that_fail_because_of_it(launch):
    code, _, err = launch(
        """
        leave_pid()
        if me == "worker 1":
            wait_for_file("pid *", 3)
            os.kill(os.getpid(), signal.SIGKILL)
        wait_for_end("pid worker 1")
        sys.exit(1)
        """,
        *("--workers", "3"),
    ).finish()
    assert code == 128 + signal.SIGKILL
    assert any(
        line.startswith("tfdist run: worker 1 failed first: killed by SIGKILL") for line in err
    )
    assert err[-1] == "tfdist run: it printed nothing"


def test_tasks_that_ignore_sigterm_or_are_stopped_are_killed_after_the_grace(launch, tmp_path):
    code, _, err = launch(
        """
        if me == "worker 0":
            wait_for_file("pid *", 2)
            sys.exit(9)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        leave_pid()
        if me == "worker 1": os.kill(os.getpid(), signal.SIGSTOP)
        wait_for_ever()
        """,
        workers=3,
        stop_grace=0.3,
    ).finish()
    assert code == 9
    assert any("worker 0 failed first: exit code 9" in line for line in err)
    for name in ("pid worker 1", "pid worker 2"):
        wait_until_gone(int((tmp_path / name).read_text()))


def test_ps_and_evaluator_may_end_by_themselves_and_are_then_ended(launch, tmp_path):
    code, out, err = launch(
        """
        if me == "evaluator 0":
            wait_for_file("chief")
            say("evaluated")
        elif me == "ps 0":
            def leave(*_): say("told to end"); os._exit(5)
            signal.signal(signal.SIGTERM, leave)
            (here / "serving").touch()
            wait_for_ever()
        else:
            wait_for_file("serving")
            (here / me.split()[0]).touch()
        """,
        workers=2,
        ps=1,
        evaluator=True,
        ps_grace=0.3,
    ).finish()
    assert code == 0
    assert "[evaluator 0] evaluated" in out
    assert "[ps 0] told to end" in out
    assert "tfdist run: training is done; ps 0 has 0.3 s to end" in err


def test_an_evaluator_has_its_time_even_if_the_ps_must_be_killed(launch):
    code, out, err = launch(
        """
        leave_pid()
        if me == "ps 0":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            (here / "serving").touch()
            wait_for_ever()
        elif me == "evaluator 0":
            wait_for_end("pid ps 0")
            say("evaluated")
        else:
            wait_for_file("serving")
        """,
        ps=1,
        evaluator=True,
        ps_grace=0.1,
        stop_grace=0.1,
    ).finish()
    assert code == 0
    assert out == ["[evaluator 0] evaluated"]
    assert len(err) == 2


def test_data_tasks_are_ended_when_nobody_can_use_them(launch):
    code, out, err = launch(
        """
        leave_pid()
        if me.startswith("data"):
            def leave(*_): say("told to end"); os._exit(5)
            signal.signal(signal.SIGTERM, leave)
            (here / f"serving {me}").touch()
            wait_for_ever()
        wait_for_file("serving *", 2)
        if me == "evaluator 0":
            wait_for_end("pid chief 0")
            say("evaluated")
        """,
        "--evaluator",
        *("--data-workers", "1"),
    ).finish()
    assert code == 0
    assert out[0] == "[evaluator 0] evaluated"
    assert sorted(out[1:]) == ["[data_dispatcher] told to end", "[data_worker 0] told to end"]
    assert err == ["tfdist run: training is done; evaluator 0 has 60 s to end"]


def test_an_evaluator_that_fails_after_training_is_a_failure(launch):
    code, _, err = launch(
        """
        leave_pid()
        if me == "evaluator 0":
            wait_for_end("pid chief 0")
            sys.exit(6)
        """,
        "--evaluator",
    ).finish()
    assert code == 6
    assert any("evaluator 0 failed first: exit code 6" in line for line in err)


def test_the_time_limit_names_those_still_running(launch):
    code, _, err = launch(
        """
        if me != "worker 1": wait_for_ever()
        """,
        *("--workers", "3", "--timeout", "1.5"),
    ).finish()
    assert code == 124
    assert err[-1] == (
        "tfdist run: stopped at the limit of 1.5 s; still running then: worker 0, worker 2"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_passed_on_and_the_tasks_are_waited_for(launch, number):
    launched = launch(
        f"""
        def leave(number, frame): say(f"saved at {{number}}"); sys.exit(0)
        signal.signal({int(number)}, leave)
        say("ready")
        wait_for_ever()
        """,
        *("--workers", "2"),
    )
    assert launched.read_lines(2) == {"[worker 0] ready", "[worker 1] ready"}
    launched.process.send_signal(number)
    code, out, err = launched.finish()
    assert code == 128 + number
    assert sorted(out) == [f"[worker {i}] saved at {int(number)}" for i in range(2)]
    assert err[-1] == f"tfdist run: stopped by {number.name}"


def test_a_second_ctrl_c_kills(launch):
    launched = launch(
        """
        signal.signal(signal.SIGINT, lambda *_: say("not now"))
        say("ready")
        while True: wait_for_ever()
        """,
        *("--workers", "2"),
    )
    launched.read_lines(2)
    launched.process.send_signal(signal.SIGINT)
    assert launched.read_lines(2) == {"[worker 0] not now", "[worker 1] not now"}
    launched.process.send_signal(signal.SIGINT)
    code, _, err = launched.finish()
    assert code == 130
    assert "tfdist run: SIGINT: killing all tasks" in err


def test_after_the_grace_ctrl_c_kills_and_names_the_tasks(launch):
    launched = launch(
        """
        if me == "worker 1": signal.signal(signal.SIGINT, signal.SIG_IGN)
        say("ready")
        while True: wait_for_ever()
        """,
        *("--workers", "2", "--grace", "1"),
    )
    launched.read_lines(2)
    launched.process.send_signal(signal.SIGINT)
    code, _, err = launched.finish()
    assert code == 130
    ours = [line for line in err if line.startswith("tfdist run: ")]
    assert ours[-2:] == [
        "tfdist run: killing worker 1, which did not end within 1 s",
        "tfdist run: stopped by SIGINT",
    ]


FAMILY = """
child = subprocess.Popen(["sleep", "1000"])
say(f"{os.getpid()} {child.pid}")
"""


def pids_of(lines):
    return [int(pid) for line in lines for pid in line.split("] ")[1].split()]


def test_nothing_is_left_when_the_launcher_is_killed(launch):
    launched = launch(FAMILY + "wait_for_ever()", "--workers", "2")
    pids = pids_of(launched.read_lines(2))
    assert len(set(pids)) == 4
    launched.process.kill()
    for pid in pids:
        wait_until_gone(pid)


def test_what_a_task_left_behind_ends_with_the_job(launch):
    launched = launch(FAMILY, "--workers", "2")
    pids = pids_of(launched.read_lines(2))
    code, _, _ = launched.finish()
    assert code == 0
    for pid in pids:
        wait_until_gone(pid)
