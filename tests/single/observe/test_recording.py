"""A task's recording, and the records that it copies from the ring."""

from __future__ import annotations

import dataclasses
import json
import struct

import keras
import numpy as np
import pytest

import tfdist
from support.trace_format import Timeline
from tfdist.config.cluster import Cluster
from tfdist.config.settings import Settings
from tfdist.observe.timeline import parts, recording
from tfdist.ops import library
from tfdist.ops.trace import events

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def ring():
    library.c_api()


@pytest.fixture
def recorded(tmp_path):
    """The timeline of a process that trains alone, and its file."""
    out = tmp_path / "out.json"
    made = recording.start(Cluster.local(), Settings(timeline=str(out)))
    yield made, out
    made.close()


def test_a_record_has_the_fields_of_an_event():
    with events.span("step", "epoch 3"):
        reader = events.RingReader(8)
        begun = reader.read(events.last())
        assert begun.has_ended.tolist() == [False]
    found = reader.read(events.last())
    assert found.has_ended.tolist() == [True] and found.sequences.tolist() == [events.last()]
    assert found.next == events.last() + 1 and found.lost == 0
    record = struct.Struct("=" + "".join(form for _, form in reader.layout))
    assert record.size == reader.record_bytes == found.records.shape[1]
    names = [name for name, form in reader.layout if not form.endswith("x")]
    fields = dict(zip(names, record.unpack(found.records.tobytes()), strict=True))
    (event,) = events.read(events.last()).events
    for name in ("sequence", "submitted", "started", "ended", "rank", "size", "peer"):
        assert fields[name] == event[name]
    assert fields["name"].rstrip(b"\0") == b"step" and fields["detail"][:8] == b"epoch 3\0"
    assert len(reader.read(1).records) <= 8


def steps_of_a_fit(on_train_batch_end):
    """The states and errors of the steps' events when `fit` has ended or failed."""
    with tfdist.MultiWorkerMirroredStrategy().scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    before = events.last()
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: on_train_batch_end(model)
    )
    rows = np.ones((9, 1))
    try:
        model.fit(rows, rows, batch_size=3, callbacks=[callback], verbose=0)
    except ArithmeticError as error:
        kept = error  # which keeps the steps of Keras alive
    else:
        kept = None
    found = [e for e in events.read(before + 1).events if e["name"] == "step"]
    return [(event["state"], event["error"]) for event in found], kept


def test_the_step_of_a_fit_that_fails_has_ended():
    def fails(model):
        raise ArithmeticError("of a callback")

    steps, kept = steps_of_a_fit(fails)
    assert kept and steps == [("failed", "ArithmeticError: of a callback")]


@pytest.mark.long(covered_by="test_the_step_of_a_fit_that_fails_has_ended")
def test_the_step_of_a_fit_that_stops_has_ended():
    def stop(model):
        model.stop_training = True

    steps, _ = steps_of_a_fit(stop)
    assert steps == [("done", "")]


def test_what_happens_while_it_records(tmp_path):
    with events.span("history"):
        pass
    made = recording.start(Cluster.local(), Settings())
    out = tmp_path / "out.json"
    made.start(out)
    with pytest.raises(ValueError, match=f"worker 0 is recorded already, for {out}"):
        made.start(tmp_path / "other.json")
    with events.span("checkpoint", "/tmp/backup"):
        (path,) = parts.paths(out)
        while not parts.read_part(path).events:
            pass  # until it is written without an end
    with pytest.raises(RuntimeError), events.span("step"):
        raise RuntimeError("no such row")
    made.close()
    timeline = Timeline(out)
    (about,) = timeline.about["tasks"]
    assert (about["task"], about["events"]) == ("worker 0", 2)
    assert (about["unfinished"], about["lost"]) == (0, 0)
    (saved,) = timeline.slices("worker 0", "checkpoint")
    assert saved["args"] == {"detail": "/tmp/backup"} and saved["dur"] > 0
    (step,) = timeline.slices("worker 0", "step")
    assert step["args"] == {"error": "RuntimeError: no such row"}
    assert not parts.directory_of(out).exists()
    made.close()


def test_the_tasks_of_a_job_are_named_as_they_name_themselves(tmp_path):
    out = tmp_path / "out.json"
    roles = ("chief", "worker", "ps")
    addresses = {"chief": ("127.0.0.1:1",), "workers": ("127.0.0.1:2",), "ps": ("127.0.0.1:3",)}
    cluster = Cluster(**addresses, task_type="chief")
    made = []
    for role in roles:
        task = dataclasses.replace(cluster, task_type=role)
        made.append(recording.start(task, Settings(timeline=str(out))))
    for each in made:
        assert not out.exists()
        each.close()
    assert list(Timeline(out).processes) == ["chief", "worker 0", "ps 0"]


def test_every_event_is_written_or_counted_as_lost(recorded):
    made, out = recorded
    count = 3 * events.RING_EVENTS
    for _ in range(count):
        with events.span("step"):
            pass
    made.close()
    (about,) = json.loads(out.read_text())["otherData"]["tasks"]
    assert about["events"] + about["lost"] == count


def test_an_event_that_another_thread_is_writing_is_read_again(tmp_path, monkeypatch):
    class Interrupted(events.RingReader):
        """Does not see the last event of its first reading."""

        hides = True

        def read(self, cursor, limit=None):
            found = super().read(cursor, limit)
            if not len(found.records) or not self.hides:
                return found
            self.hides = False
            seen = (part[:-1] for part in (found.records, found.sequences, found.has_ended))
            return events.RingRecords(*seen, found.next, found.lost + 1)

    monkeypatch.setattr(events, "RingReader", Interrupted)
    out = tmp_path / "out.json"
    made = recording.start(Cluster.local(), Settings(timeline=str(out)))
    for _ in range(3):
        with events.span("step"):
            pass
    (path,) = parts.paths(out)
    while len(parts.read_part(path).events) < 3:
        pass
    made.close()
    (about,) = Timeline(out).about["tasks"]
    assert (about["events"], about["lost"]) == (3, 0)


def test_without_the_setting_nothing_runs(tmp_path):
    made = recording.start(Cluster.local(), Settings())
    with pytest.raises(ValueError, match="worker 0 is not recorded"):
        made.stop()
    made.close()
    assert list(tmp_path.iterdir()) == []
