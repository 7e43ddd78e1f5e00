"""`tfdist run --workers MIN:MAX`: failures, restarts, planned leaves and the end of the job."""

from __future__ import annotations

import json
import os
import re
import signal
import textwrap
import time
from pathlib import Path

import pytest

from support.launching import Launcher, wait_until_gone
from tfdist.launch.policies.elastic import Backoff, WorkerRange

pytestmark = pytest.mark.timeout(60)

# `tries` counts the starts of this task, this one included.
BODY = """
(here / f"start {me} {os.getpid()}").touch()
leave_pid()
tries = len(list(here.glob(f"start {me} *")))
def fail_like(number): os.kill(os.getpid(), number)
def wait_until_reaped(name, count):
    wait_for_file(name, count)
    def runs(path): return Path(f"/proc/{path.name.split()[-1]}").exists()
    while sum(not runs(path) for path in here.glob(name)) < count: time.sleep(0.01)
"""
QUICK = Backoff(first=0.05, longest=0.2)


@pytest.fixture
def launch(tmp_path):
    launcher = Launcher(tmp_path)
    yield lambda body, *options, **more: launcher(BODY + textwrap.dedent(body), *options, **more)
    launcher.close()


def starts(folder):
    """How often each worker was started, by its index."""
    counts = {}
    for path in folder.glob("start *"):
        index = int(path.name.split()[2])
        counts[index] = counts.get(index, 0) + 1
    return counts


def said(err):
    """Returns the launcher's messages without the path of the job file."""
    lines = [line.removeprefix("tfdist run: ") for line in err if line.startswith("tfdist run: ")]
    return [line for line in lines if "this job's file" not in line]


@pytest.mark.parametrize(("text", "count"), [("2:4", 2), ("1:4:3", 3), ("2:2", 2)])
def test_the_starting_number_runs_and_knows_all_slots(launch, tmp_path, text, count):
    code, out, err = launch(
        """
        say(json.dumps([os.environ["TFDIST_ELASTIC"], os.environ["TFDIST_SECRET"], config]))
        """,
        *("--workers", text),
    ).finish()
    assert code == 0 and said(err) == []
    assert starts(tmp_path) == dict.fromkeys(range(count), 1)
    told = [json.loads(line.partition("] ")[2]) for line in out]
    workers = WorkerRange.from_text(text)
    assert {elastic for elastic, _, _ in told} == {str(workers)}
    assert len({secret for _, secret, _ in told}) == 1
    (cluster,) = {json.dumps(config["cluster"]) for _, _, config in told}
    addresses = json.loads(cluster)["worker"]
    assert len(set(addresses)) == workers.maximum
    assert all(address.startswith("127.0.0.1:") for address in addresses)
    assert sorted(config["task"]["index"] for _, _, config in told) == list(range(count))


def test_the_variable_of_the_job_replaces_one_that_is_set(launch, monkeypatch):
    monkeypatch.setenv("TFDIST_ELASTIC", "7:9")
    code, out, _ = launch('say(os.environ["TFDIST_ELASTIC"])', "--workers", "1:2").finish()
    assert (code, out) == (0, ["[worker 0] 1:2:1"])


def test_the_start_timeout_is_a_variable_of_the_workers(launch):
    code, out, _ = launch(
        'say(os.environ["TFDIST_ELASTIC_START_TIMEOUT"])',
        *("--workers", "1:2", "--start-timeout", "7.5"),
    ).finish()
    assert (code, out) == (0, ["[worker 0] 7.5"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--workers", "1:2", "--start-timeout", "0"), "argument --start-timeout: expected "),
        (("--workers", "2", "--start-timeout", "7"), "--start-timeout: expected an elastic job"),
        (
            ("--workers", "1:2", "--start-timeout", "300"),
            "expected less than TFDIST_RENDEZVOUS_TIMEOUT",
        ),
    ],
)
def test_a_bad_start_timeout_is_refused(launch, options, message):
    code, _, err = launch("", *options).finish()
    assert code in (1, 2) and message in err[-1], err


def test_a_fixed_number_of_workers_sets_no_variable(launch, monkeypatch):
    monkeypatch.delenv("TFDIST_ELASTIC", raising=False)
    code, out, err = launch(
        'say(str("TFDIST_ELASTIC" in os.environ))', *("--workers", "2")
    ).finish()
    assert code == 0 and not err
    assert sorted(out) == ["[worker 0] False", "[worker 1] False"]


