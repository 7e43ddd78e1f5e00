"""`tfdist scale`: workers join and leave while the others continue."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import tfdist.cli.main
from support import tiers
from support.elastic.control_tasks import Background
from support.launching import PACKAGE, Launcher, wait_until_gone, without_locks
from support.patience import wait_until
from tfdist.config.job_file import JobFile
from tfdist.launch import scale_channel
from tfdist.launch.policies.elastic import Backoff, ScaleError, WorkerRange
from tfdist.launch.private_directory import private_directory

pytestmark = pytest.mark.timeout(60)

BODY = """
(here / f"start {me} {os.getpid()}").touch()
leave_pid()
tries = len(list(here.glob(f"start {me} *")))
"""
LEAVES = """
def leave(number, frame): say("leaves"); sys.exit(143)
signal.signal(signal.SIGTERM, leave)
say("ready")
wait_for_file("end")
"""


class Job:
    """A running elastic job."""

    def __init__(self, launcher, folder, body, options, keywords):
        self.folder = folder
        self.file = folder / "job.json"
        if keywords:
            keywords["job_file"] = self.file
        else:
            options = (*options, "--job-file", str(self.file))
        self.launched = launcher(BODY + textwrap.dedent(body), *options, **keywords)

    def scale(self, count):
        """Runs `tfdist scale`; returns its exit code, stdout and stderr, as lines."""
        done = subprocess.run(
            [sys.executable, "-m", "tfdist", "scale", str(count), "--job", str(self.file)],
            env={**os.environ, "PYTHONPATH": PACKAGE},
            capture_output=True,
            text=True,
            timeout=30,
        )
        return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()

    def ready(self, *indexes):
        expected = {f"[worker {index}] ready" for index in indexes}
        assert self.launched.read_lines(len(indexes)) == expected

    def leaves(self, *indexes):
        expected = {f"[worker {index}] leaves" for index in indexes}
        assert self.launched.read_lines(len(indexes)) == expected

    def read_errors(self, count):
        lines = [self.launched.process.stderr.readline().decode() for _ in range(count)]
        return [line.rstrip("\n").removeprefix("tfdist run: ") for line in lines]

    def pid(self, index):
        return int((self.folder / f"pid worker {index}").read_text())

    def finish(self):
        (self.folder / "end").touch()
        code, _, err = self.launched.finish()
        return code, [line.removeprefix("tfdist run: ") for line in err]


@pytest.fixture
def start(tmp_path):
    launcher = Launcher(tmp_path)
    yield lambda body, *options, **keywords: Job(launcher, tmp_path, body, options, keywords)
    launcher.close()


def test_up_down_and_up_again(start, tmp_path):
    job = start(LEAVES, *("--workers", "1:4:2"))
    job.ready(0, 1)
    assert job.scale(4) == (
        0,
        ["workers: 2 before, 4 now", "worker 2: started", "worker 3: started"],
        [],
    )
    job.ready(2, 3)
    pids = {index: job.pid(index) for index in range(4)}
    assert job.scale(1) == (
        0,
        ["workers: 4 before, 1 now"]
        + [f"worker {index}: told to leave (SIGTERM)" for index in (1, 2, 3)]
        + [
            "START is 2: a job that has not begun yet, or begins again after all its workers have "
            "died, waits for 2 workers"
        ],
        [],
    )
    job.leaves(1, 2, 3)
    for index in (1, 2, 3):
        wait_until_gone(pids[index])
    # The lines with "has left" follow the lines of `scale`: the slots are free now.
    lines = job.read_errors(3 + 5 + 3)
    assert sorted(lines[-3:]) == [
        f"worker {index} has left: exit code 143; workers now: 1" for index in (1, 2, 3)
    ]
    assert job.scale(2) == (0, ["workers: 1 before, 2 now", "worker 1: started"], [])
    job.ready(1)
    assert job.scale(2) == (0, ["workers: 2 before, 2 now"], [])
    code, lines = job.finish()
    assert code == 0
    assert lines == [
        "scale: workers: 1 before, 2 now",
        "scale: worker 1: started",
        "scale: workers: 2 before, 2 now",
    ]
    counts = {i: len(list(tmp_path.glob(f"start worker {i} *"))) for i in range(4)}
    assert counts == {0: 1, 1: 2, 2: 1, 3: 1}


def test_the_children_of_a_leaving_worker_are_not_told(start):
    job = start(
        """
        child = subprocess.Popen(["sleep", "1000"])
        def leave(number, frame): say(f"child {child.poll()}"); sys.exit(143)
        signal.signal(signal.SIGTERM, leave)
        say("ready")
        wait_for_file("end")
        """,
        *("--workers", "1:2:2"),
    )
    job.ready(0, 1)
    assert job.scale(1)[0] == 0
    assert job.launched.read_lines(1) == {"[worker 1] child None"}
    assert job.finish()[0] == 0


@pytest.mark.parametrize("code", [0, 3])
def test_a_worker_that_was_told_to_leave_has_left_with_any_exit_code(start, code):
    job = start(LEAVES.replace("143", str(code)), *("--workers", "1:2:2"))
    job.ready(0, 1)
    assert job.scale(1)[0] == 0
    job.leaves(1)
    assert job.read_errors(4)[3] == f"worker 1 has left: exit code {code}; workers now: 1"
    # The job has not finished: it can grow.
    assert job.scale(2)[0] == 0
    job.ready(1)
    assert job.finish()[0] == 0


def test_a_worker_that_does_not_leave_is_killed_after_the_grace(start):
    job = start(
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        say("ready")
        wait_for_file("end")
        """,
        *("--workers", "1:2:2", "--grace", "0.3"),
    )
    job.ready(0, 1)
    assert job.scale(1)[0] == 0
    assert job.read_errors(5)[3:] == [
        "killing worker 1, which did not leave within 0.3 s",
        "worker 1 has left: killed by SIGKILL; workers now: 1",
    ]
    assert job.finish()[0] == 0


