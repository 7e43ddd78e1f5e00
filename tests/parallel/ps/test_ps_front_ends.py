"""tf_keras and custom loops with parameter servers; inputs and options of `fit`."""

from __future__ import annotations

import time

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfdist
from parallel.ps.test_ps_sync import agree
from support.ps_job import fit_dataset, meet, on_job, served, train_like_alone
from support.training import custom_loop, models, more_models
from support.training.models import ADAPTIVE, EXACT, classifier, difference

STEPS = 20
OPTIMIZERS = {
    "sgd": ("SGD", {"learning_rate": 0.1}, EXACT),
    "momentum": ("SGD", {"learning_rate": 0.05, "momentum": 0.9}, EXACT),
    "adam": ("Adam", {}, ADAPTIVE),
}


@pytest.mark.long("*-sgd", "*-momentum", covered_by="the other cases")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@on_job(1)
def test_tf_keras(ctx, optimizer):
    if served():
        return
    name, options, tolerance = OPTIMIZERS[optimizer]
    model = train_like_alone(
        lambda: classifier(getattr(tf_keras.optimizers, name)(**options), library=tf_keras),
        fit_dataset(STEPS),
        tolerance,
        library=tf_keras,
    )
    features, labels = models.examples(101)
    predicted = model.predict(models.dataset(101, 16), verbose=0)
    assert difference([predicted], [model(features)]) <= 1e-6
    evaluated = model.evaluate(models.dataset(101, 16), verbose=0)
    assert difference([evaluated[1]], [np.mean(predicted.argmax(1) == labels)]) <= 1e-6


@pytest.mark.long("*-adam", covered_by="the other cases")
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@on_job(2, check=agree)
def test_tf_keras_in_sync(ctx, optimizer):
    if served():
        return None
    name, options, tolerance = OPTIMIZERS[optimizer]
    model = train_like_alone(
        lambda: classifier(getattr(tf_keras.optimizers, name)(**options), library=tf_keras),
        fit_dataset(STEPS),
        tolerance,
        library=tf_keras,
        mode="sync",
    )
    return model.get_weights()


@pytest.mark.long(covered_by="single/estimator/test_estimator_model_fns.py")
@on_job(1)
def test_tf_keras_legacy_optimizer(ctx):
    if served():
        return
    train_like_alone(
        lambda: classifier(tf_keras.optimizers.legacy.Adam(), library=tf_keras),
        fit_dataset(STEPS),
        ADAPTIVE,
        library=tf_keras,
    )


@pytest.mark.long("*-sgd", "*-momentum", covered_by="the other cases")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@on_job(1)
def test_custom_loop(ctx, optimizer):
    if served():
        return
    name, options, tolerance = OPTIMIZERS[optimizer]
    results = []
    for strategy in (tf.distribute.get_strategy(), tfdist.ParameterServerStrategy()):
        keras.utils.set_random_seed(0)
        results.append(custom_loop.train(strategy, name, options, 64, STEPS))
    custom_loop.assert_same(*results, tolerance)


@pytest.mark.long("*-Nadam", covered_by="the other cases")
@pytest.mark.parametrize("optimizer", ["Adam", "Nadam"])  # one runs on servers, one on workers
@on_job(2, check=agree)
def test_an_optimizer_that_is_built_in_a_traced_step(ctx, optimizer):
    if served():
        return None
    results = []
    for strategy in (tf.distribute.get_strategy(), tfdist.ParameterServerStrategy(mode="sync")):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = classifier("sgd")
            used = getattr(keras.optimizers, optimizer)()

        @tf.function
        def step(batch, strategy=strategy, model=model, used=used):
            def replica_step(features, labels):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(custom_loop.LOSS(labels, model(features))) / 64
                variables = model.trainable_variables
                gradients = tape.gradient(loss, [v.value for v in variables])
                used.apply_gradients(zip(gradients, variables, strict=True))

            strategy.run(replica_step, args=batch)

        for batch in strategy.experimental_distribute_dataset(models.dataset(64 * STEPS, 64)):
            step(batch)
        results.append(model.get_weights())
    assert difference(*results) <= ADAPTIVE
    return results[1]


