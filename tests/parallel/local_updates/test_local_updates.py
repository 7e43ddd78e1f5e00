"""Workers that train alone for some steps and then combine: `fit` and custom loops."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfdist
from support.processes.ranks import on_ranks
from support.tiers import LONG
from support.training import models, quadratics
from support.training.models import EXACT, difference, identical


def make(sync_every, momentum=0.0):
    """A strategy, and a model of one weight under it."""
    strategy = tfdist.LocalUpdateStrategy(sync_every)
    with strategy.scope():
        optimizer = keras.optimizers.SGD(quadratics.RATE, momentum=momentum)
        return strategy, quadratics.quadratic(optimizer)


def weight(model) -> float:
    return float(model.get_weights()[0])


def mean_of_workers(strategy, arrays):
    """The workers' mean of each of some arrays, and all of them, of shape [workers, ...]."""
    gathered = [
        tfdist.ops.all_gather(tf.constant(a)[tf.newaxis], strategy.communicator).numpy()
        for a in arrays
    ]
    return [g.mean(0) for g in gathered], gathered


class Watch(keras.callbacks.Callback):
    """Notes the weight after each batch, and at the ends of epochs."""

    def __init__(self):
        super().__init__()
        self.batches, self.epochs = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(weight(self.model))

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(weight(self.model))


@on_ranks(2, check=identical)
def test_averaging_converges_to_the_weighted_optimum(ctx):
    """Not to the true optimum, -0.25: the steeper loss approaches its own one in fewer steps."""
    _, model = make(7)
    model.fit(quadratics.rows(7 * 30), verbose=0)
    h, b = np.array(quadratics.CURVATURES), np.array(quadratics.OPTIMA)
    w = 1 - (1 - quadratics.RATE * h) ** 7
    expected = np.sum(w * b) / np.sum(w)
    assert expected == pytest.approx(0.0873731927, abs=1e-10)
    assert weight(model) == pytest.approx(expected, abs=1e-6)
    return model.get_weights()


@pytest.mark.long(
    covered_by="test_what_is_exchanged, test_averaging_converges_to_the_weighted_optimum"
)
@on_ranks(2)
def test_workers_train_alone_between_synchronizations(ctx):
    """Five steps with H = 3: a synchronization after the third, and after the epoch."""
    _, model = make(3)
    x, expected = 0.5, []
    for step in range(1, 6):
        expected.append(quadratics.alone(x, ctx.rank, (step - 1) % 3 + 1))
        if step == 3:
            x = expected[-1] = quadratics.mean_after(x, 3)
    for steps_per_execution, shown in ((1, expected), (5, expected[-1:])):
        model.compile(
            keras.optimizers.SGD(quadratics.RATE),
            lambda y_true, y_pred: y_pred,
            steps_per_execution=steps_per_execution,
        )
        for _ in range(2):  # the second time there are anchors, which are other ones
            model.set_weights([np.array(0.5)])
            watch = Watch()
            model.fit(quadratics.rows(5), verbose=0, callbacks=[watch])
        assert watch.batches == pytest.approx(shown, abs=1e-6)
        assert watch.epochs == pytest.approx([quadratics.mean_after(x, 2)], abs=1e-6)
        assert weight(model) == watch.epochs[-1]


@on_ranks(2)
def test_what_is_exchanged(ctx):
    """Two collectives for a synchronization, and one in a round asks for more data."""
    strategy, model = make(4)
    count, counts = counting(strategy, keras)
    model.fit(quadratics.rows(8), verbose=0, callbacks=[count])
    assert counts == [1, 0, 0, 2, 1, 0, 0, 2]


