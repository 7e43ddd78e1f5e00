"""`tfdist run`: the tasks, and their output on the terminal and in logs."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

import pytest

from support.launching import Launcher, without_locks
from tfdist.cli.main import main
from tfdist.launch.output import LogFile
from tfdist.launch.run import LaunchOptions, plan
from tfdist.launch.supervisor import Supervisor


@pytest.fixture
def launch(tmp_path):
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


def configs(**options):
    return [
        (task.name, task.trains, json.loads(task.tf_config))
        for task in plan(LaunchOptions(Path("x.py"), **options), ports=[11, 12, 13, 14, 15])
    ]


def test_workers_only():
    cluster = {"worker": [f"127.0.0.1:{port}" for port in (11, 12, 13, 14, 15)]}
    assert configs(workers=5) == [
        (f"worker {i}", True, {"cluster": cluster, "task": {"type": "worker", "index": i}})
        for i in range(5)
    ]


def test_with_ps_and_evaluator_the_first_training_task_is_the_chief():
    cluster = {
        "chief": ["127.0.0.1:11"],
        "worker": ["127.0.0.1:12", "127.0.0.1:13"],
        "ps": ["127.0.0.1:14", "127.0.0.1:15"],
    }
    places = [("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0), ("ps", 1), ("evaluator", 0)]
    assert configs(workers=3, ps=2, evaluator=True) == [
        (
            "chief" if role == "chief" else f"{role} {index}",
            role in ("chief", "worker"),
            {"cluster": cluster, "task": {"type": role, "index": index}},
        )
        for role, index in places
    ]


def test_data_workers_come_with_their_dispatcher_and_need_no_chief():
    addresses = [f"127.0.0.1:{port}" for port in (11, 12, 13, 14, 15)]
    cluster = {
        "worker": addresses[:2],
        "data_dispatcher": addresses[2:3],
        "data_worker": addresses[3:],
    }
    places = [("worker", 0), ("worker", 1)]
    places += [("data_dispatcher", 0), ("data_worker", 0), ("data_worker", 1)]
    assert configs(workers=2, data_workers=2) == [
        (
            role if role == "data_dispatcher" else f"{role} {index}",
            role == "worker",
            {"cluster": cluster, "task": {"type": role, "index": index}},
        )
        for role, index in places
    ]


def test_a_single_worker_is_a_cluster_too():
    (task,) = plan(LaunchOptions(Path("x.py")))
    (address,) = json.loads(task.tf_config)["cluster"]["worker"]
    assert address.startswith("127.0.0.1:")


def test_output_of_both_streams_is_prefixed_and_arguments_pass_unchanged(launch):
    arguments = ["--workers", "9", "--", "--help", "a b"]
    code, out, err = launch(
        """
        say(me + " " + repr(sys.argv[1:]))
        print("complaint", file=sys.stderr)
        """,
        "--workers",
        "3",
        arguments=arguments,
    ).finish()
    assert code == 0
    assert sorted(out) == [f"[worker {i}] worker {i} {arguments!r}" for i in range(3)]
    assert sorted(err) == [f"[worker {i}] complaint" for i in range(3)]


def test_lines_of_every_kind(launch):
    code, out, err = launch(
        r"""
        os.write(1, b"10%\r20%\r")
        os.write(1, b"30%\r\nbad \xff byte\n\npart")
        os.write(1, b"ial\n" + b"x" * 200_000 + b"\nno end")
        """
    ).finish()
    assert code == 0
    assert not err
    texts = [line.removeprefix("[worker 0] ") for line in out]
    assert texts[:4] == ["30%", "bad \ufffd byte", "", "partial"]
    assert set("".join(texts[4:-1])) == {"x"} and len("".join(texts[4:-1])) == 200_000
    assert texts[-1] == "no end"


def test_long_lines_are_not_cut_inside_a_character():
    from tfdist.launch.output import MAX_LINE, LineAssembler

    lines = LineAssembler()
    text = "é" * MAX_LINE + "e" + "é" * MAX_LINE
    pieces = lines.feed(text.encode()) + lines.finish()
    assert len(pieces) > 3
    assert max(map(len, pieces)) <= MAX_LINE
    assert "".join(piece.decode() for piece in pieces) == "é" * MAX_LINE + "e" + "é" * MAX_LINE


@pytest.mark.long(covered_by="single/launch/test_elastic_launch.py")
def test_chatty_tasks_lose_nothing_and_wait_for_the_reader(launch, tmp_path):
    body = """
    for start in range(0, 200_000, 1000):
        lines = (f"{i:09d} {'y' * 80}\\n" for i in range(start, start + 1000))
        os.write(1, "".join(lines).encode())
    (here / me).touch()
    """
    launched = launch(body, "--workers", "2", streams={"stderr": subprocess.DEVNULL})
    seen = {0: -1, 1: -1}
    for number, line in enumerate(launched.process.stdout):
        name, rank, value, _ = line.split()
        rank = int(rank.rstrip(b"]"))
        assert name == b"[worker"
        assert int(value) == seen[rank] + 1
        seen[rank] += 1
        if number == 1000:
            before = peak_memory(launched.process.pid)
        elif number == 150_000:
            # 14 of 37 MB are read. Both tasks can have ended only if the rest is buffered.
            assert len(list(tmp_path.glob("worker ?"))) < 2
        elif number == 390_000:
            assert peak_memory(launched.process.pid) - before < 4 * 1024
    assert seen == {0: 199_999, 1: 199_999}
    assert launched.process.wait(timeout=60) == 0


def peak_memory(pid):
    """The most memory a process has had so far, in KiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0])


