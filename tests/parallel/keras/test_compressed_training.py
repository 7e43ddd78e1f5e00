"""Compression in training: the compressed gradients, and the results of each front end."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks
from support.training import models
from support.training.models import classifier, identical
from tfdist.compression import BF16, FP16, OneBit, PowerSGD, TopK

METHODS = {"topk": TopK(0.1, min_elements=16), "powersgd": PowerSGD(2, min_elements=16)}
SHAPE = (20, 12)
STEPS, SILENCE = 4, 20


def strategy_with(compression) -> tfdist.MultiWorkerMirroredStrategy:
    return tfdist.MultiWorkerMirroredStrategy(
        communication_options=tfdist.CommunicationOptions(compression=compression)
    )


def gradient(replica: int, step: int) -> np.ndarray:
    """Zeros, after the first steps: the residuals are sent then."""
    if step >= STEPS:
        return np.zeros(SHAPE, "float32")
    return np.random.default_rng([replica, step]).normal(size=SHAPE).astype("float32")


def total(replicas: int) -> np.ndarray:
    return sum(gradient(r, s) for r in range(replicas) for s in range(STEPS))


def follow(strategy, step, replicas_before: int, weight) -> None:
    """Makes steps with the replicas' gradients; a rate of 1 adds up what was applied."""

    def of_replica(context, number):
        return tf.constant(gradient(replicas_before + context.replica_id_in_sync_group, number))

    local = len(strategy.extended.worker_devices)
    for number in range(STEPS + SILENCE):
        step(
            strategy.experimental_distribute_values_from_function(
                lambda context, n=number: of_replica(context, n)
            )
        )
        if number == STEPS - 1:
            missing = np.max(np.abs(weight.numpy() + total(strategy.num_replicas_in_sync)))
            assert missing > 0.1, f"no residual, with {local} devices"
    np.testing.assert_allclose(-weight.numpy(), total(strategy.num_replicas_in_sync), atol=1e-4)


@pytest.mark.parametrize("mode", ["eager", "function", "loop"])
@on_ranks(2, check=identical)
def test_keras_3_keeps_what_was_not_sent(ctx, mode):
    results = []
    for name in METHODS:
        strategy = strategy_with(METHODS[name])
        with strategy.scope():
            # Alike, one after the other: nothing of the first may come to the second.
            weights = [tf.Variable(tf.zeros(SHAPE)) for _ in range(2)]
            optimizers = [keras.optimizers.SGD(1.0) for _ in weights]

        def step_of(optimizer, weight, strategy=strategy):
            def step(value):
                strategy.run(lambda g: optimizer.apply([g], [weight]), args=(value,))

            def loop(value):
                for _ in tf.range(1):
                    step(value)

            return {"eager": step, "function": tf.function(step), "loop": tf.function(loop)}[mode]

        steps = [step_of(o, w) for o, w in zip(optimizers, weights, strict=True)]
        first = strategy.experimental_distribute_values_from_function(
            lambda context: tf.ones(SHAPE) * (1.0 + context.replica_id_in_sync_group)
        )
        steps[0](first)
        follow(strategy, steps[1], 0, weights[1])
        results += [w.numpy() for w in weights]
    return results


@on_ranks(2, check=identical)
def test_several_devices_are_added_before(ctx):
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = strategy_with(METHODS["topk"])
    with strategy.scope():
        weight = tf.Variable(tf.zeros(SHAPE))
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([weight])

    @tf.function
    def step(value):
        strategy.run(lambda g: optimizer.apply([g], [weight]), args=(value,))

    follow(strategy, step, 0, weight)
    return [v.numpy() for v in strategy.experimental_local_results(weight)]


