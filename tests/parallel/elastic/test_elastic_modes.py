"""Each way to train continues after a loss, with the weights of one process.

One job of four workers makes one `fit` after the other, and loses a worker in each.
"""

from __future__ import annotations

import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import start_ranks
from support.training.models import RowCounter

pytestmark = pytest.mark.timeout(180)

ROWS, BATCH, EPOCHS = 70, 16, 2  # the last batch of an epoch has 6 rows


class TwoOptimizers(keras.Model):
    """The gradients of its second layer need the new weights of the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = keras.layers.Dense(6, activation="tanh")
        self.second = keras.layers.Dense(1)
        self.error = keras.metrics.Mean(name="error")

    @property
    def metrics(self):
        return [self.error]

    def build(self, shape):
        self.first.build(shape)
        self.second.build((*shape[:-1], 6))

    def call(self, x):
        return self.second(self.first(x))

    def compile(self):
        super().compile()
        self.optimizers = (keras.optimizers.Adam(0.02), keras.optimizers.SGD(0.01, momentum=0.9))

    def train_step(self, data):
        x, y = data
        for layer, optimizer in zip((self.first, self.second), self.optimizers, strict=True):
            with tf.GradientTape() as tape:
                # Of a sum over rows no worker's share needs to know the others'.
                loss = tf.reduce_sum((self(x) - y) ** 2) / BATCH
            weights = layer.trainable_weights
            optimizer.apply(tape.gradient(loss, weights), weights)
        self.error.update_state((self(x) - y) ** 2)
        return {"error": self.error.result()}


def dense_model(optimizer, **compiling):
    model = keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(6, activation="tanh", kernel_regularizer="l2"),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer, "mse", metrics=["mae", RowCounter()], **compiling)
    return model


def two_optimizers():
    model = TwoOptimizers()
    model.build((None, 5))
    model.compile()
    return model


MODES = {
    "accumulation": lambda: dense_model(
        keras.optimizers.AdamW(0.02, clipnorm=0.5, gradient_accumulation_steps=3)
    ),
    "several steps of one execution": lambda: dense_model(
        keras.optimizers.SGD(0.05, momentum=0.9), steps_per_execution=3
    ),
    "two optimizers": two_optimizers,
}


class Kill(keras.callbacks.Callback):
    """Kills this process after a batch of the second epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if self.epoch == 1 and batch >= 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch


def examples():
    random = np.random.default_rng(3)
    x = random.normal(size=(ROWS, 5))
    return x, np.tanh(x.sum(axis=1, keepdims=True))


def fit(mode, scope, callbacks=()):
    keras.utils.set_random_seed(4)
    with scope:
        model = MODES[mode]()
    x, y = examples()
    history = model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=list(callbacks))
    return model, history.history


def train_and_lose_one_worker_in_each_mode(ctx):
    keras.backend.set_floatx("float64")
    strategy = tfdist.MultiWorkerMirroredStrategy()
    for number, mode in enumerate(MODES):
        victim = [Kill()] if ctx.rank == number else []
        model, logs = fit(mode, strategy.scope(), victim)
        assert strategy.elastic_job.size == ctx.size - 1 - number, mode
        assert strategy.elastic_job.recoveries >= number + 1, mode
        predicted = model.predict(examples()[0], batch_size=20, verbose=0)
        expected, expected_logs = fit(mode, tf.distribute.get_strategy().scope())
        for own, other in zip(model.get_weights(), expected.get_weights(), strict=True):
            np.testing.assert_allclose(own, other, rtol=0, atol=1e-10, err_msg=mode)
        for name, values in expected_logs.items():
            np.testing.assert_allclose(logs[name], values, rtol=1e-8, err_msg=f"{mode}: {name}")
        np.testing.assert_allclose(
            predicted, expected.predict(examples()[0], verbose=0), rtol=0, atol=1e-10, err_msg=mode
        )
    return strategy.is_chief


def test_each_mode_goes_on():
    with start_ranks(
        train_and_lose_one_worker_in_each_mode, 4, env={"TFDIST_ELASTIC": "1:4"}
    ) as ranks:
        outcomes = ranks.join(timeout=120)
    assert [outcome.signal for outcome in outcomes[:3]] == [signal.SIGKILL] * 3, "\n".join(
        outcome.describe() for outcome in outcomes
    )
    assert outcomes[3].ok, outcomes[3].describe()
    # The last one has become rank 0.
    assert outcomes[3].result is True


def refuse_what_is_not_elastic(ctx):
    keras.backend.set_floatx("float64")
    strategy = tfdist.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(4)
    x, y = examples()
    with strategy.scope():
        model = dense_model("sgd")
        eager = dense_model("sgd", run_eagerly=True)
        variable = tf.Variable(1.0)
    with pytest.raises(ValueError, match="run_eagerly=False"):
        eager.fit(x, y, verbose=0)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    with pytest.raises(ValueError, match="all workers read whole .* received OFF"):
        model.fit(data.with_options(options), verbose=0)
    with pytest.raises(ValueError, match="distributed already"):
        model.fit(strategy.experimental_distribute_dataset(data), verbose=0)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = variable**2
        gradient = tape.gradient(loss, variable)
        keras.optimizers.SGD().apply([gradient], [variable])

    with pytest.raises(tfdist.errors.TfdistError, match=r"outside of fit and of tfdist\.elastic"):
        strategy.run(step)
    with pytest.raises(tfdist.errors.ClusterConfigError, match="for tfdist.new_group"):
        tfdist.new_group([0, 1])
    ctx.barrier("refused")


def test_what_is_not_elastic_is_refused():
    with start_ranks(refuse_what_is_not_elastic, 2, env={"TFDIST_ELASTIC": "1:2"}) as ranks:
        outcomes = ranks.join(timeout=60)
    assert all(outcome.ok for outcome in outcomes), "\n".join(o.describe() for o in outcomes)