@on_job(2, check=agree)
def test_custom_loop_in_sync(ctx):
    """The program chooses the divisor; tfdist sums the gradients."""
    if served():
        return None
    strategy = tfdist.ParameterServerStrategy(mode="sync")
    with strategy.scope():
        weight = tf.Variable([1.0, 2.0], name="weight")
        optimizer = keras.optimizers.SGD(0.5)
        optimizer.build([weight])
    dataset = tf.data.Dataset.range(1, 25).map(lambda i: tf.cast(i, tf.float32)).batch(4)

    @tf.function
    def step(values):
        def replica_step(mine):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(mine) / 4 * tf.reduce_sum(weight)
            optimizer.apply([tape.gradient(loss, weight)], [weight])

        strategy.run(replica_step, args=(values,))

    seen = []
    for values in strategy.experimental_distribute_dataset(dataset):
        seen += list(values.numpy())
        step(values)
    # Workers scale by the whole batch of 4; the sum over both is divided by nothing.
    assert seen == [v for v in range(1, 25) if (v - 1) % 4 // 2 == ctx.rank]
    expected = np.array([1.0, 2.0]) - 0.5 * sum(range(1, 25)) / 4
    np.testing.assert_allclose(weight, expected, rtol=1e-6)
    return [weight.numpy()]


def _two_networks(strategy, batches):
    """Trains two variables in turns; the second's gradient is by the first's new value."""
    with strategy.scope():
        first, second = tf.Variable([1.0, 2.0], name="first"), tf.Variable(0.5, name="second")
        optimizers = [keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.1)]
        for optimizer, variable in zip(optimizers, (first, second), strict=True):
            optimizer.build([variable])

    @tf.function
    def step(values):
        def replica_step(values):
            size = tf.reduce_sum(values) / strategy.num_replicas_in_sync
            optimizers[0].apply([first * size], [first])
            share = tf.reduce_sum(first) / strategy.num_replicas_in_sync
            optimizers[1].apply([share * second], [second])
            return tf.reduce_sum(first) + second

        return strategy.run(replica_step, args=(values,))

    outputs = [step(values).numpy() for values in batches]
    return [first.numpy(), second.numpy(), *outputs]


@pytest.mark.parametrize("mode", ["async", "sync"])
@on_job(1)
def test_reading_what_was_just_updated(ctx, mode):
    if not served():
        _compare_two_networks(mode)


@on_job(2, check=agree)
def test_reading_what_was_just_updated_in_sync(ctx):
    return None if served() else _compare_two_networks("sync")


def _compare_two_networks(mode):
    batches = [np.array([0.1, 0.2 * i], "float32") for i in range(5)]
    alone = _two_networks(tf.distribute.get_strategy(), batches)
    strategy = tfdist.ParameterServerStrategy(mode=mode)
    results = _two_networks(strategy, batches)
    assert difference(results, alone) <= EXACT
    assert [on for _, on in strategy.extended.optimizer_places.values()] == [True, True]
    return results


@on_job(1)
def test_a_step_that_fails_changes_nothing(ctx):
    if served():
        return
    strategy = tfdist.ParameterServerStrategy()
    with strategy.scope():
        weight = tf.Variable([1.0, 2.0], name="weight")
        optimizer = keras.optimizers.SGD(0.5)
        optimizer.build([weight])

    def step(gradient, fails):
        optimizer.apply([tf.constant(gradient)], [weight])
        if fails:
            raise RuntimeError("in the middle of a step")

    strategy.run(step, args=([1.0, 0.0], False))
    with pytest.raises(RuntimeError, match="middle of a step"):
        strategy.run(step, args=([100.0, 100.0], True))
    np.testing.assert_array_equal(weight, [0.5, 2.0])
    strategy.run(step, args=([0.0, 1.0], False))
    np.testing.assert_array_equal(weight, [0.5, 1.5])


