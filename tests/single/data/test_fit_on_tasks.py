"""`fit`, `evaluate` and `predict` of one process on data tasks."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support import ledger
from tfdist.data import feed

RECORDS = 23


def queue(name="train"):
    feed.current.report()
    return json.loads(feed.current.client().state())["queues"][name]["queue"]


@pytest.mark.parametrize("steps_per_execution", [1, 4])
def test_every_record_once_an_epoch(steps_per_execution):
    model = ledger.model(RECORDS, steps_per_execution=steps_per_execution)
    data = ledger.batches(tfdist.data.from_ranges(RECORDS, 5, shuffle=True), 4)
    assert model.fit(data, epochs=3, verbose=0).epoch == [0, 1, 2]
    assert ledger.counts(model) == [3] * RECORDS
    assert queue()["records"] == 3 * RECORDS and not queue()["returned"]
    # A second training deals further epochs.
    assert model.fit(data, epochs=2, verbose=0).epoch == [0, 1]
    assert ledger.counts(model) == [5] * RECORDS and queue()["fits"] == [0, 3]


def test_steps_per_epoch_and_what_is_left():
    model = ledger.model(RECORDS)
    data = ledger.batches(tfdist.data.from_ranges(RECORDS, 5), 4)
    model.fit(data, epochs=1, steps_per_epoch=3, verbose=0)
    assert ledger.counts(model) == [1] * 12 + [0] * 11
    model.fit(data, epochs=1, verbose=0)
    assert ledger.counts(model) == [1] * RECORDS


def test_a_stream():
    """Records of a source without an end, by their numbers; epochs are numbers of steps."""
    model = ledger.model(RECORDS)
    read = []

    def record(number):
        read.append(int(number))
        return np.int64(number % RECORDS)

    numbers = tfdist.data.from_ranges(10**9, 1000, epochs=1)
    data = numbers.map(lambda n: tf.ensure_shape(tf.numpy_function(record, [n], tf.int64), []))
    fitted = model.fit(ledger.batches(data, 4), steps_per_epoch=3, epochs=4, verbose=0)
    assert fitted.epoch == [0, 1, 2, 3] and read[:48] == list(range(48))
    assert ledger.counts(model) == [3] * 2 + [2] * (RECORDS - 2)
    assert queue()["records"] == 48


def test_a_backup_has_the_same_step(tmp_path):
    class Dies(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.model.optimizer.iterations.numpy() == 9:  # in the second epoch
                raise KeyboardInterrupt

    def train(*callbacks):
        model = ledger.model(RECORDS)
        data = ledger.batches(tfdist.data.from_ranges(RECORDS, 5, shuffle=True, seed=1), 4)
        backup = keras.callbacks.BackupAndRestore(str(tmp_path), save_freq=2)
        model.fit(data, epochs=3, verbose=0, callbacks=[backup, *callbacks])
        return model

    with pytest.raises(KeyboardInterrupt):
        train(Dies())
    assert len(list(tmp_path.glob("tasks-*.json"))) == 3  # the last ones
    feed.current = feed.Feeds()  # another process
    assert ledger.counts(train()) == [3] * RECORDS


def test_evaluate_and_predict_on_tasks():
    model = ledger.model(RECORDS)
    data = ledger.batches(tfdist.data.from_ranges(RECORDS, 5, name="test", epochs=2), 4)
    model.evaluate(data, verbose=0)
    assert queue("test")["records"] == RECORDS
    assert len(np.asarray(model.predict(data, verbose=0))) == RECORDS
    assert queue("test")["records"] == 2 * RECORDS


def test_validation_data_of_tasks():
    model = ledger.model(RECORDS)
    train = ledger.batches(tfdist.data.from_ranges(RECORDS, 5), 4)
    test = ledger.batches(tfdist.data.from_ranges(RECORDS, 5, name="test"), 4)
    model.fit(train, epochs=2, validation_data=test, verbose=0)
    assert ledger.counts(model) == [2] * RECORDS
    assert queue()["records"] == queue("test")["records"] == 2 * RECORDS