@pytest.mark.parametrize(("victim", "how"), [(0, "fail_like(signal.SIGKILL)"), (2, "sys.exit(7)")])
def test_a_failed_worker_is_restarted_alone(launch, tmp_path, victim, how):
    started = time.monotonic()
    code, _, err = launch(
        f"""
        if me == "worker {victim}" and tries == 1:
            wait_for_file("start *", 3)
            {how}
        wait_for_file("start worker {victim} *", 2)
        """,
        *("--workers", "2:4:3"),
    ).finish()
    assert code == 0, err
    assert starts(tmp_path) == {0: 1, 1: 1, 2: 1} | {victim: 2}
    cause = "exit code 7" if "exit" in how else "killed by SIGKILL"
    assert said(err) == [
        f"worker {victim} failed: {cause}; starting it again in 1 s (restarts left: 9)"
    ]
    # The first back-off is real: a second.
    assert time.monotonic() - started >= 1


def test_a_restarted_worker_has_the_same_address_and_a_free_port(launch, tmp_path):
    code, out, err = launch(
        """
        import socket
        host, port = config["cluster"]["worker"][config["task"]["index"]].split(":")
        held = socket.create_server((host, int(port)), reuse_port=False)
        say(port)
        if me == "worker 1" and tries == 1:
            if os.fork() == 0:
                (here / "child").touch()
                wait_for_ever()
            wait_for_file("child")
            fail_like(signal.SIGKILL)
        wait_for_file("start worker 1 *", 2)
        """,
        workers=WorkerRange(1, 2, 2),
        backoff=QUICK,
    ).finish()
    assert code == 0, err
    assert len([line for line in out if line.startswith("[worker 1]")]) == 2
    assert len(set(out)) == 2


def test_a_worker_that_fails_again_and_again_is_left_out(launch, tmp_path):
    code, _, err = launch(
        """
        if me == "worker 1":
            sys.exit(f"try {tries}")
        wait_until_reaped("start worker 1 *", 3)
        """,
        workers=WorkerRange(1, 3, 2),
        backoff=QUICK,
    ).finish()
    assert code == 0, err
    assert starts(tmp_path) == {0: 1, 1: 3}
    assert said(err) == [
        "worker 1 failed: exit code 1; starting it again in 0.05 s (restarts left: 9)",
        "worker 1 failed: exit code 1; starting it again in 0.1 s (restarts left: 8)",
        "worker 1 failed: exit code 1; it failed 3 times in a row, each within 60 s of its start; "
        "left out, workers now: 1",
    ]


def test_a_script_that_always_fails_ends_the_job_with_a_report(launch, tmp_path):
    code, _, err = launch(
        """
        sys.exit("usage: expected --data")
        """,
        workers=WorkerRange(1, 2),
        backoff=QUICK,
        log_dir=tmp_path / "logs",
    ).finish()
    assert code == 1
    assert starts(tmp_path) == {0: 3}
    assert said(err)[2:] == [
        "worker 0 has ended: exit code 1; it failed 3 times in a row, each within 60 s of its "
        "start; too few workers remain (0, expected at least 1)",
        *[line for line in said(err) if line.startswith("the job failed because of worker 0: ")],
        f"its whole output: {tmp_path}/logs/worker-0.log",
        "its last lines:",
    ]
    assert err[-1] == "    usage: expected --data"


def test_the_restarts_of_all_workers_are_limited(launch, tmp_path):
    code, _, err = launch(
        """
        if tries == 1:
            wait_for_file("start *", 3)
            if me == "worker 2": wait_for_file("start worker 1 *", 2)
            if me != "worker 0": sys.exit(5)
        wait_until_reaped("start worker 2 *", 1)
        """,
        *("--workers", "2:3:3", "--max-restarts", "1"),
    ).finish()
    assert code == 0, err
    assert starts(tmp_path) == {0: 1, 1: 2, 2: 1}
    assert said(err) == [
        "worker 1 failed: exit code 5; starting it again in 1 s (restarts left: 0)",
        "worker 2 failed: exit code 5; no restarts left; left out, workers now: 2",
    ]


def test_the_report_tells_what_ended_the_job_from_what_it_survived(launch):
    code, _, err = launch(
        """
        if me == "worker 1" and tries == 1:
            fail_like(signal.SIGKILL)
        if me == "worker 2" and tries == 1:
            wait_until_reaped("start worker 1 *", 1)
            sys.exit(3)
        wait_for_file("start worker 1 *", 2)
        if me == "worker 0":
            wait_until_reaped("start worker 2 *", 1)
            sys.exit(5)
        wait_for_ever()
        """,
        *("--workers", "3:3", "--max-restarts", "2"),
    ).finish()
    assert code == 5
    report = [line for line in said(err) if "the job failed" in line]
    assert len(report) == 1 and not any("failed first" in line for line in err)
    assert re.fullmatch(
        r"the job failed because of worker 0: exit code 5, [0-9.]+ s after its start; it had "
        r"survived the failures of worker 1 \(killed by SIGKILL\), worker 2 \(exit code 3\)",
        report[0],
    )


