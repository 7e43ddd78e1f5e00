"""`tfdist run --restarts`: which tasks are restarted, and how often."""

from __future__ import annotations

import signal
import textwrap
from pathlib import Path

import pytest

from support.launching import Launcher, wait_until_gone

# `tries` counts the starts of this task, this one included.
BODY = """
def starts_of(name): return len(list(here.glob(f"start {name} *")))
(here / f"start {me} {os.getpid()}").touch()
leave_pid()
tries = starts_of(me)
"""


@pytest.fixture
def launch(tmp_path):
    launcher = Launcher(tmp_path)
    yield lambda body, *options, **more: launcher(BODY + textwrap.dedent(body), *options, **more)
    launcher.close()


def starts(folder):
    """How often each task was started."""
    names = [path.name.removeprefix("start ").rpartition(" ")[0] for path in folder.glob("start *")]
    return {name: names.count(name) for name in names}


def said(err):
    """Returns the launcher's messages without the path of the job file."""
    lines = [line.removeprefix("tfdist run: ") for line in err if line.startswith("tfdist run: ")]
    return [line for line in lines if "this job's file" not in line]


def test_without_parameter_servers_all_tasks_start_again(launch, tmp_path):
    code, out, err = launch(
        """
        say(f"{os.environ['TF_CONFIG']} {os.environ['TFDIST_SECRET']}")
        if tries == 1:
            (here / f"first {os.getpid()}").touch()
            wait_for_file("first *", 2)
            if me == "worker 1": os.kill(os.getpid(), signal.SIGKILL)
            wait_for_ever()
        # Both former processes ended before this one began.
        for path in here.glob("first *"):
            assert not Path(f"/proc/{path.name.split()[1]}").exists()
        """,
        *("--workers", "2", "--restarts", "2"),
    ).finish()
    assert code == 0, err
    assert starts(tmp_path) == {"worker 0": 2, "worker 1": 2}
    assert said(err) == [
        "worker 1 failed: killed by SIGKILL; stopping worker 0, then starting all again "
        "(restarts left: 1)"
    ]
    # With the same addresses and the same secret.
    assert len(out) == 4 and len(set(out)) == 2


@pytest.mark.parametrize("victim", ["chief 0", "worker 0", "ps 1", "evaluator 0"])
def test_with_parameter_servers_only_the_failed_task_starts_again(launch, tmp_path, victim):
    code, out, err = launch(
        f"""
        say(f"{{os.environ['TF_CONFIG']}} {{os.environ['TFDIST_SECRET']}}")
        wait_for_file("start *", 5)
        if me == "{victim}" and tries == 1: sys.exit(7)
        wait_for_file("start *", 6)
        """,
        *("--workers", "2", "--ps", "2", "--evaluator", "--restarts", "1"),
    ).finish()
    assert code == 0, err
    others = {"chief 0": 1, "worker 0": 1, "ps 0": 1, "ps 1": 1, "evaluator 0": 1}
    assert starts(tmp_path) == others | {victim: 2}
    name = victim.replace("chief 0", "chief")
    assert said(err)[0] == f"{name} failed: exit code 7; starting it again (restarts left: 0)"
    assert len(out) == 6 and len(set(out)) == 5


@pytest.mark.parametrize("victim", ["data_dispatcher 0", "data_worker 1"])
def test_a_data_task_starts_again_alone(launch, tmp_path, victim):
    code, out, err = launch(
        f"""
        say(os.environ["TFDIST_DATA_SERVICE_DIR"])
        wait_for_file("start *", 5)
        if me == "{victim}" and tries == 1: sys.exit(7)
        wait_for_file("start *", 6)
        if me.startswith("data"): wait_for_ever()
        """,
        *("--workers", "2", "--data-workers", "2", "--restarts", "1"),
    ).finish()
    assert code == 0, err
    others = {"worker 0": 1, "worker 1": 1, "data_worker 0": 1, "data_worker 1": 1}
    assert starts(tmp_path) == others | {"data_dispatcher 0": 1} | {victim: 2}
    name = victim.replace("data_dispatcher 0", "data_dispatcher")
    assert said(err) == [f"{name} failed: exit code 7; starting it again (restarts left: 0)"]
    # The journal's directory is one for all attempts, and goes with the job.
    (journal,) = {line.partition("] ")[2] for line in out}
    assert not Path(journal).exists()


def test_an_evaluator_starts_again_alone_also_after_training(launch, tmp_path):
    code, _, err = launch(
        """
        if me == "evaluator 0":
            if tries == 1: wait_for_file("start *", 3)
            if tries == 2: wait_for_end("pid chief 0")
            if tries < 3: sys.exit(1)
        else:
            wait_for_file("start evaluator*", 2)
        """,
        *("--workers", "2", "--evaluator", "--restarts", "2"),
    ).finish()
    assert code == 0, err
    assert starts(tmp_path) == {"chief 0": 1, "worker 0": 1, "evaluator 0": 3}
    assert "evaluator 0 failed: exit code 1; starting it again (restarts left: 0)" in said(err)


@pytest.mark.parametrize("servers", [0, 1])
def test_when_restarts_are_used_up_the_last_failure_counts(launch, tmp_path, servers):
    code, _, err = launch(
        """
        if me == "worker 0":
            wait_for_file("pid *", total)
            say(f"try {tries}")
            sys.exit(2 + tries)
        wait_for_ever()
        """.replace("total", str(2 + servers)),
        *("--workers", "2", "--ps", str(servers), "--restarts", "2"),
    ).finish()
    assert code == 5
    lines = said(err)
    assert [line.partition(" (")[2] for line in lines[:2]] == [
        "restarts left: 1)",
        "restarts left: 0)",
    ]
    assert lines[2].startswith("worker 0 has ended: exit code 5; no restarts left; stopping ")
    assert lines[3].startswith("worker 0 failed first: exit code 5, after ")
    assert err[-1] == "    try 3"
    assert starts(tmp_path)["worker 0"] == 3
    for path in tmp_path.glob("pid *"):
        wait_until_gone(int(path.read_text()))


