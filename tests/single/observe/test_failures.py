"""The note that a task writes when it fails."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from tfdist.config.cluster import Cluster
from tfdist.errors import RendezvousTimeoutError
from tfdist.observe import failures
from tfdist.observe.recorder import Recorder

CLUSTER = Cluster(workers=("here:1", "there:2"), task_type="worker", task_index=1)


class UnavailableError(Exception):
    """As TensorFlow's."""


@pytest.fixture
def recording(tmp_path):
    made = Recorder(CLUSTER, tmp_path, restarts=2)
    yield made
    made.close()


def only_note(directory):
    (note,) = failures.read_all(directory, 0.0)
    return note


def test_an_exception_keeps_its_first_time(recording, tmp_path):
    error = ValueError("a bad row\nof the second file")
    recording.note_failure(error)
    before = only_note(tmp_path)
    recording.note_exception(error)
    assert only_note(tmp_path) == before
    assert (before.task, before.restarts, before.code) == ("worker 1", 2, 1)
    assert before.reason == "ValueError: a bad row" and not before.by_peer
    recording.note_exception(ValueError("a bad row"))
    assert only_note(tmp_path).at > before.at


def test_an_exit_code_keeps_an_earlier_exception(recording, tmp_path):
    recording.note_exit(3, None)
    assert (only_note(tmp_path).reason, only_note(tmp_path).code) == ("exit code 3", 3)
    recording.note_exception(ValueError("a bad row"))
    recording.note_exit(4, None)
    assert (only_note(tmp_path).reason, only_note(tmp_path).code) == ("ValueError: a bad row", 4)


def events(*states):
    """In place of the module of events: collectives that ended one after the other."""
    found = [
        {"kind": "collective", "state": state, "ended": place}
        for place, state in enumerate(states, 1)
    ]
    reading = SimpleNamespace(events=[*found, {"kind": "span", "state": "done", "ended": 99}])
    return SimpleNamespace(is_loaded=lambda: True, read=lambda: reading)


@pytest.mark.parametrize(
    ("states", "by_peer"), [(["done", "failed"], True), (["failed", "done"], False), ([], False)]
)
def test_an_error_after_a_failed_collective_comes_from_a_peer(monkeypatch, states, by_peer):
    monkeypatch.setitem(sys.modules, "tfdist.ops.trace.events", events(*states))
    assert failures.is_by_peer(UnavailableError("rank 0 of 2: ended by rank 1")) == by_peer
    assert not failures.is_by_peer(ValueError("a bad row"))
    try:
        try:
            raise UnavailableError("rank 0 of 2: ended by rank 1")
        except UnavailableError:
            raise ValueError("cannot average the metric") from None
    except ValueError as error:
        assert failures.is_by_peer(error) == by_peer
    assert failures.is_by_peer(RendezvousTimeoutError("rank 1 is missing"))