def test_a_log_that_the_disk_takes_in_part_is_incomplete(tmp_path):
    log = LogFile(tmp_path / "worker-0.log")
    _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        log.write(b"x" * 1500)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        log.close()
    assert log.path.stat().st_size == 1000
    assert log.error is not None and log.error.errno == errno.EFBIG


def test_a_full_stream_holds_its_limit_and_a_closed_one_nothing():
    from tfdist.launch.output import OutputStream

    readable, writable = os.pipe()
    try:
        stream = OutputStream(writable)
        count = 0
        while not stream.full:
            stream.line(b"z" * 999)
            count += 1
        assert 200 < count < 300
        stream.flush_some()
        assert stream.pending
        assert os.read(readable, 1000) == b"z" * 999 + b"\n"
        os.close(readable)
        stream.flush_some()
        assert not stream.pending
        stream.line(b"no process reads this")
        assert not stream.pending
    finally:
        os.close(writable)


def test_the_job_goes_on_when_nobody_reads_its_output_any_more(launch, tmp_path):
    launched = launch(
        """
        for i in range(20_000): say("line")
        (here / "done").touch()
        """
    )
    launched.process.stdout.readline()
    launched.process.stdout.close()
    assert launched.process.wait(timeout=30) == 0
    assert (tmp_path / "done").exists()


def test_logs_keep_everything_unchanged(launch, tmp_path):
    code, _, _ = launch(
        r"""
        os.write(1, f"{me} 10%\r20%\n".encode())
        os.write(2, b"\xff error")
        """,
        *("--workers", "2", "--ps", "1", "--log-dir", str(tmp_path / "new" / "logs")),
    ).finish()
    assert code == 0
    logs = {path.name: path.read_bytes() for path in (tmp_path / "new" / "logs").iterdir()}
    assert sorted(logs) == ["chief.log", "ps-0.log", "worker-0.log"]
    for name, role in (("chief.log", "chief"), ("worker-0.log", "worker"), ("ps-0.log", "ps")):
        # Two pipes: the order between the streams is not kept.
        assert logs[name] in (
            role.encode() + b" 0 10%\r20%\n\xff error",
            b"\xff error" + role.encode() + b" 0 10%\r20%\n",
        )


def test_logs_are_private_and_not_written_through_links(launch, tmp_path):
    (tmp_path / "precious").write_text("precious")
    assert launch("", "--log-dir", str(tmp_path)).finish()[0] == 0
    log = tmp_path / "worker-0.log"
    assert log.stat().st_mode & 0o777 == 0o600
    log.unlink()
    log.symlink_to(tmp_path / "precious")
    code, _, err = launch("", "--log-dir", str(tmp_path)).finish()
    assert code != 0 and "worker-0.log" in err[-1]
    assert (tmp_path / "precious").read_text() == "precious"


def test_on_a_terminal_rank_0_has_one_and_its_progress_bar_stays_last(launch, tmp_path):
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    launched = launch(
        r"""
        terminals = f"{sys.stdout.isatty()} {sys.stderr.isatty()} {sys.stdin.isatty()}"
        if me == "worker 0":
            say(terminals)
            say(f"{os.get_terminal_size(1).columns} columns")
            os.write(1, b"\r10%")
            wait_for_file("bar was drawn 2 times")
            os.write(1, b"\r100%\n")
        else:
            wait_for_file("bar was drawn 1 times")
            say(terminals)
        """,
        *("--workers", "2"),
        streams={"stdout": slave, "stderr": slave},
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            shown += os.read(master, 65536)
        except OSError:  # how a terminal says that its last user has gone
            break
        (tmp_path / f"bar was drawn {shown.count(b'10%')} times").touch()
    os.close(master)
    assert launched.process.wait(timeout=60) == 0
    text = shown.decode().replace("\r\n", "\n").partition("\n")[2]  # behind the job file's path
    zero, one = "\x1b[36m[worker 0] \x1b[0m", "\x1b[33m[worker 1] \x1b[0m"
    # The bar makes room for the line, is drawn again below it, and at last becomes a line itself.
    assert text == (
        f"{zero}True True False\n{zero}69 columns\n\r\x1b[K{zero}10%"
        f"\r\x1b[K{one}False False False\n\r\x1b[K{zero}10%\r\x1b[K{zero}100%\n"
    )


def test_what_cannot_be_written_is_said(launch, tmp_path):
    (tmp_path / "file").touch()
    code, _, err = launch("say('never')", "--log-dir", str(tmp_path / "file" / "logs")).finish()
    assert code == 1
    assert err == [f"tfdist run: error: [Errno 20] Not a directory: '{tmp_path}/file/logs'"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_before_the_first_task_leaves_no_file(tmp_path, monkeypatch, number):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    (tmp_path / "script.py").touch()
    job_file = tmp_path / "job.json"

    def run_supervisor(supervisor):
        assert job_file.exists() and list(folder.iterdir())
        os.kill(os.getpid(), number)
        time.sleep(5)  # until the signal is handled

    monkeypatch.setattr(Supervisor, "run", run_supervisor)
    words = ["run", "--workers", "1:2", "--job-file", str(job_file), str(tmp_path / "script.py")]
    # Tests that run in the background ignore some signals.
    handler = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    inherited = signal.signal(number, handler)
    try:
        if number == signal.SIGINT:
            assert main(words) == 130
        else:
            with pytest.raises(SystemExit) as ended:
                main(words)
            assert ended.value.code == 128 + number
        assert signal.getsignal(number) == handler
    finally:
        signal.signal(number, inherited)
    assert not job_file.exists() and not without_locks(folder)