def test_a_script_that_fails_at_once_is_tried_so_often_and_no_more(launch, tmp_path):
    code, _, err = launch(
        """
        sys.exit("usage: expected --data")
        """,
        *("--restarts", "3"),
    ).finish()
    assert code == 1
    assert starts(tmp_path) == {"worker 0": 4}
    left = "worker 0 failed: exit code 1; starting all again (restarts left: "
    assert said(err)[:3] == [f"{left}{n})" for n in (2, 1, 0)]
    assert err.count("[worker 0] usage: expected --data") == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("servers", ["0", "1"])
def test_a_signal_to_the_launcher_restarts_nothing(launch, tmp_path, number, servers):
    launched = launch(
        f"""
        signal.signal({int(number)}, lambda *_: sys.exit(4))
        say("ready")
        wait_for_ever()
        """,
        *("--workers", "2", "--ps", servers, "--restarts", "5"),
    )
    count = 2 + int(servers)
    launched.read_lines(count)
    launched.process.send_signal(number)
    code, _, err = launched.finish()
    assert code == 128 + number
    assert err[-1] == f"tfdist run: stopped by {number.name}"
    assert list(starts(tmp_path).values()) == [1] * count


def test_a_signal_before_the_restart_prevents_it(launch, tmp_path):
    launched = launch(
        """
        def stopped(*_):
            say("stopping")
            wait_for_file("let go")
        signal.signal(signal.SIGTERM, stopped)
        if me == "worker 0":
            (here / "waits").touch()
            wait_for_ever()
        wait_for_file("waits")
        sys.exit(1)
        """,
        *("--workers", "2", "--restarts", "5"),
    )
    assert launched.read_lines(1) == {"[worker 0] stopping"}
    launched.process.send_signal(signal.SIGINT)
    (tmp_path / "let go").touch()
    code, _, err = launched.finish()
    assert code == 130
    assert err[-1] == "tfdist run: stopped by SIGINT"
    assert starts(tmp_path) == {"worker 0": 1, "worker 1": 1}


def test_the_time_limit_is_that_of_all_tries(launch, tmp_path):
    code, _, err = launch(
        """
        time.sleep(0.2)
        sys.exit(1)
        """,
        *("--restarts", "1000", "--timeout", "2.5"),
    ).finish()
    assert code == 124
    assert err[-1].startswith("tfdist run: stopped at the limit of 2.5 s; still running then: ")
    assert 2 <= starts(tmp_path)["worker 0"] <= 13


def test_a_port_that_a_child_still_held_is_free_for_the_restarted_task(launch, tmp_path):
    code, _, err = launch(
        """
        import socket
        addresses = config["cluster"]["worker"]
        host, port = addresses[config["task"]["index"]].split(":")
        held = socket.create_server((host, int(port)), reuse_port=False)
        if tries == 1:
            if os.fork() == 0:
                # Much memory takes a while to be freed.
                block = bytearray(os.urandom(1 << 20) * 200)
                (here / f"child {me}").touch()
                wait_for_ever()
            wait_for_file("child *", 2)
            if me == "worker 0": sys.exit(1)
            wait_for_ever()
        """,
        *("--workers", "2", "--restarts", "1"),
    ).finish()
    assert code == 0, err
    assert starts(tmp_path) == {"worker 0": 2, "worker 1": 2}


def test_a_server_that_fails_after_training_is_a_failure(launch, tmp_path):
    code, _, err = launch(
        """
        if me == "ps 0":
            wait_for_end("pid chief 0")
            sys.exit(6)
        wait_for_file("pid *", 2)
        """,
        *("--ps", "1", "--restarts", "5"),
    ).finish()
    assert code == 6
    assert starts(tmp_path) == {"chief 0": 1, "ps 0": 1}


def test_logs_keep_what_all_tries_have_written(launch, tmp_path):
    code, _, _ = launch(
        """
        say(f"try {tries}")
        if tries == 1: os.kill(os.getpid(), signal.SIGKILL)
        """,
        *("--restarts", "1", "--log-dir", str(tmp_path / "logs")),
    ).finish()
    assert code == 0
    assert (tmp_path / "logs" / "worker-0.log").read_text() == (
        "try 1\ntfdist run: worker 0: killed by SIGKILL; restarted\ntry 2\n"
    )


def test_restarted_tasks_end_with_a_launcher_that_is_killed(launch, tmp_path):
    launched = launch(
        """
        if tries == 1: sys.exit(1)
        say("ready")
        wait_for_ever()
        """,
        *("--workers", "2", "--ps", "1", "--restarts", "3"),
    )
    assert launched.read_lines(3) == {"[chief] ready", "[worker 0] ready", "[ps 0] ready"}
    launched.process.kill()
    for path in tmp_path.glob("pid *"):
        wait_until_gone(int(path.read_text()))


def test_many_restarts_leave_nothing_open(launch):
    launched = launch(
        """
        if me == "chief 0":
            wait_for_file("start ps*", 61)
        elif tries <= 60:
            sys.exit(1)
        else:
            fds = len(os.listdir(f"/proc/{os.getppid()}/fd"))
            say(f"the launcher has {fds} files open")
        """,
        *("--ps", "1", "--restarts", "60"),
    )
    code, out, _ = launched.finish()
    assert code == 0
    (line,) = out
    assert int(line.split()[-3]) < 30