def test_a_leaving_worker_is_started_again_when_it_is_asked_back(start, tmp_path):
    job = start(
        """
        def leave(number, frame):
            wait_for_file("may leave")
            sys.exit(143)
        signal.signal(signal.SIGTERM, leave)
        say("ready")
        wait_for_file("end")
        """,
        *("--workers", "1:2:2"),
    )
    job.ready(0, 1)
    assert job.scale(1)[0] == 0
    assert job.scale(2)[1] == [
        "workers: 1 before, 2 now",
        "worker 1: leaves first, then starts",
    ]
    (tmp_path / "may leave").touch()
    job.ready(1)
    assert job.read_errors(6)[5] == (
        "worker 1 has left: exit code 143; starting it again, as 'tfdist scale' asked"
    )
    assert job.finish()[0] == 0


def test_scaling_down_cancels_a_restart(start, tmp_path):
    job = start(
        """
        if me == "worker 1": sys.exit(3)
        say("ready")
        wait_for_file("end")
        """,
        workers=WorkerRange(1, 2, 2),
        backoff=Backoff(first=50.0, longest=50.0),
    )
    job.ready(0)
    job.read_errors(1)
    lines = job.scale(1)[1]
    assert lines[:2] == ["workers: 2 before, 1 now", "worker 1: is not started again"]
    code, _ = job.finish()
    assert code == 0
    assert len(list(tmp_path.glob("start worker 1 *"))) == 1


def test_scaling_up_revives_a_slot_that_was_left_out(start):
    job = start(
        """
        if me == "worker 1" and tries <= 3: sys.exit(3)
        say("ready")
        wait_for_file("end")
        """,
        workers=WorkerRange(1, 2, 2),
        backoff=Backoff(first=0.05, longest=0.05),
    )
    job.ready(0)
    assert job.read_errors(3)[2].endswith("; left out, workers now: 1")
    assert job.scale(2)[1] == ["workers: 1 before, 2 now", "worker 1: started"]
    job.ready(1)
    assert job.finish()[0] == 0


class Worker:
    """A running worker, by a handle that never names another process."""

    def __init__(self, job, index):
        pid = job.pid(index)
        self.handle = os.pidfd_open(pid)
        try:
            state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
            if int(parent) != job.launched.process.pid or state == "Z":
                raise ProcessLookupError
        except OSError:
            os.close(self.handle)
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.handle)