@on_ranks(2, check=identical, env={"TF_USE_LEGACY_KERAS": "1"})
def test_tf_keras_keeps_what_was_not_sent(ctx):
    import tf_keras

    results = []
    for name in METHODS:
        strategy = strategy_with(METHODS[name])
        with strategy.scope():
            weight = tf.Variable(tf.zeros(SHAPE))
            optimizer = tf_keras.optimizers.SGD(1.0)
            optimizer.build([weight])

        @tf.function
        def step(value, strategy=strategy, optimizer=optimizer, weight=weight):
            def of_replica(g):
                optimizer.apply_gradients([(g, weight)])

            strategy.run(of_replica, args=(value,))

        follow(strategy, step, 0, weight)
        results.append(weight.numpy())
    return results


def fit(strategy, library) -> tuple[list[float], int, list[np.ndarray]]:
    """Trains a classifier; returns its losses, the bytes it sent, its weights."""
    library.utils.set_random_seed(0)
    with strategy.scope():
        middle = [library.layers.Dense(64, activation="tanh")]
        model = classifier(library.optimizers.SGD(0.3), middle=middle, library=library)
    # The last batch is smaller: the step is traced twice, for the same gradients.
    data = models.dataset(64 * 12 + 8, 64)
    before = strategy.communication_stats().bytes_sent
    losses = model.fit(data, epochs=3, verbose=0).history["loss"]
    return losses, strategy.communication_stats().bytes_sent - before, model.get_weights()


def compare(methods: dict, library) -> list[np.ndarray]:
    """Trains with each method; all must learn, at most two epochs later, with fewer bytes."""
    plain, plain_bytes, _ = fit(strategy_with(None), library)
    results = []
    for name, method in methods.items():
        losses, sent, weights = fit(strategy_with(method), library)
        assert losses[-1] < 0.8 * plain[0], (name, losses, plain)
        assert sent < 0.75 * plain_bytes, (name, sent, plain_bytes)
        results += weights
    return results


@pytest.mark.long(covered_by="test_keras_3_learns_in_mixed_precision")
@on_ranks(2, check=identical, timeout=120)
def test_keras_3_learns(ctx):
    methods = {"topk": METHODS["topk"], "onebit": OneBit(min_elements=16)}
    return compare({**methods, "bf16": BF16(min_elements=16)}, keras)


@on_ranks(2, check=identical, timeout=120)
def test_keras_3_learns_in_mixed_precision(ctx):
    keras.config.set_dtype_policy("mixed_float16")
    late = PowerSGD(2, start_iteration=5, min_elements=16)
    return compare({"powersgd, late": late}, keras)


@pytest.mark.long(
    covered_by="test_keras_3_learns_in_mixed_precision, test_tf_keras_keeps_what_was_not_sent"
)
@on_ranks(2, check=identical, timeout=120, env={"TF_USE_LEGACY_KERAS": "1"})
def test_tf_keras_learns(ctx):
    import tf_keras

    methods = {"powersgd": METHODS["powersgd"], "fp16": FP16(min_elements=16)}
    return compare(methods, tf_keras)


@on_ranks(2, check=identical)
def test_only_gradients_are_compressed_unless_a_call_asks(ctx):
    strategy = strategy_with(TopK(0.01))
    large = tf.range(2000.0) * 40.0 + ctx.rank
    exact = 2 * tf.range(2000.0) * 40.0 + 1
    np.testing.assert_array_equal(strategy.reduce("SUM", large, axis=None), exact)

    @tf.function
    def reduced(options):
        def of_replica():
            context = tf.distribute.get_replica_context()
            return context.all_reduce("SUM", [large, large], options=options)

        return strategy.run(of_replica)

    for value in reduced(None):
        np.testing.assert_array_equal(value, exact)
    ours = reduced(tfdist.CommunicationOptions(compression=TopK(0.25)))
    for value in ours:
        assert np.count_nonzero(value) == 500
    return [*ours]


@on_ranks(1)
def test_a_lone_worker_has_nothing_to_compress(ctx):
    strategy = strategy_with("topk")
    with strategy.scope():
        model = classifier(keras.optimizers.SGD(0.1))
    model.fit(models.dataset(64, 32), verbose=0)
    assert strategy.communication_stats().collectives == 0
