"""Records of parts: how far a pipeline reads ahead of its model."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.patience import wait_until
from tfdist.errors import PredictionError
from tfdist.prediction import batches
from tfdist.prediction.deaths import READ_AHEAD, RECORDS_AHEAD, Deaths

BATCH, RECORDS = 4, 300


def test_the_map_is_as_far_ahead_as_a_death_suspects(tmp_path):
    """Calls of a small map are handed over in bulk: one by one they cost several times as much."""
    mapped, lock = [], threading.Lock()

    def note(row):
        with lock:
            mapped.append(int(row))
        return row

    def parse(row):
        return tf.ensure_shape(tf.numpy_function(note, [row], tf.int64), [])

    # One batch is in the model, some are whole, and some records wait for their batch.
    ahead = (1 + READ_AHEAD) * BATCH + RECORDS_AHEAD
    seen = []

    def model(rows):
        first = int(rows[0])
        expected = min(first + ahead, RECORDS)
        wait_until(lambda: len(mapped) >= expected, f"the map of {expected} records", 20.0)
        with lock:
            seen.append((first, max(mapped)))
        return rows

    data = tfdist.data.from_ranges(RECORDS, RECORDS, name="predict")
    tfdist.predict(model, data, tmp_path, map=parse, batch_size=BATCH, format="npz", verbose=0)
    assert [first for first, _ in seen] == list(range(0, RECORDS, BATCH))
    for first, last in seen:
        assert Deaths(BATCH).and_one("fast", first).is_suspect(last, last + 1)
    (part,) = tmp_path.glob("part-*")
    np.testing.assert_array_equal(np.load(part)["prediction"], np.arange(RECORDS))


def test_no_call_of_the_map_begins_after_the_end(tmp_path, monkeypatch):
    """The end of a pipeline waits for the calls of its map: a second each, they were a minute."""
    begun, has_ended, begun_at_end = [], threading.Event(), []
    close = batches._Gate.close

    def close_and_release(gate):
        close(gate)
        begun_at_end.append(len(begun))
        has_ended.set()

    monkeypatch.setattr(batches._Gate, "close", close_and_release)

    def hold(row):
        if row >= BATCH:
            begun.append(int(row))
            has_ended.wait(60)
        return row

    def parse(row):
        return tf.ensure_shape(tf.numpy_function(hold, [row], tf.int64), [])

    threads = min(len(os.sched_getaffinity(0)), RECORDS_AHEAD)

    def model(rows):
        wait_until(lambda: len(begun) == threads, f"{threads} calls of the map", 5.0)
        raise PredictionError("the model ends the job")

    data = tfdist.data.from_ranges(RECORDS, RECORDS, name="predict")
    with pytest.raises(PredictionError, match="the model ends the job"):
        tfdist.predict(model, data, tmp_path, map=parse, batch_size=BATCH, format="npz", verbose=0)
    assert begun_at_end == [threads] and len(begun) == threads
