"""`tfdist run --hosts`: agents on loopback addresses, which a program in place of ssh starts."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import threading
import time
from unittest import mock

import pytest

from single.launch.failing_scripts import VICTIM_ENDS_FIRST
from single.launch.fake_ssh import make_fake_ssh
from support.launching import Launcher, wait_until_gone, without_locks
from support.patience import wait_until
from tfdist._version import __version__
from tfdist.launch.guarded import guarded
from tfdist.launch.hosts import agent as host_agent
from tfdist.launch.hosts import records
from tfdist.launch.hosts.connection import (
    AgentCommand,
    HostConnection,
    HostError,
    RemoteProcess,
)
from tfdist.launch.hosts.host_list import Host
from tfdist.launch.output import OutputStream
from tfdist.launch.process import ProcessSpec
from tfdist.observe.failures import FailureNote, note_of_exit

TWO = "127.0.0.2:1,127.0.0.3:2"


@pytest.fixture
def launch(tmp_path):
    launcher = Launcher(tmp_path)
    program = make_fake_ssh(tmp_path)

    def start(body, hosts, *options, **keywords):
        return launcher(body, "--ssh", str(program), "--hosts", hosts, *options, **keywords)

    yield start
    launcher.close()


def pids(folder, count):
    """Waits for the tasks' files of `leave_pid`; returns the ids of the processes."""
    wait_until(lambda: len(list(folder.glob("pid *"))) >= count, f"the start of {count} tasks")
    return [int(file.read_text()) for file in folder.glob("pid *")]


