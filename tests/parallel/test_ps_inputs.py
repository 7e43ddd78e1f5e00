"""How many batches of a dataset each worker of a parameter-server job trains on."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from ps_job import meet, on_job, served

import tfdist

BATCHES = 7
_Policy = tf.data.experimental.AutoShardPolicy


@pytest.mark.parametrize(
    ("policy", "own"), [(_Policy.OFF, (7, 7)), (_Policy.DATA, (4, 3)), (_Policy.AUTO, (4, 3))]
)
@on_job(workers=2)
def test_a_policy_says_who_sees_what(ctx, policy, own):
    if served():
        return
    strategy = tfdist.ParameterServerStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    rows = tf.range(BATCHES * 2, dtype=tf.float32)[:, tf.newaxis]
    dataset = tf.data.Dataset.from_tensor_slices((rows, rows)).batch(2).with_options(options)

    seen = []
    ended = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(batch)
    )
    model.fit(dataset, epochs=2, shuffle=False, callbacks=[ended], verbose=0)
    assert seen == 2 * list(range(own[ctx.rank]))
    strategy.extended.parameters.client.flush(30.0)
    meet(ctx, "trained")
    assert int(model.optimizer.iterations.numpy()) == 2 * sum(own)


@pytest.mark.parametrize(("arrays", "own"), [(True, (3, 3)), (False, (4, 3))])
@on_job(workers=2)
def test_tf_keras_trains_all_epochs(ctx, arrays, own):
    if served():
        return
    strategy = tfdist.ParameterServerStrategy()
    with strategy.scope():
        model = tf_keras.Sequential([tf_keras.layers.Input((1,)), tf_keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    rows = np.ones((2 * BATCHES, 1))
    data = (rows, rows, 2) if arrays else (tf.data.Dataset.from_tensors((rows[:2],) * 2).repeat(7),)
    seen = []
    ended = tf_keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(batch)
    )
    history = model.fit(*data, epochs=2, shuffle=False, callbacks=[ended], verbose=0)
    assert history.epoch == [0, 1]
    assert seen == 2 * list(range(own[ctx.rank]))