def test_with_fewer_than_the_minimum_the_job_fails_and_the_others_are_stopped(launch, tmp_path):
    code, _, err = launch(
        """
        if me == "worker 1":
            wait_for_file("start *", 2)
            print("no memory", file=sys.stderr)
            fail_like(signal.SIGKILL)
        wait_for_ever()
        """,
        *("--workers", "2:4", "--max-restarts", "0"),
    ).finish()
    assert code == 128 + signal.SIGKILL
    lines = said(err)
    assert lines[0] == (
        "worker 1 has ended: killed by SIGKILL; no restarts left; too few workers remain (1, "
        "expected at least 2); stopping worker 0"
    )
    assert lines[1].startswith("the job failed because of worker 1: killed by SIGKILL, ")
    assert err[-1] == "    no memory"
    for path in tmp_path.glob("pid *"):
        wait_until_gone(int(path.read_text()))


def test_after_the_first_end_nothing_is_restarted_and_a_failure_counts(launch, tmp_path):
    launched = launch(
        """
        wait_for_file("start *", 3)
        if me == "worker 1":
            wait_for_end("pid worker 0")
            fail_like(signal.SIGKILL)
        if me == "worker 2":
            wait_for_file("let go")
            say("saved")
        """,
        *("--workers", "1:3:3"),
    )
    while True:
        line = launched.process.stderr.readline().decode()
        if "worker 1 failed" in line:
            break
    # The others are not stopped.
    (tmp_path / "let go").touch()
    code, out, err = launched.finish()
    assert line == (
        "tfdist run: worker 1 failed: killed by SIGKILL; worker 0 has finished before, so the "
        "others end by themselves\n"
    )
    assert code == 137
    assert out == ["[worker 2] saved"]
    assert said(err)[0].startswith("the job failed because of worker 1: killed by SIGKILL, ")
    assert starts(tmp_path) == {0: 1, 1: 1, 2: 1}


@pytest.mark.parametrize("how", ["sys.exit(1)", "wait_for_ever()"])
def test_a_worker_that_comes_too_late_fails_no_job_that_has_finished(launch, tmp_path, how):
    code, _, err = launch(
        f"""
        if me == "worker 1" and tries == 1: fail_like(signal.SIGKILL)
        if me == "worker 0":
            wait_for_file("start worker 1 *", 2)
            sys.exit(0)
        leader, = (path.name.split()[-1] for path in here.glob("start worker 0 *"))
        state = lambda: Path(f"/proc/{{leader}}/stat").read_text().rpartition(")")[2].split()[0]
        while state() != "Z": time.sleep(0.01)
        {how}
        """,
        workers=WorkerRange(1, 2, 2),
        backoff=QUICK,
        signal_grace=0.5,
    ).finish()
    assert code == 0, err
    assert starts(tmp_path) == {0: 1, 1: 2}
    end = "exit code 1" if "exit" in how else "killed by SIGTERM"
    assert said(err)[-1] == f"worker 1 came too late: {end}; worker 0 has finished before"


def test_a_worker_that_waits_for_its_restart_is_not_needed_when_another_has_finished(
    launch, tmp_path
):
    code, _, err = launch(
        """
        if me == "worker 1": sys.exit(3)
        wait_until_reaped("start worker 1 *", 1)
        """,
        workers=WorkerRange(1, 2, 2),
        backoff=Backoff(first=50.0, longest=50.0),
    ).finish()
    assert code == 0, err
    assert starts(tmp_path) == {0: 1, 1: 1}
    assert said(err) == [
        "worker 1 failed: exit code 3; starting it again in 50 s (restarts left: 9)",
        "worker 0 has finished; worker 1 is not started again",
    ]


LEAVES = """
def leave(number, frame): say("leaves"); sys.exit(143)
signal.signal(signal.SIGTERM, leave)
say("ready")
"""