def test_tasks_get_their_environment_by_the_connection_alone(launch, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDIST_SECRET", secret := "0123456789abcdef" * 4)
    monkeypatch.setenv("TF_MINE", "of the job")
    monkeypatch.setenv("OTHER", "of the launcher")
    monkeypatch.setenv("CHOSEN", "an 'odd'\nvalue")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    code, out, err = launch(
        """
        import socket
        ports = [address.split(":") for address in config["cluster"]["worker"]]
        host, port = ports[config["task"]["index"]]
        socket.create_server((host, int(port))).close()
        names = ("TFDIST_SECRET", "TF_MINE", "OTHER", "CHOSEN", "TFDIST_SECRET_FILE")
        say(repr([os.environ.get(name) for name in names]))
        say(f"GPU {os.environ['CUDA_VISIBLE_DEVICES']}")
        say(f"{[host for host, _ in ports]} {Path.cwd()} {len(os.sched_getaffinity(0))}")
        os.write(2, b"half a line")
        """,
        TWO,
        "--env",
        "CHOSEN",
        "--bind",
        "core",
        "--gpus-per-worker",
        "1",
        "--log-dir",
        str(tmp_path / "logs"),
    ).finish()
    assert code == 0, err
    values = [secret, "of the job", None, "an 'odd'\nvalue", None]
    hosts = ["127.0.0.2", "127.0.0.3", "127.0.0.3"]
    cpus = len(os.sched_getaffinity(0))
    for worker, share in enumerate((cpus, max(1, cpus // 2), max(1, (cpus + 1) // 2))):
        assert f"[worker {worker}] {values}" in out
        assert f"[worker {worker}] {hosts} {os.getcwd()} {share}" in out
        assert f"[worker {worker}] GPU {max(0, worker - 1)}" in out  # the last two share a host
        assert f"[worker {worker}] half a line" in err
        assert (tmp_path / "logs" / f"worker-{worker}.log").read_text().endswith("half a line")
    arguments = (tmp_path / "ssh-arguments").read_text()
    assert "BatchMode=yes" in arguments
    assert not any(text in arguments for text in (secret, "of the job", "odd", "TF_CONFIG"))


def test_the_first_failure_ends_all_hosts_and_is_reported(launch, tmp_path):
    code, out, err = launch(
        """
        leave_pid()
        if me == "worker 2":
            wait_for_file("pid*", 3)
            say("no such data set")
            os.kill(os.getpid(), signal.SIGSEGV)
        wait_for_ever()
        """,
        TWO,
    ).finish()
    assert code == 128 + signal.SIGSEGV
    assert out == ["[worker 2] no such data set"]
    failed = "tfdist run: worker 2 on 127.0.0.3"
    assert err[0] == f"{failed} has ended: killed by SIGSEGV; stopping worker 0, worker 1"
    assert err[1].startswith(f"{failed} failed first: killed by SIGSEGV, after ")
    assert err[-1] == "    no such data set"
    for pid in pids(tmp_path, 3):
        wait_until_gone(pid)


def test_the_failure_of_another_host_is_the_cause_though_its_task_ends_last(launch):
    body = VICTIM_ENDS_FIRST.replace("FAIL", 'raise ValueError("a bad row")')
    code, _, err = launch(body, TWO).finish()
    assert code == 1
    (cause,) = [line for line in err if " failed first: " in line]
    reason = "worker 1 on 127.0.0.3 failed first: ValueError: a bad row"
    assert cause.startswith(f"tfdist run: {reason}"), err


def test_a_job_that_has_ended_well_leaves_no_dumps_on_its_hosts(launch, tmp_path):
    body = 'import os, sys\nif os.environ["TFDIST_RESTARTS"] == "1": sys.exit(0)\n'
    body += VICTIM_ENDS_FIRST.replace("FAIL", 'raise ValueError("a bad row")')
    code, _, err = launch(body, TWO, "--restarts", "1").finish()
    assert code == 0, err
    assert not [line for line in err if "debug explain" in line]
    assert not list(tmp_path.glob("tfdist-debug-*"))
    assert any("worker 1 on 127.0.0.3 failed first: ValueError: a bad row" in line for line in err)


def test_the_note_of_a_host_whose_clock_differs(host_that_says):
    host = host_that_says(HELLO)
    host._processes[0] = process = RemoteProcess(host, 0, [])
    note = FailureNote("worker 1", 0, 12.0, "ValueError", "a bad row", 1, False)
    fields = {"note": dataclasses.asdict(note), "note_age": 60.0, "about_kill": ""}
    closed = records.line("closed", task=0, code=1, **fields)
    with mock.patch.object(os, "read", lambda *arguments: closed + b"\n"):
        assert host.read_some()
    assert process.closed.note == dataclasses.replace(note, at=process.closed.note.at)
    assert abs(time.time() - 60 - process.closed.note.at) < 5


@pytest.mark.parametrize("fields", [{"at": "noon"}, {"text": None}, {"more": 1}])
def test_a_note_of_another_host_that_is_none(host_that_says, fields):
    host = host_that_says(HELLO)
    host._processes[0] = RemoteProcess(host, 0, [])
    note = {**dataclasses.asdict(note_of_exit(1, "worker 1", 0)), **fields}
    closed = records.line("closed", task=0, code=1, note=note, note_age=0.0, about_kill="")
    with mock.patch.object(os, "read", lambda *arguments: closed + b"\n"):
        assert not host.read_some()
    assert "expected records of tfdist, received" in host.problem


def test_the_memory_of_a_killed_task_is_that_of_its_host(launch):
    script = """
        if me == "worker 0": sys.exit(wait_for_ever())
        held = bytearray(300_000_000)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    code, _, err = launch(script, "127.0.0.2,127.0.0.3").finish()
    assert code == 137
    (line,) = (line for line in err if "GB of memory at most" in line)
    assert line.startswith("tfdist run: it had 0.3 GB of memory at most of ")


@pytest.mark.long(covered_by="single/launch/test_launch_restarts.py, single/launch/test_launch.py")
def test_restarts_and_more_output_than_pipes_hold(launch):
    code, out, err = launch(
        """
        again = int(os.environ["TFDIST_RESTARTS"])
        if not again:
            if me == "worker 1": sys.exit(3)
            wait_for_ever()
        for number in range(10000): say(f"{number:060}")
        """,
        TWO,
        "--restarts",
        "1",
    ).finish()
    assert code == 0, err
    restart = "exit code 3; stopping worker 0, worker 2, then starting all again (restarts left: 0)"
    assert err == [f"tfdist run: worker 1 on 127.0.0.3 failed: {restart}"]
    for worker in range(3):
        lines = [line for line in out if line.startswith(f"[worker {worker}]")]
        assert lines == [f"[worker {worker}] {number:060}" for number in range(10000)]


def test_sigterm_reaches_the_tasks_alone_and_they_end_with_143(launch, tmp_path):
    job = launch(
        """
        child = subprocess.Popen(["sleep", "60"])
        def notice(number, frame):
            say(f"saved, and the child is there: {child.poll() is None}")
            os._exit(143)
        signal.signal(signal.SIGTERM, notice)
        leave_pid()
        wait_for_ever()
        """,
        TWO,
    )
    started = pids(tmp_path, 3)
    job.process.send_signal(signal.SIGTERM)
    code, out, err = job.finish()
    assert code == 143, err
    assert sorted(out) == [f"[worker {i}] saved, and the child is there: True" for i in range(3)]
    for pid in started:
        wait_until_gone(pid)


def test_a_killed_launcher_leaves_nothing(launch, tmp_path):
    body = """
    (here / "agents" / str(os.getppid())).touch()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    leave_pid()
    wait_for_ever()
    """
    (tmp_path / "agents").mkdir()
    job = launch(body, TWO)
    left = pids(tmp_path, 3)
    left += [int(path.name) for path in (tmp_path / "agents").iterdir()]
    assert len(left) == 5
    job.process.kill()
    for pid in left:
        wait_until_gone(pid)
    assert not any(path.name.startswith("tfdist-") for path in without_locks(tmp_path))


def test_a_lost_host_is_the_first_failure_and_its_tasks_end(launch, tmp_path):
    job = launch(
        """
        leave_pid()
        say("runs")
        if me == "worker 1":
            wait_for_file("all run")
            os.kill(os.getppid(), signal.SIGKILL)
        wait_for_ever()
        """,
        TWO,
    )
    # The launcher has seen each start, not only the tasks.
    assert job.read_lines(3) == {f"[worker {index}] runs" for index in range(3)}
    started = pids(tmp_path, 3)
    (tmp_path / "all run").touch()
    code, _, err = job.finish()
    assert code == 255
    lost = "its host 127.0.0.3 was lost: the connection ended"
    assert err[0].startswith("tfdist run: worker 1 on 127.0.0.3 has ended: " + lost)
    assert "stopping worker 0" in err[0]
    for pid in started:
        wait_until_gone(pid)


@pytest.mark.parametrize(
    ("host", "message"),
    [
        (
            "127.0.0.9",
            "its agent did not start (exit code 255): ssh: connect to host 127.0.0.9 port 22: "
            "No route to host",
        ),
        ("127.0.0.8", "expected records of tfdist, received Welcome to node 8"),
    ],
)
def test_a_host_without_an_agent_is_named(launch, host, message):
    code, out, err = launch("say(me)", f"127.0.0.2,{host}").finish()
    assert code == 1 and not out
    assert err[-1] == f"tfdist run: error: host {host}: {message}"


def test_the_error_of_an_unreachable_host_is_the_only_line(launch):
    code, _, err = launch("say(me)", f"127.0.0.9,{TWO}").finish()
    assert code == 1
    (line,) = err
    assert line.startswith("tfdist run: error: host 127.0.0.9: ")
    assert line.count("No route to host") == 1


@pytest.mark.parametrize("received", [b"", b'{"folder": "/t'])
def test_an_agent_whose_launcher_hangs_up_at_once_ends_silently(tmp_path, received):
    command = AgentCommand([make_fake_ssh(tmp_path)])
    words = command.words(Host("127.0.0.2"))
    ended = subprocess.run(words, input=received, capture_output=True, timeout=30)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


def test_this_machine_needs_no_ssh_and_others_need_its_name(launch, tmp_path):
    code, out, err = launch("say(me)", "localhost:2").finish()
    assert code == 0 and sorted(out) == ["[worker 0] worker 0", "[worker 1] worker 1"], err
    assert not (tmp_path / "ssh-arguments").exists()
    code, _, err = launch("say(me)", "127.0.0.2,localhost").finish()
    expected = "expected this machine by a name at which the other hosts can reach it, received"
    assert code == 1 and err == [f"tfdist run: error: --hosts: {expected} localhost"]


def test_an_agent_that_hears_nothing_ends(monkeypatch, capsys):
    monkeypatch.setattr(records, "SILENCE", 0.2)
    ours, theirs = os.pipe()
    answers, out = os.pipe()
    wake, waker = os.pipe()
    with guarded() as guard:
        agent = host_agent.Agent(ours, OutputStream(out), guard, directories=str)
        thread = threading.Thread(target=agent.run, args=[wake])
        thread.start()
        os.write(theirs, records.line("beat") + b"\n")
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert "nothing heard from the launcher for 0.2 s" in capsys.readouterr().err
    for descriptor in (ours, theirs, answers, out, wake, waker):
        os.close(descriptor)


@pytest.fixture
def host_that_says(tmp_path):
    """Connects to a host whose agent says these lines, and reads nothing."""
    with contextlib.ExitStack() as stack:
        silent = stack.enter_context(open(os.devnull, "wb"))

        def connect(*lines):
            said = tmp_path / "said"
            said.write_bytes(b"".join(line + b"\n" for line in lines))
            program = ("sh", "-c", f"cat {said}; exec cat >/dev/null")
            connection = HostConnection(
                Host("there"), AgentCommand(program), OutputStream(silent.fileno())
            )
            stack.callback(connection.close)
            stack.callback(connection.hang_up)
            connection.wait_until_ready()
            return connection

        yield connect


HELLO = records.line("hello", version=__version__, cpus=[])


def test_an_exit_code_that_is_no_number(host_that_says):
    host = host_that_says(HELLO)
    host._processes[0] = RemoteProcess(host, 0, [])
    odd = records.line("exit", task=0, code=float("inf"))
    with mock.patch.object(os, "read", lambda *arguments: odd + b"\n"):
        assert not host.read_some()
    assert "expected records of tfdist, received" in host.problem


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "started", "task": 0},
        {"kind": "ports"},
        {"kind": "ports", "ports": [1]},
        {"kind": "ports", "ports": [1, float("inf")]},
        {"kind": "ports", "ports": [1, None]},
    ],
)
def test_ports_that_are_none(host_that_says, fields):
    host = host_that_says(HELLO)
    answer = records.line(**fields) + b"\n"
    host.pump = lambda done, timeout, late: host.read_some()
    with mock.patch.object(os, "read", lambda *arguments: answer):
        with pytest.raises(HostError, match="host there: expected an answer of tfdist to 'ports'"):
            host.free_ports(2)
    assert host.is_lost


@pytest.mark.parametrize("fields", [{"kind": "failed"}, {"kind": "failed", "errno": "two"}])
def test_a_failure_without_a_number(host_that_says, fields):
    host = host_that_says(HELLO)
    answer = records.line(**fields) + b"\n"
    with mock.patch.object(os, "read", lambda *arguments: answer):
        host.pump = lambda done, timeout, late: host.read_some()
        with pytest.raises(HostError, match="host there: expected an answer of tfdist to 'start'"):
            host.start(0, ProcessSpec({}, None, None), [])
