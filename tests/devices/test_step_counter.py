"""Training steps and their rows are counted in any loop; evaluation is not."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfdist
from tfdist.job import process
from tfdist.ops.local.step_counter import count_step, counted

X = np.random.default_rng(0).normal(size=(22, 4)).astype("f4")
Y = X.sum(axis=1, keepdims=True)


@pytest.fixture(autouse=True)
def counts(monkeypatch):
    monkeypatch.setattr(process.current, "counts_steps", True)


class Count:
    """The steps and rows that were counted within a `with` statement."""

    def __enter__(self):
        self._before = counted()
        return self

    def __exit__(self, *error):
        self.found = tuple(now - was for now, was in zip(counted(), self._before, strict=True))


def model(library, strategy, **options):
    with strategy.scope():
        layers = [library.layers.Input((4,)), library.layers.Dense(1)]
        found = library.Sequential(layers)
        found.compile(library.optimizers.SGD(0.01), "mse", **options)
    return found


@pytest.mark.long("mirrored-eager-keras", "mirrored-loop-keras", covered_by="the other cases")
@pytest.mark.long("central-*", "*-graph-tf_keras", "*-eager-tf_keras", covered_by="the other cases")
@pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras", "tf_keras"])
@pytest.mark.parametrize(
    "options",
    [{}, {"steps_per_execution": 2}, {"run_eagerly": True}],
    ids=["graph", "loop", "eager"],
)
def test_fit(strategy, library, options):
    built = model(library, strategy, **options)
    with Count() as count:
        built.fit(X, Y, batch_size=8, epochs=2, verbose=0)
    assert count.found == (6, 44)
    with Count() as count:
        built.evaluate(X, Y, batch_size=8, verbose=0)
        built.predict(X, batch_size=8, verbose=0)
    assert count.found == (0, 0)
    # Another dataset: the function of a step is not traced again.
    with Count() as count:
        built.fit(tf.data.Dataset.from_tensor_slices((X, Y)).batch(11), verbose=0)
    assert count.found == (2, 22)


def test_one_device():
    built = model(keras, tfdist.OneDeviceStrategy("CPU:0"))
    with Count() as count:
        built.fit(X, Y, batch_size=8, verbose=0)
        built.evaluate(X, Y, batch_size=8, verbose=0)
    assert count.found == (3, 22)


def test_accumulated_gradients():
    strategy = tfdist.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        built = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        built.compile(keras.optimizers.SGD(0.01, gradient_accumulation_steps=2), "mse")
    with Count() as count:
        built.fit(X, Y, batch_size=8, epochs=2, verbose=0)
    assert count.found == (6, 44)


def trainable(strategy):
    with strategy.scope():
        weight, optimizer = tf.Variable(1.0), keras.optimizers.SGD(0.5)
        optimizer.build([weight])
    return weight, lambda *batch: optimizer.apply([tf.constant(1.0)], [weight])


def test_compiled_by_xla(caplog):
    # XLA compiles no op of tfdist's.
    strategy = tfdist.MirroredStrategy(["CPU:0"])
    built = model(keras, strategy, jit_compile=True)
    with Count() as count:
        built.fit(X, Y, batch_size=8, verbose=0)
    assert count.found == (0, 0)
    assert "training steps are not counted" in caplog.text


def test_compiled_within_the_run():
    strategy = tfdist.MirroredStrategy(["CPU:0"])
    weight, train = trainable(strategy)
    step = tf.function(train, jit_compile=True)
    with Count() as count:
        for size in (3, 4, 4):
            strategy.run(step, (tf.ones([size]),))
    assert count.found == (3, 11)
    assert float(weight.numpy()) == -0.5


@pytest.mark.long("central-*", covered_by="the other cases")
@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
def test_custom_loop(strategy, graph):
    with strategy.scope():
        weights = tf.Variable(tf.zeros([4, 1]))
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build([weights])

    def loss_of(x, y):
        # AutoGraph converts it.
        if tf.reduce_sum(x) > 1e9:
            x = tf.zeros_like(x)
        return tf.reduce_mean((tf.matmul(x, weights) - y) ** 2)

    def train(batch):
        with tf.GradientTape() as tape:
            loss = loss_of(*batch)
        optimizer.apply([tape.gradient(loss, weights)], [weights])
        return loss

    def steps(iterator, function):
        return strategy.run(function, args=(next(iterator),))

    def evaluate(batch):
        return loss_of(*batch)

    if graph:
        steps = tf.function(steps)
    data = strategy.experimental_distribute_dataset(
        tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    )
    with Count() as count:
        iterator = iter(data)
        for _ in range(3):
            steps(iterator, train)
    assert count.found == (3, 22)
    with Count() as count:
        iterator = iter(data)
        for _ in range(3):
            steps(iterator, evaluate)
    assert count.found == (0, 0)


@pytest.mark.parametrize("compiled", [False, True])
def test_what_a_batch_is(compiled):
    strategy = tfdist.MirroredStrategy(["CPU:0"])
    _, train = trainable(strategy)
    ragged = tf.ragged.constant([[1.0], [2.0, 3.0], [4.0]])
    sparse = tf.sparse.from_dense([[1.0, 0.0], [0.0, 1.0]])
    function = tf.function(train) if compiled else train
    with Count() as count:
        strategy.run(function, args=(tf.constant(2.0), {"b": tf.ones([9]), "a": ragged}))
        strategy.run(function, args=(sparse,))
        strategy.run(function)
        strategy.run(function, kwargs={})
    assert count.found == (4, 5)


def test_off_adds_nothing(monkeypatch):
    monkeypatch.setattr(process.current, "counts_steps", False)
    strategy = tfdist.MirroredStrategy(["CPU:0", "CPU:1"])
    _, train = trainable(strategy)
    step = tf.function(lambda x: strategy.run(train, (x,)))
    function = step.get_concrete_function(tf.ones([2]))
    assert not any(op.type == "TfdistCountStep" for op in function.graph.get_operations())


def test_later_ops_do_not_wait_for_the_count():
    @tf.function
    def step(rows):
        count_step(rows)
        return tf.random.normal([])

    operations = step.get_concrete_function(tf.constant(3, tf.int64)).graph.get_operations()
    drawn = next(op for op in operations if op.type == "RandomStandardNormal")
    assert "TfdistCountStep" not in [op.type for op in drawn.control_inputs]
    with Count() as count:
        step(tf.constant(3, tf.int64))
    assert count.found == (1, 3)