def test_a_worker_that_leaves_is_no_failure_and_the_others_go_on(launch, tmp_path):
    launched = launch(
        LEAVES
        + """
if me == "worker 1":
    if os.fork() == 0:
        (here / "child").write_text(str(os.getpid()))
    wait_for_ever()
wait_for_file("continue")
""",
        *("--workers", "2:3:3"),
    )
    launched.read_lines(3)
    while not (child := tmp_path / "child").exists() or not child.read_text():
        time.sleep(0.01)
    os.kill(int((tmp_path / "pid worker 1").read_text()), signal.SIGTERM)
    assert launched.read_lines(1) == {"[worker 1] leaves"}
    # Its children end with it, not with the job.
    wait_until_gone(int(child.read_text()))
    (tmp_path / "continue").touch()
    code, _, err = launched.finish()
    assert code == 0
    assert starts(tmp_path) == {0: 1, 1: 1, 2: 1}
    assert said(err) == ["worker 1 has left: exit code 143; workers now: 2"]


def test_if_all_leave_the_job_was_preempted(launch, tmp_path):
    launched = launch(LEAVES + "wait_for_ever()", *("--workers", "2:3"))
    launched.read_lines(2)
    launched.process.stderr.readline()  # the path of the job file
    for index, left in ((1, 1), (0, 0)):
        os.kill(int((tmp_path / f"pid worker {index}").read_text()), signal.SIGTERM)
        assert launched.process.stderr.readline().decode() == (
            f"tfdist run: worker {index} has left: exit code 143; workers now: {left}\n"
        )
    # Not from `finish`, which does not see what is in the reader's buffer.
    assert launched.process.stderr.readline() == b"tfdist run: all workers have left\n"
    assert launched.finish()[0] == 143


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_ends_all(launch, tmp_path, number):
    launched = launch(
        f"""
        signal.signal({int(number)}, lambda *_: sys.exit(4))
        say("ready")
        wait_for_ever()
        """,
        *("--workers", "2:5:3"),
    )
    launched.read_lines(3)
    launched.process.send_signal(number)
    code, _, err = launched.finish()
    assert code == 128 + number
    assert err[-1] == f"tfdist run: stopped by {number.name}"
    assert starts(tmp_path) == {0: 1, 1: 1, 2: 1}


def test_a_signal_ends_a_job_whose_workers_all_wait_for_their_restart(launch):
    launched = launch(
        "sys.exit(1)",
        workers=WorkerRange(2, 2),
        backoff=Backoff(first=50.0, longest=50.0),
    )
    seen = [launched.process.stderr.readline().decode() for _ in range(3)]
    assert all("starting it again in 50 s" in line for line in seen[1:])
    launched.process.send_signal(signal.SIGTERM)
    code, _, err = launched.finish()
    assert code == 143
    assert err[-1] == "tfdist run: stopped by SIGTERM"


def test_the_time_limit_includes_the_time_before_restarts(launch):
    code, _, err = launch(
        "sys.exit(1)",
        workers=WorkerRange(1, 2),
        backoff=Backoff(first=50.0, longest=50.0),
        timeout=1.5,
    ).finish()
    assert code == 124
    assert err[-1] == "tfdist run: stopped at the limit of 1.5 s; still running then: none"


def test_logs_keep_what_all_tries_have_written(launch, tmp_path):
    code, _, _ = launch(
        """
        say(f"try {tries}")
        if tries == 1: fail_like(signal.SIGKILL)
        """,
        workers=WorkerRange(1, 2),
        backoff=QUICK,
        log_dir=tmp_path / "logs",
    ).finish()
    assert code == 0
    assert (tmp_path / "logs" / "worker-0.log").read_text() == (
        "try 1\ntfdist run: worker 0: killed by SIGKILL; restarted\ntry 2\n"
    )


def test_a_worker_that_cannot_be_started_again_is_left_out(launch, tmp_path):
    launched = launch(
        """
        if me == "worker 1":
            log = here / "logs" / "worker-1.log"
            log.unlink()
            log.symlink_to(here / "precious")
            (here / "linked").touch()
            sys.exit(1)
        wait_for_file("linked")
        wait_for_file("let go")
        """,
        workers=WorkerRange(1, 2, 2),
        backoff=QUICK,
        log_dir=tmp_path / "logs",
    )
    seen = [launched.process.stderr.readline().decode() for _ in range(4)]
    (tmp_path / "let go").touch()
    code, _, err = launched.finish()
    assert code == 0
    assert "cannot start worker 1: " in seen[2]
    assert seen[2].endswith("; starting it again in 0.1 s (restarts left: 8)\n")
    assert "cannot start worker 1: " in seen[3] and "left out, workers now: 1" in seen[3]
    assert not (tmp_path / "precious").exists()