@pytest.mark.parametrize("seed", range(tiers.rounds(2, long=20)))
def test_random_kills_leaves_and_sizes(start, seed):
    choose = random.Random(seed)
    job = start(
        LEAVES,
        workers=WorkerRange(1, 5, 3),
        max_restarts=10_000,
        backoff=Backoff(first=0.001, longest=0.02, attempts=10_000),
    )
    job.ready(0, 1, 2)

    def scale(count):
        path = JobFile.read(job.file).scale_socket
        return scale_channel.request_scale(Path(path), count, timeout=60)

    def runs(index):
        with contextlib.suppress(OSError), Worker(job, index):
            return True
        return False

    for _ in range(60):
        if choose.random() < 0.4:
            count = choose.randint(1, 5)
            assert f", {count} now" in scale(count)[0]
            continue
        index = choose.randrange(5)
        # Worker 0 does not leave: the job would end if it were the last one.
        number = choose.choice([signal.SIGKILL, signal.SIGTERM if index else signal.SIGKILL])
        with contextlib.suppress(OSError), Worker(job, index) as worker:
            signal.pidfd_send_signal(worker.handle, number)
    scale(1)
    scale(5)
    wait_until(lambda: all(runs(index) for index in range(5)), "five workers")
    code, lines = job.finish()
    assert code == 0
    assert any("has left" in line for line in lines)
    assert any("starting it again" in line for line in lines)
    # A worker that gets a second SIGTERM within its handler may have one.
    own = [line for line in lines if not line.startswith("[worker")]
    assert not any("Traceback" in line for line in own), own
    assert not job.file.exists()


@pytest.mark.parametrize("count", [1, 5])
def test_a_number_outside_the_range_is_refused(start, count):
    job = start(LEAVES, *("--workers", "2:4"))
    job.ready(0, 1)
    assert job.scale(count) == (
        2,
        [],
        [
            "tfdist scale: error: expected 2 to 4 workers, as the job was started with, received "
            f"{count}"
        ],
    )
    assert job.finish() == (0, [])


def test_a_job_that_is_ending_is_not_changed(start, tmp_path):
    job = start(
        """
        signal.signal(signal.SIGTERM, lambda *_: say("saves"))
        say("ready")
        if me == "worker 1": wait_for_file("end")
        else: wait_for_file("finish")
        """,
        *("--workers", "1:3:2"),
    )
    job.ready(0, 1)
    (tmp_path / "finish").touch()
    wait_until_gone(job.pid(0))
    assert job.scale(3)[::2] == (
        2,
        ["tfdist scale: error: the job is ending: worker 0 has finished"],
    )
    job.launched.process.send_signal(signal.SIGTERM)
    assert job.launched.read_lines(1) == {"[worker 1] saves"}
    assert job.scale(3) == (2, [], ["tfdist scale: error: the job is ending"])
    assert job.finish()[0] == 143


def test_a_job_whose_last_output_is_not_read_has_ended(start, tmp_path):
    job = start(
        """
        say("ready")
        wait_for_file("finish")
        for _ in range(200): say("x" * 1000)
        """,
        *("--workers", "1:2"),
    )
    job.ready(0)
    pid = job.pid(0)
    (tmp_path / "finish").touch()
    wait_until_gone(pid)
    # It is reaped at the end; the launcher then waits for its reader.
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.01)
    assert job.scale(2) == (2, [], ["tfdist scale: error: the job has ended"])
    assert job.finish() == (0, [])


