"""How many batches of a dataset each worker of a parameter-server job trains on."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfdist
from support.ps_job import meet, on_job, served, train_like_alone
from support.training.models import EXACT, classifier, examples
from tfdist.keras.session.of_tf_keras import SharesOfEpochs

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


# Arrays are dealt out as one stream: the workers share the 14 batches of both epochs.
@pytest.mark.parametrize(("arrays", "own"), [(True, ((4, 3), (3, 4))), (False, ((4, 4), (3, 3)))])
@on_job(workers=2)
def test_tf_keras_trains_all_epochs(ctx, arrays, own):
    """No batch is left out."""
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
    assert seen == [batch for count in own[ctx.rank] for batch in range(count)]
    seen.clear()
    ended = tf_keras.callbacks.LambdaCallback(on_test_batch_end=ended.on_train_batch_end)
    model.evaluate(*data, callbacks=[ended], verbose=0)
    assert seen == list(range(own[ctx.rank][0]))


def test_shares_of_epochs():
    shares = SharesOfEpochs(1, lambda batches: len(range(1, batches, 3)))
    # Of 8 batches these are 1, 4 and 7; an epoch without a batch takes the next one before.
    assert list(itertools.islice(shares, 8)) == [1, 1, 1, 1, 1, 1, 1, 1]
    shares = SharesOfEpochs(5, lambda batches: len(range(1, batches, 3)))
    assert list(itertools.islice(shares, 3)) == [2, 1, 2]


@pytest.mark.long(covered_by="parallel/keras/test_keras_inputs.py::test_one_order")
@on_job(workers=2)
def test_one_order(ctx):
    """Each epoch has the batches that it has in one process; without a seed all rows come, too."""
    if served():
        return

    def fit(model):
        shuffled = tf.data.Dataset.from_tensor_slices(examples(320)).shuffle(320, seed=3)
        return model.fit(shuffled.batch(64), epochs=3, verbose=0)

    train_like_alone(lambda: classifier(keras.optimizers.SGD(0.1)), fit, EXACT, mode="sync")
    tf.random.set_seed(None)
    rows = np.arange(64, dtype="float32")[:, np.newaxis] ** 2
    with tfdist.ParameterServerStrategy(mode="sync").scope():
        kernel = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((1,)), kernel])
        model.compile(keras.optimizers.SGD(1.0), lambda _, predicted: predicted)
    model.fit(rows, rows, batch_size=8, verbose=0)
    assert -float(model.get_weights()[0][0, 0]) == rows.sum() / 8
