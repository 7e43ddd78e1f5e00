"""`tfdist top`: its table, and tasks that do not answer or answer something else."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import socket
import threading
import time

import pytest

from single.observe.live.live_states import fit, serving, state, telling
from tfdist.cli.main import main
from tfdist.config.cluster import Cluster
from tfdist.config.job_file import JobFile
from tfdist.control.signing import metrics_token
from tfdist.observe.live import sampler
from tfdist.observe.live.records import ReportedState, TaskAnswer, activity
from tfdist.observe.live.sampler import Sampler
from tfdist.observe.live.table import describe, number, progress, size
from tfdist.observe.live.targets import Targets
from tfdist.observe.metrics.fit_progress import FitProgress

pytestmark = pytest.mark.timeout(60)
SECRET = "a secret of sixteen"


@pytest.fixture
def job_file(tmp_path):
    """Writes the job file of tasks at addresses, by name; returns its path."""

    def write(addresses, **fields):
        path = tmp_path / "job.json"
        cluster = Cluster(workers=("127.0.0.1:1", "127.0.0.1:2"), task_index=0)
        file = JobFile(cluster.tf_config(), SECRET, metrics=addresses)
        path.write_text(json.dumps({**dataclasses.asdict(file), **fields}))
        path.chmod(0o600)
        return str(path)

    return write


def free_address():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


def test_one_table(job_file, capsys):
    first = [state("worker 0", steps=n, waits={"worker 1": n / 100}) for n in (100, 110)]
    second = [state("worker 1", steps=n, waits={"worker 0": 0.0}) for n in (100, 110)]
    with telling(*first) as one, telling(*second) as other:
        job = job_file({"worker 0": one, "worker 1": other})
        assert main(["top", "--job", job, "--once", "--interval", "0.1"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "2 of 2 tasks answer"
    assert out[1].split()[:4] == ["task", "steps", "steps/s", "rows/s"]
    assert out[2].split()[:3] == ["worker", "0", "110"]
    # 0.05 s of a processor, and 0.1 s of waiting, in little more than 0.1 s.
    assert re.search(r"\b[1-5]\d %  300.0 MB", out[2])
    assert "worker 1" in out[2] and out[4].startswith("late: worker 1;")
    assert "\x1b" not in "".join(out)


def test_a_task_that_does_not_answer(job_file, capsys):
    with telling(state()) as one:
        job = job_file({"worker 0": one, "worker 1": free_address()})
        assert main(["top", "--job", job, "--once", "--interval", "0.05"]) == 1
    out = capsys.readouterr().out
    assert "1 of 2 tasks answer" in out
    assert "worker 1 at 127.0.0.1:" in out and "does not listen" in out


def test_a_job_that_ends(job_file, capsys, monkeypatch):
    path = job_file({"worker 0": free_address()})
    monkeypatch.setattr("pathlib.Path.exists", lambda self: False)
    assert main(["top", "--job", path, "--interval", "0.05"]) == 0
    assert "the job has ended" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"metrics": {}}, "several hosts without TFDIST_METRICS_PORT=0"),
        ({"secret": None}, "expected the job's secret"),
    ],
)
def test_a_job_that_tells_nothing(job_file, capsys, fields, text):
    for command in ("top", "dashboard"):
        assert main([command, "--job", job_file({"worker 0": "127.0.0.1:1"}, **fields)]) == 2
        assert f"tfdist {command}: error: " in (err := capsys.readouterr().err) and text in err


def test_targets(capsys, monkeypatch):
    monkeypatch.delenv("TFDIST_SECRET", raising=False)
    assert main(["top", "--targets", "127.0.0.1:1"]) == 2
    assert "secret" in capsys.readouterr().err
    monkeypatch.setenv("TFDIST_SECRET", SECRET)
    for wrong in (",", "host", "host:x"):
        assert main(["top", "--targets", wrong]) == 2
        assert "--targets: expected" in capsys.readouterr().err
    asked = []

    def answer(path, authorization):
        asked.append((path, authorization))
        return 200, json.dumps(state()).encode()

    with serving(answer) as address:
        assert main(["top", "--targets", address, "--once", "--interval", "0.05"]) == 0
    assert asked == 2 * [("/state?events=0", f"Bearer {metrics_token(SECRET.encode())}")]
    assert "worker 0" in capsys.readouterr().out


def ask(answer, timeout=2.0):
    with serving(lambda *request: answer) as address:
        one = Sampler(Targets({"worker 0": address}, b"secret"), timeout)
        try:
            (found,) = one.sample()
        finally:
            one.close()
        return found


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ((401, b""), "no secret, or another one"),
        ((404, b""), "status 404"),
        ((200, b"<html>"), "expected what a task of this release tells"),
        ((200, b"[" * 100_000), "expected what a task of this release tells"),
        ((200, b'{"format": 3}'), "expected format 2, received 3"),
        ((200, b"\xff"), "expected what a task of this release tells"),
    ],
)
def test_other_answers(answer, problem):
    found = ask(answer)
    assert found.state is None and problem in found.problem


def test_an_answer_that_is_too_long(monkeypatch):
    monkeypatch.setattr(sampler, "_MAX_BYTES", 100)
    assert "more than 100 bytes" in ask((200, b" " * 101)).problem


def test_an_answer_in_the_name_of_another_task():
    found = ask((200, json.dumps(state("worker 3")).encode()))
    assert found.state is None and "received: the state of 'worker 3'" in found.problem


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.0 200 OK\r\nX: ", b"HTTP/1.0 200 OK\r\n\r\n{"])
def test_an_answer_byte_by_byte_has_one_deadline(begin):
    """Each byte comes within the timeout: in the status line, the headers or the body."""
    ended = threading.Event()

    def drip():
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(begin)
            while not ended.wait(0.05):
                connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = threading.Thread(target=drip)
        task.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        one = Sampler(Targets({"worker 0": address}, b"secret"), timeout=0.5)
        asking = threading.Thread(target=lambda: seen.extend(one.sample()))
        seen = []
        began = time.monotonic()
        asking.start()
        # Much longer than the deadline, as the machine may be busy.
        asking.join(60)
        took = time.monotonic() - began
        ended.set()
        task.join()
        asking.join()
        one.close()
    assert took < 60 and seen[0].problem == "did not answer within 0.5 s"


def test_a_task_that_is_silent():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        one = Sampler(Targets({"worker 0": address}, b"secret"), timeout=0.2)
        (found,) = one.sample()
        one.close()
    assert found.problem == "did not answer within 0.2 s"


def test_names_do_not_control_the_terminal():
    found = ask((200, json.dumps(state("evil\x1b[2J\nworker", waits={"\x1b]0;x\x07": 1})).encode()))
    text = describe(activity([found], [found]))
    assert "\x1b" not in text and "\x07" not in text
    assert "evil\\x1b[2J\\nworker" in text


def test_where_fit_stands():
    first, second = state("worker 0", fit=fit()), state("worker 1", fit=fit(epoch=3))
    found = [TaskAnswer(s["task"], "a:1", 1.0, ReportedState.from_json(s)) for s in (first, second)]
    text = describe(activity(found, found))
    assert "worker 0: epoch 2 of 5, batch 3 of 10, 1 min left\n" in text + "\n"
    assert "epoch 3" not in text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"batches": None, "remaining": None}, "epoch 2 of 5, batch 3"),
        ({"remaining": 59.2}, "epoch 2 of 5, batch 3 of 10, 60 s left"),
        ({"remaining": 7 * 3600 + 125}, "epoch 2 of 5, batch 3 of 10, 7 h 2 min left"),
        ({"remaining": 50 * 3600}, "epoch 2 of 5, batch 3 of 10, 2 d 2 h left"),
        ({"has_ended": True, "remaining": 0.0}, "epoch 2 of 5, fit has ended"),
    ],
)
def test_the_words_of_progress(fields, text):
    assert progress(FitProgress(**fit(**fields))) == text


def test_units():
    rates = [number(value) for value in (None, 1.234, 12.34, 1234.5)]
    assert rates == ["-", "1.23", "12.3", "1234"]
    assert [size(value) for value in (None, 12, 1200, 3_400_000, 5.6e9)] == [
        *("-", "12 B", "1.2 KB", "3.4 MB", "5.6 GB"),
    ]
