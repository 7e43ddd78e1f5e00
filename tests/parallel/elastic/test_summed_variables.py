"""Values that replicas have of their own and that are summed, set from outside of a step.

A variable has the value that was set, for any number of workers, at the beginning and now.
"""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfdist
from support.processes.ranks import start_ranks

pytestmark = pytest.mark.timeout(120)


class Death(tf_keras.callbacks.Callback):
    """Kills its process after the second batch."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def check(strategy, summed, mean):
    """Sets and reads the values; on each worker, without the others."""
    summed.assign(6.0)
    assert float(summed.read_value()) == 6.0
    mean.set_weights([np.float32(9.0), np.float32(3.0)])
    assert [float(weight) for weight in mean.get_weights()] == [9.0, 3.0]
    assert float(mean.result()) == 3.0


def train(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        summed = tf.Variable(
            0.0,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
        mean = tf_keras.metrics.Mean()
        model = tf_keras.Sequential([tf_keras.Input((2,)), tf_keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    check(strategy, summed, mean)
    x, y = np.ones((32, 2), "float32"), np.ones((32, 1), "float32")
    model.fit(x, y, batch_size=8, verbose=0, callbacks=[Death()] if ctx.rank == 2 else [])
    check(strategy, summed, mean)
    return strategy.elastic_job.size


def test_what_is_set_is_read():
    with start_ranks(train, 3, env={"TFDIST_ELASTIC": "1:3"}) as ranks:
        outcomes = ranks.join(60.0)
    assert [outcome.result for outcome in outcomes[:2]] == [2, 2], "\n".join(
        outcome.describe() for outcome in outcomes
    )
    assert outcomes[2].signal == signal.SIGKILL
