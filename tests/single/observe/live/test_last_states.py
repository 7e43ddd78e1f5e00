"""The last states of tasks: from their files, and as they were seen last."""

from __future__ import annotations

import json
import os
import time

import pytest

from single.observe.live.live_states import state
from tfdist.observe.live.last_states import LastStates
from tfdist.observe.live.records import ReportedState, TaskAnswer
from tfdist.observe.metrics import last_state

GONE = TaskAnswer("worker 0", "a:1", 50.0, problem="does not listen")


def seen(*, restarts=0, **fields):
    one = state(**fields)
    one["metrics"] = [["tfdist_restarts", [], restarts], ["tfdist_steps", [], fields["steps"]]]
    return TaskAnswer("worker 0", "a:1", 40.0, ReportedState.from_json(one))


def leave(folder, restarts=0, **fields):
    one = state(**fields)
    one["metrics"] = [["tfdist_restarts", [], restarts], ["tfdist_steps", [], fields["steps"]]]
    last_state.leave(folder, "worker 0", lambda: one)


def steps(answer):
    return answer.state.value("tfdist_steps")


def test_the_file_of_a_task_that_has_ended(tmp_path):
    leave(tmp_path, steps=9)
    os.utime(last_state.path_of(tmp_path, "worker 0"), (1, time.time() - 3600))
    last = LastStates(tmp_path)
    (found,) = last.complete([GONE])
    assert (found.name, found.address, found.problem) == ("worker 0", "a:1", "does not listen")
    assert steps(found) == 9 and time.monotonic() - found.at == pytest.approx(3600, abs=60)
    # An answer counts more, and the file more than an answer before the end.
    assert steps(last.complete([seen(steps=8)])[0]) == 8
    assert steps(last.complete([GONE])[0]) == 9


def test_a_task_that_was_killed_is_shown_as_it_was_seen_last(tmp_path):
    for folder in (None, tmp_path, tmp_path / "none"):
        last = LastStates(folder)
        assert last.complete([GONE]) == [GONE]
        last.complete([seen(steps=8)])
        (found,) = last.complete([GONE])
        assert steps(found) == 8 and (found.at, found.problem) == (40.0, "does not listen")


def test_the_file_of_a_former_process_counts_less_than_the_next_one(tmp_path):
    leave(tmp_path, steps=9)
    last = LastStates(tmp_path)
    last.complete([seen(steps=3, restarts=1)])
    assert steps(last.complete([GONE])[0]) == 3
    leave(tmp_path, steps=4, restarts=1)
    assert steps(last.complete([GONE])[0]) == 4


def test_a_crafted_file_is_none(tmp_path, monkeypatch):
    path = last_state.path_of(tmp_path, "worker 0")
    leave(tmp_path, steps=9)
    good = path.read_text()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(good)
    last = LastStates(tmp_path)
    for text in ("", "[" * 100_000, "{}", json.dumps(state("worker 1"))):
        path.write_text(text)
        assert last.complete([GONE]) == [GONE]
    for make in (lambda: path.symlink_to(elsewhere), lambda: os.mkfifo(path), path.mkdir):
        path.unlink()
        make()
        assert last.complete([GONE]) == [GONE]