def test_what_a_client_asked_that_has_given_up_is_not_done(start, tmp_path):
    job = start(LEAVES, *("--workers", "1:4:2"))
    job.ready(0, 1)
    path = Path(JobFile.read(job.file).scale_socket)
    launcher = job.launched.process
    launcher.send_signal(signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        scale_channel.request_scale(path, 4, timeout=0.2)
    launcher.send_signal(signal.SIGCONT)
    assert job.read_errors(1) == ["scale: 4 workers: not done, since the asker has gone"]
    assert job.finish() == (0, [])
    assert not list(tmp_path.glob("start worker 2 *"))


def test_a_job_of_fixed_size_is_refused(start):
    job = start(LEAVES, *("--workers", "2"))
    job.ready(0, 1)
    assert job.scale(3) == (
        2,
        [],
        [
            f"tfdist scale: error: {job.file}: expected an elastic job, as 'tfdist run --workers "
            "MIN:MAX' starts, received one with a fixed number of workers"
        ],
    )
    assert job.finish() == (0, [])


def test_a_job_that_has_ended_is_refused(start):
    job = start(LEAVES, *("--workers", "1:2"))
    job.ready(0)
    assert job.finish() == (0, [])
    code, out, (err,) = job.scale(2)
    assert (code, out) == (2, [])
    assert err.startswith(f"tfdist scale: error: {job.file}: the job has ended: exit code 0, ")


def test_a_launcher_that_was_killed_has_left_a_file(start):
    job = start(LEAVES, *("--workers", "1:2"))
    job.ready(0)
    pid = job.pid(0)
    job.launched.process.kill()
    wait_until_gone(pid)
    code, out, (err,) = job.scale(2)
    assert (code, out) == (2, [])
    told = f"tfdist scale: error: {job.file}: the job has ended: its launcher was killed; "
    assert err.startswith(told)


def test_the_next_launcher_removes_what_a_killed_one_has_left(start, monkeypatch, tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    job = start(LEAVES, *("--workers", "1:2"))
    job.ready(0)
    with scale_channel.scale_listener() as (_, path):
        # The running launcher's socket stays.
        assert len(list(folder.glob("tfdist-job-*"))) == 2 and path.is_socket()
        pid = job.pid(0)
        job.launched.process.kill()
        job.launched.process.wait()
        wait_until_gone(pid)
        with scale_channel.scale_listener() as (_, other):
            assert set(folder.glob("tfdist-job-*")) == {path.parent, other.parent}
            assert other.parent.stat().st_mode & 0o777 == 0o700
    for prefix in ("tfdist-debug-", "tfdist-ended-"):
        with private_directory(prefix):
            assert len(list(folder.glob(f"{prefix}*"))) == 1
    assert without_locks(folder) == set()


def scaled(capsys, *arguments):
    code = tfdist.cli.main.main(["scale", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert not out
    return code, err


@pytest.mark.parametrize(
    ("content", "received"),
    [
        (b"", "0 bytes that are no JSON"),
        (b"no json", "7 bytes that are no JSON"),
        (b"\xff\xfe\x80", "3 bytes that are no JSON"),
        (b"[]", "JSON of another kind (list)"),
        (b"{}", "a JSON object without 'cluster'"),
        (b'{"cluster": "{}", "x\\ny": 1}', "a JSON object with 'x\\ny', which no job file has"),
        (b'{"cluster": null}', "'cluster' of another kind (NoneType)"),
        (b'{"cluster": "{}", "scale_socket": 3}', "'scale_socket' of another kind (int)"),
        (
            b'{"cluster": "{}", "scale_socket": "/tmp/\\u0000"}',
            "'scale_socket' with characters that it cannot have",
        ),
    ],
)
def test_what_is_no_job_file_is_refused(capsys, tmp_path, content, received):
    path = tmp_path / "job.json"
    path.write_bytes(content)
    path.chmod(0o600)
    expected = f"{path}: expected a job file of your own, as 'tfdist run' writes"
    assert scaled(capsys, 2, "--job", path) == (
        2,
        f"tfdist scale: error: {expected}, received: {received}\n",
    )


def test_a_file_in_no_directory_is_refused(capsys, tmp_path):
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "job.json"
    assert scaled(capsys, 2, "--job", path) == (
        2,
        f"tfdist scale: error: {path}: expected a job file: Not a directory\n",
    )


@pytest.mark.parametrize("kind", ["absent", "absent directory", "file"])
def test_a_socket_that_is_not_there_means_that_the_job_has_ended(capsys, tmp_path, kind):
    socket_path = tmp_path / "absent" / "scale" if "directory" in kind else tmp_path / "scale"
    if kind == "file":
        socket_path.touch()
    with JobFile("{}", scale_socket=str(socket_path)).written(tmp_path / "job.json") as path:
        assert scaled(capsys, 2, "--job", path) == (
            2,
            f"tfdist scale: error: {path}: the job has ended\n",
        )


def test_a_launcher_that_does_not_answer_is_not_waited_for(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("tfdist.cli.scale._TIMEOUT", 0.2)
    with (
        scale_channel.scale_listener() as (_, path),
        JobFile("{}", scale_socket=str(path)).written(tmp_path / "job.json") as file,
    ):
        assert scaled(capsys, 2, "--job", file) == (
            1,
            f"tfdist scale: error: {file}: the launcher did not answer within 0.2 s\n",
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["scale", "--job", "x"], "the following arguments are required: N"),
        (["scale", "0", "--job", "x"], "expected a whole number, 1 or more, received '0'"),
        (["scale", "2:4", "--job", "x"], "expected a whole number, 1 or more, received '2:4'"),
    ],
)
def test_a_wrong_command_line_is_refused(capsys, arguments, message):
    with pytest.raises(SystemExit) as ended:
        tfdist.cli.main.main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


class Served:
    """A `ScaleServer` in this process, and what it was asked."""

    def __init__(self, listener, path):
        self.readers = {}
        self.asked = []
        self.path = path
        self.server = scale_channel.ScaleServer(self.readers, self.asked.append, listener)
        self.clients = []

    def connect(self):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.settimeout(5)
        client.connect(str(self.path))
        self.clients.append(client)
        self.handle()
        return client

    def handle(self):
        """Handles all input, as the supervisor's loop does; nothing here blocks."""
        for descriptor in list(self.readers):
            if descriptor in self.readers:
                self.readers[descriptor]()

    def close(self):
        self.server.close()
        for client in self.clients:
            client.close()


@pytest.fixture
def served():
    with scale_channel.scale_listener() as (listener, path):
        served = Served(listener, path)
        yield served
        served.close()


@pytest.mark.parametrize(
    "data",
    [b"\xff", b"2", b"null", b"{}", b'{"workers": "2"}', b'{"workers": true}', b'{"workers": 2.0}']
    + [b'{"workers": 2' + b" " * 5000 + b"}", b"[" * 1000, b'{"workers": ' + b"9" * 900],
)
def test_what_is_no_request_is_refused_and_not_believed(served, data):
    client = served.connect()
    client.send(data)
    served.handle()
    assert "expected a number of workers" in json.loads(client.recv(4096))["refused"]
    assert client.recv(4096) == b"" and not served.asked
    assert len(served.readers) == 1


def test_clients_that_say_nothing_or_go_are_forgotten(served):
    for _ in range(30):
        served.connect()
    assert len(served.readers) == 1 + 8
    refused = {"refused": "too many others ask at the same time"}
    assert json.loads(served.clients[0].recv(100)) == refused
    assert served.clients[0].recv(100) == b""
    for client in served.clients:
        client.close()
    served.handle()
    assert len(served.readers) == 1
    # A client that sends its request and goes gets no answer; that is no error.
    client = served.connect()
    client.send(b'{"workers": 3}')
    served.handle()
    (request,) = served.asked
    assert request.workers == 3 and request.is_awaited
    client.close()
    assert not request.is_awaited
    request.done(["worker 2: started"])


def test_a_client_waits_while_others_wait_for_the_launcher(served):
    # The launcher does not accept now: the kernel queues as many as these.
    with contextlib.suppress(BlockingIOError):
        while len(served.clients) < 1000:
            served.clients.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            served.clients[-1].setblocking(False)
            served.clients[-1].connect(str(served.path))
    assert 8 < len(served.clients) < 1000
    with pytest.raises(TimeoutError):
        scale_channel.request_scale(served.path, 2, timeout=0.2)
    call = Background(scale_channel.request_scale, served.path, 2, timeout=20)
    while not served.asked:
        served.handle()
    served.asked[0].done(["workers: 1 before, 2 now"])
    assert call.result() == ["workers: 1 before, 2 now"]


def test_another_user_is_not_served(served, monkeypatch):
    monkeypatch.setattr(scale_channel, "user_of", lambda peer: os.geteuid() + 1)
    client = served.connect()
    assert client.recv(100) == b"" and len(served.readers) == 1
    with pytest.raises(PermissionError, match="another user listens at"):
        scale_channel.request_scale(served.path, 2, timeout=5)


def test_the_kernel_names_the_user(served):
    client = served.connect()
    assert scale_channel.user_of(client) == os.geteuid()


def test_a_path_may_be_longer_than_a_socket_address(tmp_path, monkeypatch):
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with scale_channel.scale_listener() as (listener, path):
        assert len(str(path)) > 107
        child = os.fork()
        if child == 0:
            code = 1
            try:
                scale_channel.request_scale(path, 5, timeout=60)
            except ScaleError as error:
                code = 0 if str(error) == "not today" else 2
            finally:
                os._exit(code)
        readers, asked = {}, []
        server = scale_channel.ScaleServer(readers, asked.append, listener)

        def is_asked() -> bool:
            for handler in list(readers.values()):
                handler()
            return bool(asked)

        wait_until(is_asked, "the request")
        (request,) = asked
        assert request.workers == 5
        request.refuse("not today")
        server.close()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
