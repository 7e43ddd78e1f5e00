"""The report of `tfdist run` names the task that failed first, though another one ended first."""

from __future__ import annotations

import signal
import time
from types import SimpleNamespace

import pytest

from single.launch.failing_scripts import VICTIM_ENDS_FIRST
from support import tiers
from support.launching import Launcher
from tfdist.launch.findings import Findings, FirstFailure
from tfdist.launch.process import Exit
from tfdist.observe.failures import FailureNote


@pytest.fixture
def launch(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("TFDIST_DEBUG_DIR", raising=False)
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


@pytest.mark.parametrize(
    ("fails", "code", "reason"),
    [
        ('raise ValueError("a bad row")', 1, "ValueError: a bad row"),
        ("sys.exit(7)", 7, "exit code 7"),
        (
            'try: raise ValueError("a bad row")\n    except ValueError: sys.exit(7)',
            7,
            "ValueError: a bad row",
        ),
    ],
    ids=["exception", "exit", "handled"],
)
def test_the_task_that_failed_first_may_end_last(launch, tmp_path, fails, code, reason):
    for _ in range(tiers.rounds(1, long=7)):
        for file in ("failed", "pid worker 0"):
            (tmp_path / file).unlink(missing_ok=True)
        job = launch(VICTIM_ENDS_FIRST.replace("FAIL", fails), "--workers", "2")
        received, _, err = job.finish()
        (cause,) = [line for line in err if " failed first: " in line]
        assert cause.startswith(f"tfdist run: worker 1 failed first: {reason}"), err
        assert received == code


def test_the_report_tells_the_reason_once_and_its_place(launch):
    fails = 'raise ValueError("a bad row")'
    _, _, err = launch(VICTIM_ENDS_FIRST.replace("FAIL", fails), "--workers", "2").finish()
    ours = [line for line in err if line.startswith("tfdist run: ")]
    assert len([line for line in ours if "a bad row" in line.partition(": raise ")[0]]) == 1
    (place,) = [line for line in ours if line.startswith("tfdist run: it was at ")]
    assert place.endswith(f"in <module>: {fails}")


def test_no_line_blames_the_victim(launch):
    fails = 'raise ValueError("a bad row")'
    _, _, err = launch(VICTIM_ENDS_FIRST.replace("FAIL", fails), "--workers", "2").finish()
    assert err[-1].startswith("tfdist run: the tasks' last operations")
    assert not [line for line in err if line.startswith("tfdist run: worker 0 failed")]
    assert "tfdist run: worker 0 has ended: exit code 1; stopping worker 1" in err


def test_a_restart_of_all_names_the_cause(launch):
    fails = 'raise ValueError("a bad row")'
    body = 'import os, sys\nif os.environ["TFDIST_RESTARTS"] == "1": sys.exit(0)\n'
    body += VICTIM_ENDS_FIRST.replace("FAIL", fails)
    code, _, err = launch(body, "--workers", "2", "--restarts", "1").finish()
    assert code == 0, err
    ours = [line for line in err if line.startswith("tfdist run: ")]
    # No line on the dumps of the failure: the job has survived it.
    assert len(ours) == 2 and ours[0].endswith("then starting all again (restarts left: 0)")
    reason = "worker 1 failed first: ValueError: a bad row (exit code 1)"
    assert ours[1].removeprefix("tfdist run: ") in (reason, reason.removesuffix(" (exit code 1)"))


def task(name, code, at, told_at=None, restarts=0):
    """A task that ended `at` seconds ago, and was told to stop `told_at` seconds ago."""
    now = time.monotonic()
    return SimpleNamespace(
        spec=SimpleNamespace(name=name),
        restarts=restarts,
        exit=Exit(code, now - at),
        end=Exit(code, now - at),
        told_at=None if told_at is None else now - told_at,
        closing=None,
    )


def note(directory, name, ago, by_peer=False, restarts=0, code=1):
    kind, text = ("UnavailableError", "a peer ended") if by_peer else ("ValueError", "a bad row")
    FailureNote(name, restarts, time.time() - ago, kind, text, code, by_peer).write(directory)


def first(directory, *tasks, since=0.0):
    return Findings(directory, since).first(tasks[0], tasks)


def test_a_failure_by_a_peer_is_not_the_cause(tmp_path):
    # Its clock is ahead of the other host's.
    note(tmp_path, "worker 0", ago=9, by_peer=True)
    note(tmp_path, "worker 1", ago=3)
    found = first(tmp_path, task("worker 0", 1, at=2), task("worker 1", -15, at=1, told_at=2))
    assert (found.task.spec.name, found.code, found.reason) == (
        "worker 1",
        1,
        "ValueError: a bad row",
    )


def test_of_two_that_wait_for_each_other_the_one_that_was_told_is_not_the_cause(tmp_path):
    kind, reason = "InvalidArgumentError", "the ranks wait for each other in different collectives"
    for name, ago, text in (
        ("worker 1", 4, f"rank 1 of 2: ended by rank 0 (127.0.0.1:9): {reason}"),
        ("worker 0", 3, f"rank 0 of 2: {reason}"),
    ):
        FailureNote(name, 0, time.time() - ago, kind, text, 1, True).write(tmp_path)
    found = first(tmp_path, task("worker 1", 1, at=2), task("worker 0", 1, at=1))
    assert found.task.spec.name == "worker 0"


def test_a_killed_task_without_a_note_is_the_cause(tmp_path):
    note(tmp_path, "worker 0", ago=3, by_peer=True)
    killed = task("worker 1", -signal.SIGKILL, at=2)
    found = first(tmp_path, task("worker 0", 1, at=2.5), killed)
    assert found.task is killed and found.code == 137 and found.reason == "killed by SIGKILL"


@pytest.mark.parametrize("kind", ["after a signal", "of a former process", "of a former job"])
def test_a_note_that_does_not_count(tmp_path, kind):
    note(tmp_path, "worker 1", ago=1 if kind == "after a signal" else 5)
    other = task("worker 1", 1, at=0, told_at=2, restarts=int(kind == "of a former process"))
    since = time.time() + 60 if kind == "of a former job" else 0.0
    ended = task("worker 0", 3, at=2.5)
    assert first(tmp_path, ended, other, since=since).task is ended


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", "[" * 100_000, '{"format": 1, "task": 3}', '{"format": 1}']
)
def test_a_file_that_is_no_note(tmp_path, content):
    (tmp_path / "worker-1.failure").write_text(content)
    (tmp_path / "worker-1.json").write_text(content)
    ended = task("worker 0", 3, at=0)
    assert first(tmp_path, ended, task("worker 1", 1, at=0, told_at=1)).task is ended
    assert Findings(tmp_path, 0.0).sentences(FirstFailure(ended)) == []