def counting(strategy, library):
    """A callback of a Keras, and the numbers of collectives in each step, which it appends to."""
    counts: list[int] = []

    class Count(library.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.before = strategy.communication_stats().collectives

        def on_train_batch_end(self, batch, logs=None):
            counts.append(strategy.communication_stats().collectives - self.before)

    return Count(), counts


@pytest.mark.long(covered_by="test_what_is_exchanged")
@on_ranks(3, check=identical)
def test_one_step_is_synchronous_sgd(ctx):
    """With H = 1, SGD and batches of any size the weights and metrics equal one process's."""
    rows = 64 * 5 + 1

    def build():
        return models.built_classifier(keras.optimizers.SGD(0.1))

    keras.utils.set_random_seed(0)
    alone = build()
    expected = alone.fit(models.dataset(rows, 64), epochs=2, verbose=0).history
    with tfdist.LocalUpdateStrategy(1).scope():
        keras.utils.set_random_seed(ctx.rank)
        model = build()
    data = models.dataset(rows, 64)
    history = model.fit(data, epochs=2, validation_data=data, verbose=0).history
    assert difference(model.get_weights(), alone.get_weights()) <= EXACT
    assert difference([history[k] for k in expected], [*expected.values()]) <= EXACT
    assert history["val_loss"][1] < history["val_loss"][0]
    return [*model.get_weights(), *history.values()]


@on_ranks(1)
def test_one_worker_trains_plainly(ctx):
    def build():
        keras.utils.set_random_seed(0)
        return models.built_classifier(keras.optimizers.Adam(0.01))

    alone = build()
    alone.fit(models.dataset(200, 32), epochs=2, verbose=0)
    with tfdist.LocalUpdateStrategy(4).scope():
        model = build()
    model.fit(models.dataset(200, 32), epochs=2, verbose=0)
    assert difference(model.get_weights(), alone.get_weights()) <= EXACT
    assert difference(models.slots(model), models.slots(alone)) <= EXACT


@on_ranks(2)
def test_each_worker_is_a_plain_model(ctx):
    """Three steps of one round equal plain training on the worker's share, and then the mean.

    With Adam, clipping, batch normalization, whose statistics also become the mean, and an
    embedding whose ids repeat in a batch: the plain model multiplies by one-hot vectors.
    """

    def build(embedding):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [
                keras.Input((4,), dtype="int32"),
                *embedding(),
                keras.layers.Flatten(),
                keras.layers.BatchNormalization(momentum=0.8),
                keras.layers.Dense(1),
            ]
        )
        optimizer = keras.optimizers.Adam(0.05, clipnorm=0.1, weight_decay=0.01)
        model.compile(optimizer, "mse")
        return model

    random = np.random.default_rng(3)
    ids = random.integers(0, 9, (24, 4)).astype("int32")
    labels = ids.sum(1, keepdims=True).astype("float32")
    one_hot = keras.layers.Lambda(lambda ids: keras.ops.one_hot(ids, 9))
    alone = build(lambda: [one_hot, keras.layers.Dense(5, use_bias=False)])
    initial = alone.get_weights()
    of_worker = [r for r in range(24) if r // 4 % 2 == ctx.rank]  # batches of 8, halves of 4
    alone.fit(ids[of_worker], labels[of_worker], batch_size=4, shuffle=False, verbose=0)
    own = models.slots(alone)
    zeros = [np.zeros_like(slot) for slot in own]
    # With tf_keras the others.
    for slots in ("keep", "average", "reset") if LONG else ("average",):
        strategy = tfdist.LocalUpdateStrategy(10, slots=slots)
        with strategy.scope():
            model = build(lambda: [keras.layers.Embedding(9, 5)])
        model.set_weights(initial)
        model.fit(ids, labels, batch_size=8, shuffle=False, verbose=0)
        expected, of_all = mean_of_workers(strategy, alone.get_weights())
        assert all(not np.array_equal(*values) for values in of_all)
        assert difference(model.get_weights(), expected) <= models.ADAPTIVE
        mean = mean_of_workers(strategy, own)[0]
        expected = {"keep": own, "average": mean, "reset": zeros}[slots]
        # The first two are the number of iterations and the learning rate.
        assert difference(models.slots(model), [*own[:2], *expected[2:]]) <= models.ADAPTIVE


@on_ranks(2)
def test_a_worker_without_batches_weighs_nothing(ctx):
    """Worker 0 has five batches and worker 1 two; H = 4. Momentum does not move a worker on.

    With rate e and momentum m the distance d to the optimum and the velocity v follow
    v = m v - e h d, d = d + v.
    """
    momentum = 0.5
    strategy, model = make(4, momentum)

    def batches(context):
        row = np.array([[quadratics.CURVATURES[ctx.rank], quadratics.OPTIMA[ctx.rank]]], "f4")
        data = tf.data.Dataset.from_tensors((row, np.zeros(1, "f4")))
        return data.repeat([5, 2][ctx.rank]).filter(lambda *row: True)  # of unknown length

    model.fit(strategy.distribute_datasets_from_function(batches), verbose=0)

    def alone(x, v, rank, steps):
        for _ in range(steps):
            v = momentum * v - quadratics.RATE * quadratics.CURVATURES[rank] * (
                x - quadratics.OPTIMA[rank]
            )
            x += v
        return x, v

    (x0, v0), (x1, _) = alone(0.0, 0.0, 0, 4), alone(0.0, 0.0, 1, 2)
    expected, _ = alone((4 * x0 + 2 * x1) / 6, v0, 0, 1)
    assert weight(model) == pytest.approx(expected, abs=1e-6)
    # Other data of unknown length, three batches, also end in the middle of a round.
    data = quadratics.rows(3).filter(lambda *row: True)
    losses = [
        0.5 * h * (expected - b) ** 2
        for h, b in zip(quadratics.CURVATURES, quadratics.OPTIMA, strict=True)
    ]
    assert model.evaluate(data, verbose=0) == pytest.approx(np.mean(losses), abs=1e-6)
    assert sorted(model.predict(data, verbose=0)) == pytest.approx(sorted(3 * losses), abs=1e-6)


@on_ranks(2, check=identical)
def test_checkpoints_hold_the_anchor(ctx, tmp_path):
    """A job that ends after its first epoch continues with the weights of both workers."""

    class End(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    for callbacks in ([End()], []):
        _, model = make(3)
        restore = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
        save = keras.callbacks.ModelCheckpoint(
            str(tmp_path / "{epoch}.weights.h5"), save_weights_only=True
        )
        with contextlib.suppress(KeyboardInterrupt):
            model.fit(
                quadratics.rows(5), epochs=2, verbose=0, callbacks=[restore, save, *callbacks]
            )
    expected = [0.0]
    for steps in (3, 2, 3, 2):
        expected.append(quadratics.mean_after(expected[-1], steps))
    assert weight(model) == pytest.approx(expected[4], abs=1e-6)
    plain = quadratics.quadratic()
    plain.load_weights(tmp_path / "1.weights.h5")
    assert weight(plain) == pytest.approx(expected[2], abs=1e-6)
    return model.get_weights()


@on_ranks(2, check=identical)
def test_custom_loop(ctx):
    """The loop of `MultiWorkerMirroredStrategy`, with a `tf.function` around `run`, in it, or none.

    Its loss is divided by the number of workers, as if gradients were summed.
    """
    expected = quadratics.mean_after(quadratics.mean_after(0.0, 3), 2)
    weights = []
    for form in ("outer", "inner", "eager"):
        strategy, model = make(3)
        step = step_of_loop(strategy, model, form)
        data = strategy.experimental_distribute_dataset(quadratics.rows(5))
        for number, batch in enumerate(data, start=1):
            step(batch)
            if number == 2:
                assert weight(model) == pytest.approx(quadratics.alone(0.0, ctx.rank, 2), abs=1e-6)
        strategy.synchronize()
        strategy.synchronize()  # has nothing to do
        assert weight(model) == pytest.approx(expected, abs=1e-6)
        weights += model.get_weights()
    return weights


def step_of_loop(strategy, model, form):
    def on_worker(features, _):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(features)) / strategy.num_replicas_in_sync
        variables = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    if form == "inner":
        on_worker = tf.function(on_worker)

    def step(batch):
        strategy.run(on_worker, args=batch)

    return tf.function(step) if form == "outer" else step


@pytest.mark.long(covered_by="test_each_worker_is_a_plain_model")
@on_ranks(2)
def test_tf_keras(ctx):
    """Plain training on the worker's share, with momentum and a last batch that rank 1 has not."""
    features, labels = models.examples(8 * 3 + 1)

    def build():
        tf_keras.utils.set_random_seed(0)
        optimizer = tf_keras.optimizers.SGD(0.1, momentum=0.9)
        normal = tf_keras.layers.BatchNormalization(momentum=0.8)
        return models.built_classifier(optimizer, library=tf_keras, middle=[normal])

    alone = build()
    share = [r for r in range(24) if r // 4 % 2 == ctx.rank] + [24] * (ctx.rank == 0)
    alone.fit(features[share], labels[share], batch_size=4, shuffle=False, verbose=0)
    for slots in ("keep", "reset"):
        strategy = tfdist.LocalUpdateStrategy(10, slots=slots)
        with strategy.scope():
            model = build()
        data = (features, labels)
        count, counts = counting(strategy, tf_keras)
        history = model.fit(
            *data,
            batch_size=8,
            shuffle=False,
            verbose=0,
            validation_data=data,
            callbacks=[count],
        )
        assert counts[1:] == [0, 0, 0]  # the first one makes variables
        _, of_all = mean_of_workers(strategy, alone.get_weights())
        expected = [np.average(values, 0, weights=[13, 12]) for values in of_all]
        assert difference(model.get_weights(), expected) <= EXACT
        evaluated = model.evaluate(*data, verbose=0)
        assert [history.history[f"val_{k}"][0] for k in ("loss", "accuracy")] == evaluated
    assert all(not np.any(slot) for slot in models.slots(model)[2:])


@on_ranks(2)
def test_loss_scaling_skips_on_one_worker(ctx):
    """Worker 1's gradients overflow in its first step. Worker 0 does not wait for it."""
    strategy = tfdist.LocalUpdateStrategy(10)
    with strategy.scope():
        inner = keras.optimizers.SGD(quadratics.RATE)
        model = quadratics.quadratic(keras.optimizers.LossScaleOptimizer(inner, 8.0))
    features = np.array([[1, 2], [3, -1], [1, 2], [3, -1]], "f4")
    features[1] = np.inf
    data = tf.data.Dataset.from_tensor_slices((features, np.zeros(4, "f4"))).batch(2)
    model.fit(data, verbose=0)
    expected = (quadratics.alone(0.0, 0, 2) + quadratics.alone(0.0, 1, 1)) / 2
    assert weight(model) == pytest.approx(expected, abs=1e-6)


@on_ranks(2)
def test_what_is_refused(ctx):
    strategy = tfdist.LocalUpdateStrategy(2)
    with strategy.scope():
        average = quadratics.quadratic(keras.optimizers.SGD(0.1, use_ema=True))
        nested, shared = quadratics.quadratic(), quadratics.quadratic()
        second = keras.optimizers.SGD(0.1)
        legacy = models.built_classifier(tf_keras.optimizers.legacy.SGD(0.1), library=tf_keras)
    with pytest.raises(ValueError, match="not of tf_keras.optimizers.legacy or tf.compat.v1"):
        legacy.fit(models.dataset(8, 8), verbose=0)
    with pytest.raises(ValueError, match="an optimizer without use_ema, received '(?i:sgd)"):
        average.fit(quadratics.rows(1), verbose=0)

    def apply(model, optimizer):
        gradients = [tf.ones([]) for _ in model.trainable_variables]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    function = tf.function(lambda: apply(nested, nested.optimizer))
    with pytest.raises(ValueError, match="it is applied in a tf.function which that one calls"):
        strategy.run(lambda: function())
    with pytest.raises(ValueError, match="each variable to be trained by one optimizer"):
        strategy.run(lambda: (apply(shared, shared.optimizer), apply(shared, second)))
