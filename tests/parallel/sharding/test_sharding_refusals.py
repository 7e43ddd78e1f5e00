"""`Sharding` with options that it does not know: a clear error, on every worker."""

from __future__ import annotations

import contextlib
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks, start_ranks
from support.training.models import COLUMNS, built_classifier, classifier, dataset, identical

K = keras.optimizers


class OwnSgd(K.SGD):
    """Does what SGD does."""


class Direct(K.SGD):
    """Writes to the variable itself."""

    def update_step(self, gradient, variable, learning_rate):
        variable.assign_sub(gradient * learning_rate)


class Twice(K.SGD):
    """Assigns the variable twice."""

    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, gradient * learning_rate)
        self.assign_sub(variable, gradient * learning_rate)


def sharded(stage: int = 1, *kinds: type, **options):
    sharding = tfdist.Sharding(stage=stage, elementwise=kinds)
    return tfdist.MultiWorkerMirroredStrategy(sharding=sharding, **options)


@on_ranks(2)
def test_optimizers(ctx):
    strategy = sharded()
    names = ("Adafactor", "Lamb", "Muon", "ScheduleFreeAdamW")
    refused = [getattr(K, name)(0.01) for name in names if hasattr(K, name)]
    for optimizer in [*refused, OwnSgd()]:
        with strategy.scope():
            optimizer._distribution_strategy = strategy
            model = classifier(optimizer)
        with pytest.raises(ValueError, match=f"received a {type(optimizer).__name__}"):
            model.fit(dataset(8, 8), verbose=0)


@on_ranks(2, check=identical)
def test_own_elementwise_optimizer(ctx):
    strategy = sharded(1, OwnSgd)
    with strategy.scope():
        model = classifier(OwnSgd(0.1))
    model.fit(dataset(8, 8), verbose=0)
    return model.get_weights()


@pytest.mark.parametrize(
    ("kind", "message"), [(Direct, "calls 'assign_sub'"), (Twice, "does so twice")]
)
@on_ranks(2)
def test_own_optimizers_that_do_not_fit(ctx, kind, message):
    strategy = sharded(1, kind)
    with strategy.scope():
        model = classifier(kind(0.1))
    with pytest.raises(ValueError, match=message):
        model.fit(dataset(8, 8), verbose=0)


@on_ranks(2)
def test_optimizer_that_was_built_elsewhere(ctx):
    strategy = sharded()
    with strategy.scope():
        model = built_classifier("sgd")
    optimizer = K.Adam(0.01)
    optimizer.build(model.trainable_variables)
    model.compile(optimizer, model.loss)
    with pytest.raises(ValueError, match="was made outside of the strategy's scope"):
        model.fit(dataset(8, 8), verbose=0)


@on_ranks(2)
def test_options(ctx):
    options = tfdist.CommunicationOptions
    for received in (options(bytes_per_pack="auto"), options(compression="onebit")):
        with pytest.raises(ValueError, match="no compression and a fixed number of workers"):
            sharded(communication_options=received)
    with pytest.raises(TypeError, match="expected a tfdist.Sharding, received 1"):
        tfdist.MultiWorkerMirroredStrategy(sharding=1)
    with pytest.raises(ValueError, match="one of 1, 2, 3, received 4"):
        tfdist.Sharding(stage=4)
    clip = options(clip="replica")
    strategy = sharded(2, communication_options=clip)
    with strategy.scope():
        model = classifier(K.SGD(0.1, clipnorm=1.0, gradient_accumulation_steps=2))
    with pytest.raises(ValueError, match="expected clip='sum'"):
        model.fit(dataset(8, 8), verbose=0)


@on_ranks(2)
def test_recomputation(ctx):
    class Again(keras.layers.Dense):
        def call(self, x):
            return tf.recompute_grad(super().call)(x)

    for stage in (1, 3):
        keras.utils.set_random_seed(1)
        with sharded(stage).scope():
            model = keras.Sequential([keras.Input((8,)), Again(4), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        raised = contextlib.nullcontext()
        if stage == 3:
            raised = pytest.raises(ValueError, match="expected Sharding of stage 1 or 2")
        with raised:
            model.fit(tf.ones([16, 8]), tf.ones([16, 1]), batch_size=8, verbose=0)


def elastic(ctx):
    with pytest.raises(ValueError, match="a lost worker's part of the optimizer's state is lost"):
        sharded(elastic=tfdist.Elastic(min_workers=1))


def test_elastic():
    with start_ranks(elastic, 1) as ranks:
        (outcome,) = ranks.join(timeout=60)
    assert outcome.ok, outcome


@on_ranks(2)
def test_ranks_that_differ(ctx):
    with pytest.raises(
        tfdist.errors.ClusterConfigError,
        match="the same sharding on every worker, but worker 0 has stage 1, worker 1 has none",
    ):
        if ctx.rank:
            tfdist.MultiWorkerMirroredStrategy()
        else:
            sharded()


@on_ranks(2)
def test_another_model_on_one_rank(ctx):
    strategy = sharded()
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(3 + ctx.rank)])
        model.compile("adam", "mse")
    begin = time.monotonic()
    with pytest.raises(Exception, match="(?i)rank|worker"):
        model.fit(np.ones([8, 2]), np.ones([8, 1]), verbose=0)
    assert time.monotonic() - begin < 30


@on_ranks(2)
def test_tf_keras(ctx):
    import tf_keras

    strategy = sharded()
    with strategy.scope():
        model = classifier("adam", library=tf_keras)
    with pytest.raises(ValueError, match="expected an optimizer of Keras 3"):
        model.fit(dataset(8, 8), verbose=0)


def train_until_killed(ctx):
    strategy = sharded()
    with strategy.scope():
        model = built_classifier("adam")
    follow = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: ctx.report("step", batch)
    )
    model.fit(dataset(8, 8).repeat(), steps_per_epoch=10_000, callbacks=[follow], verbose=0)


def test_a_killed_rank_ends_the_others_in_seconds():
    with start_ranks(train_until_killed, 2) as ranks:
        ranks.wait_for(0, "step", 5)
        ranks[1].kill()
        begin = time.monotonic()
        outcomes = ranks.join(timeout=30)
    assert outcomes[0].exception == "UnavailableError"
    assert time.monotonic() - begin < 30


@on_ranks(2, check=identical)
def test_custom_loop(ctx):
    strategy = sharded()
    with strategy.scope():
        optimizer = K.Adam(0.1)
        variable = tf.Variable(np.zeros([COLUMNS], "float32"))

    def step(target):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((variable - target) ** 2) / 2
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])

    run = tf.function(lambda target: strategy.run(step, (target,)))
    for _ in range(3):
        run(tf.range(float(COLUMNS)))
    assert np.all(variable.numpy()[1:] > 0)
    return [variable.numpy()]
