"""Workers read the same order in each epoch, whatever each has read ahead."""

from __future__ import annotations

import importlib
import time

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks

ROWS, BATCH, BATCHES, EPOCHS = 9, 4, 7, 6


def endless():
    """Ends within a shuffle's fourth order. TensorFlow makes the map read ahead, as far as it gets.

    A map of whole batches makes each worker read them.
    """
    rows = tf.data.Dataset.range(ROWS).shuffle(ROWS, seed=2).repeat()
    return rows.map(_doubled).batch(BATCH).map(_of_whole_batch).take(BATCHES)


def _doubled(x):
    return x * 2


def _of_whole_batch(x):
    return x + 0 * tf.reduce_sum(x)


def expect_whole_orders(shares):
    """Each worker's rows of an epoch, by batches, are of the same orders."""
    rows = np.concatenate([np.concatenate(parts) for parts in zip(*shares, strict=True)])
    assert len(rows) == BATCH * BATCHES
    for begin in range(0, len(rows) - ROWS, ROWS):
        assert sorted(rows[begin : begin + ROWS]) == [2 * i for i in range(ROWS)]


@on_ranks(2)
def test_loops(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    data = strategy.experimental_distribute_dataset(endless())
    epochs = []
    for _ in range(EPOCHS):
        shares = []
        for batch in data:
            shares.append(strategy.experimental_local_results(batch)[0].numpy())
            time.sleep(0.03 * ctx.rank)  # the map of rank 1 gets further
        epochs.append(shares)
    own = np.array(epochs)
    for shares in tfdist.ops.all_gather(own[None], strategy.communicator).numpy().swapaxes(0, 1):
        expect_whole_orders(shares)


@pytest.mark.long("*tf_keras", covered_by="the other cases")
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@on_ranks(2)
def test_fit_and_evaluate(ctx, library):
    _fit(ctx, library)


@pytest.mark.long("*tf_keras", covered_by="the other cases")
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@on_ranks(2, env={"TFDIST_ELASTIC": "1:2:2"})
def test_elastic_fit_and_evaluate(ctx, library):
    _fit(ctx, library)


def _fit(ctx, library):
    own = importlib.import_module(library)
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = _recorder(own, 0.03 * ctx.rank)
        model.compile("sgd", "mse")
    data = endless().map(lambda x: (tf.cast(x, tf.float32)[:, None], tf.zeros([BATCH, 1])))
    model.fit(data, epochs=EPOCHS, verbose=0)
    for _ in range(EPOCHS):
        model.evaluate(data, verbose=0)
    seen = np.array(model.rows).reshape(2 * EPOCHS, BATCHES, -1)
    for shares in tfdist.ops.all_gather(seen[None], strategy.communicator).numpy().swapaxes(0, 1):
        expect_whole_orders(shares)


def _recorder(own, pause):
    class Recorder(own.Model):
        """Keeps the rows that it gets."""

        def __init__(self):
            super().__init__()
            self.rows = []
            self.layer = own.layers.Dense(1)

        def call(self, x):
            with tf.control_dependencies([tf.py_function(self.keep, [x], [])]):
                return self.layer(tf.identity(x))

        def keep(self, x):
            self.rows.append(x.numpy()[:, 0])
            time.sleep(pause)

    return Recorder()