@on_job(2, check=agree)
def test_a_late_sum_and_a_variable_that_was_just_updated(ctx):
    """The sum covers both workers, although one adds its number long after its update."""
    if served():
        return None
    strategy = tfdist.ParameterServerStrategy(mode="sync")
    with strategy.scope():
        weight = tf.Variable([1.0, 2.0])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([weight])

    def late():
        time.sleep(0.2 * ctx.rank)
        return 1.0 + ctx.rank

    def of_worker():
        number = tf.ensure_shape(tf.py_function(late, [], tf.float32), [])
        total = tf.distribute.get_replica_context().all_reduce("SUM", number)
        optimizer.apply([tf.ones([2])], [weight])
        return total, tf.reduce_sum(weight)

    step = tf.function(lambda: strategy.run(of_worker))
    results = [[value.numpy() for value in step()] for _ in range(4)]
    assert [total for total, _ in results] == [3.0] * 4
    return results


@on_job(2, check=agree)
def test_all_reduce_in_sync(ctx):
    if served():
        return None
    strategy = tfdist.ParameterServerStrategy(mode="sync")

    def of_worker():
        replica = tf.distribute.get_replica_context()
        one = tf.cast(replica.replica_id_in_sync_group + 1, tf.float32)
        total, rows = replica.all_reduce("SUM", [one, tf.fill([3], 10 * one)])
        return total, rows, replica.all_reduce("MEAN", one * 4)

    results = []
    for run in (strategy.run, tf.function(strategy.run)):
        for _ in range(3):
            total, rows, mean = run(of_worker)
            assert (float(total), float(mean)) == (3.0, 6.0)
            np.testing.assert_array_equal(rows, [30.0] * 3)
            results += [total.numpy(), rows.numpy()]
    return results


@pytest.mark.long("*options1", covered_by="the other cases")
@pytest.mark.parametrize("options", [{"steps_per_execution": 4}, {"run_eagerly": True}])
@on_job(1)
def test_other_kinds_of_steps(ctx, options):
    if served():
        return
    train_like_alone(
        lambda: classifier(keras.optimizers.Adam(0.01), **options), fit_dataset(STEPS), EXACT
    )


@pytest.mark.long(covered_by="parallel/keras/test_keras_inputs.py")
@on_job(2, check=agree)
def test_nested_inputs_in_sync(ctx):
    if served():
        return None
    model = train_like_alone(
        more_models.nested_model,
        lambda model: model.fit(more_models.nested_dataset(), verbose=0),
        EXACT,
        mode="sync",
    )
    return model.get_weights()


@pytest.mark.long(covered_by="parallel/keras/test_keras_inputs.py")
@on_job(2, check=agree)
def test_strings_in_sync(ctx):
    if served():
        return None
    model = train_like_alone(
        more_models.reader_of_words,
        lambda model: model.fit(more_models.words(240).batch(48), verbose=0),
        EXACT,
        mode="sync",
    )
    return model.get_weights()


@pytest.mark.long("*-SGD", "*-Adam", covered_by="the other cases")
@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "Adagrad"])
@on_job(2, check=agree)
def test_embedding_in_sync(ctx, optimizer):
    """Rows: ids repeat within a row, a share and between workers, and one is never seen."""
    if served():
        return None
    make = getattr(keras.optimizers, optimizer)
    ids, labels = more_models.ids_and_labels(64 * STEPS)
    options = {"batch_size": 64, "shuffle": False, "verbose": 0}
    keras.utils.set_random_seed(0)
    alone = more_models.embedding(make(0.05), sparse=False)
    start = alone.get_weights()
    alone.fit(ids, labels, **options)
    strategy = tfdist.ParameterServerStrategy(mode="sync", max_shard_bytes=64)
    with strategy.scope():
        model = more_models.embedding(make(0.05), sparse=True)
    model.set_weights(start)
    meet(ctx, "started")
    assert difference(model.get_weights(), start) == 0
    model.fit(ids, labels, **options)
    assert difference(model.get_weights(), alone.get_weights()) <= ADAPTIVE
    return model.get_weights()