def test_nothing_is_left_when_the_launcher_is_killed(launch, tmp_path):
    launched = launch(
        """
        if tries == 1 and me == "worker 0": sys.exit(1)
        child = subprocess.Popen(["sleep", "1000"])
        say(f"{os.getpid()} {child.pid}")
        wait_for_ever()
        """,
        *("--workers", "2:3"),
    )
    lines = launched.read_lines(2)
    launched.process.kill()
    for line in lines:
        for pid in line.split()[2:]:
            wait_until_gone(int(pid))


@pytest.mark.long(
    covered_by="single/launch/test_launch_restarts.py::test_many_restarts_leave_nothing_open"
)
def test_many_restarts_leave_nothing_open(launch):
    code, out, _ = launch(
        """
        if me == "worker 1":
            if tries <= 40: sys.exit(1)
            say(f"the launcher has {len(os.listdir(f'/proc/{os.getppid()}/fd'))} files open")
        else:
            wait_for_file("start worker 1 *", 41)
        """,
        workers=WorkerRange(1, 2, 2),
        max_restarts=60,
        backoff=Backoff(first=0.001, longest=0.001, attempts=100),
    ).finish()
    assert code == 0
    (line,) = out
    assert int(line.split()[-3]) < 30


def test_the_job_file_is_told_and_removed(launch, tmp_path):
    launched = launch(
        """
        say("ready")
        wait_for_file("let go")
        """,
        *("--workers", "1:2"),
    )
    told = launched.process.stderr.readline().decode()
    assert told.startswith("tfdist run: this job's file, for 'tfdist top --job': ")
    path = Path(told.split()[-1])
    assert path.stat().st_mode & 0o777 == 0o600
    socket = Path(json.loads(path.read_text())["scale_socket"])
    assert socket.is_socket() and socket.stat().st_mode & 0o777 == 0o600
    assert socket.parent.stat().st_mode & 0o777 == 0o700
    (tmp_path / "let go").touch()
    assert launched.finish()[0] == 0
    assert not path.exists() and not socket.parent.exists()


def test_servers_run_beside_the_workers(launch, tmp_path):
    """A server that fails is started again at once, and takes one of the restarts."""
    code, out, err = launch(
        """
        if me.startswith("worker"):
            say(json.dumps(config["cluster"]))
            wait_for_file("start ps 1 *", 2)
            sys.exit()
        if me == "ps 1" and tries == 1:
            sys.exit(3)
        wait_for_file("end")
        """,
        *("--workers", "1:3:2", "--ps", "2"),
    ).finish()
    assert code == 0
    assert starts(tmp_path) == {0: 2, 1: 3}
    cluster = json.loads(out[0].partition("] ")[2])
    assert {role: len(addresses) for role, addresses in cluster.items()} == {"worker": 3, "ps": 2}
    assert said(err) == [
        "ps 1 failed: exit code 3; starting it again (restarts left: 9)",
        "training is done; ps 0 has 5 s to end",
        "training is done; ps 1 has 5 s to end",
    ]


def test_a_server_without_restarts_ends_the_job(launch):
    code, _, err = launch(
        """
        if me == "ps 0":
            wait_for_file("start worker *", 2)
            sys.exit(3)
        wait_for_ever()
        """,
        *("--workers", "2:2", "--ps", "1", "--max-restarts", "0"),
    ).finish()
    assert code == 3
    assert said(err)[0] == (
        "ps 0 has ended: exit code 3; no restarts left; stopping worker 0, worker 1"
    )


def test_a_guard_that_was_killed_is_started_again_and_guards(launch, tmp_path):
    launched = launch(
        """
        if me == "worker 1" and tries == 1:
            wait_for_file("go")
            sys.exit(3)
        if me == "worker 0" and os.fork() == 0:
            (here / "child").write_text(str(os.getpid()))
        wait_for_ever()
        """,
        workers=WorkerRange(1, 2, 2),
        backoff=QUICK,
    )
    launched.process.stderr.readline()  # the path of the job file
    pid = launched.process.pid
    while not (child := tmp_path / "child").exists() or not child.read_text():
        time.sleep(0.01)
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (guard,) = (one for one in children if b"guard.py" in Path(f"/proc/{one}/cmdline").read_bytes())
    os.kill(int(guard), signal.SIGKILL)
    assert b"the guard of the tasks had ended" in launched.process.stderr.readline()
    (tmp_path / "go").touch()
    assert b"worker 1 failed: exit code 3; starting it again" in launched.process.stderr.readline()
    while starts(tmp_path).get(1) != 2:
        time.sleep(0.01)
    launched.process.kill()
    # PR_SET_PDEATHSIG ends the workers, but not their children.
    wait_until_gone(int(child.read_text()))
