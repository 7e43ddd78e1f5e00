"""Two workers with two logical CPU devices each: four replicas, one message per reduction."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.logical_devices import two_devices
from support.processes.ranks import on_ranks
from support.training import models
from support.training.models import (
    ADAPTIVE,
    EXACT,
    classifier,
    difference,
    examples,
    identical,
    normalized_classifier,
)
from tfdist.errors import ClusterConfigError

STEPS = 10


OPTIMIZERS = {
    "momentum": (lambda: keras.optimizers.SGD(0.1, momentum=0.9), EXACT),
    "adam": (lambda: keras.optimizers.Adam(), ADAPTIVE),
    "accumulation": (lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), EXACT),
}


# Adam, which has slots.
@pytest.mark.long(
    "*-momentum", "*-accumulation", covered_by="the other cases, devices/test_optimizers.py"
)
@pytest.mark.parametrize("name", OPTIMIZERS)
@on_ranks(2, check=identical)
def test_fit_evaluate_predict(ctx, name):
    optimizer, tolerance = OPTIMIZERS[name]
    two_devices()
    keras.utils.set_random_seed(0)
    alone = classifier(optimizer())
    expected = alone.fit(models.dataset(64 * STEPS, 64), verbose=0).history
    strategy = tfdist.MultiWorkerMirroredStrategy()
    assert strategy.num_replicas_in_sync == 4
    assert len(strategy.extended.worker_devices) == 2
    keras.utils.set_random_seed(ctx.rank)
    with strategy.scope():
        model = classifier(optimizer())
    history = model.fit(models.dataset(64 * STEPS, 64), verbose=0).history
    weights = model.get_weights()
    if ctx.rank == 0:
        assert difference(weights, alone.get_weights()) <= tolerance
        assert difference([*history.values()], [*expected.values()]) <= tolerance
    # The copies on both devices are the same.
    for variable in model.trainable_variables:
        first, second = strategy.experimental_local_results(variable.value)
        np.testing.assert_array_equal(first, second)
    evaluated = model.evaluate(models.dataset(101, 16), verbose=0)
    predicted = model.predict(models.dataset(101, 16), verbose=0)
    # Keras 3.16 builds for the batches that `fit` got.
    alone = models.built_classifier(optimizer())
    alone.set_weights(weights)
    assert difference(evaluated, alone.evaluate(*examples(101), verbose=0)) <= 1e-6
    assert difference([predicted], [alone.predict(examples(101)[0], verbose=0)]) <= 1e-6
    return [*weights, evaluated, predicted]


@pytest.mark.long(covered_by="parallel/keras/test_keras_batch_norm.py")
@on_ranks(2, check=identical)
def test_batch_normalization_and_a_last_batch_of_one_row(ctx):
    two_devices()
    features, labels = examples(64 * 5 + 1)

    keras.utils.set_random_seed(0)
    alone = normalized_classifier()
    models.train_by_replica_means(alone, models.batches(features, labels, 64), 4)
    with tfdist.MultiWorkerMirroredStrategy().scope():
        keras.utils.set_random_seed(ctx.rank)
        model = normalized_classifier()
    model.fit(features, labels, batch_size=64, shuffle=False, verbose=0)
    weights = model.get_weights()
    if ctx.rank == 0:
        assert difference(weights, alone.get_weights()) <= EXACT
    return weights


@on_ranks(2)
def test_collectives(ctx):
    """Replica r of 4 holds r + 1, so that every sum and every order has a closed form."""
    two_devices()
    options = tfdist.CommunicationOptions(timeout_seconds=20.0)
    strategy = tfdist.MultiWorkerMirroredStrategy(communication_options=options)

    def of_replica():
        replica = tf.distribute.get_replica_context()
        one = tf.cast(replica.replica_id_in_sync_group, tf.float32) + 1.0
        rows = tf.IndexedSlices(tf.reshape([one, one], [2, 1]), tf.constant([0, 2]), (4, 1))
        summed, tensors, sparse = replica.all_reduce("SUM", [one, tf.fill([3], one), rows])
        mean = replica.all_reduce("MEAN", tf.cast(one, tf.int32))
        gathered = replica.all_gather(tf.fill([2, 1], one), axis=1)
        return summed, tensors, tf.convert_to_tensor(sparse), mean, gathered, one

    for run in (strategy.run, tf.function(strategy.run)):
        *same, own = (strategy.experimental_local_results(value) for value in run(of_replica))
        for local in zip(*same, strict=True):
            summed, tensors, sparse, mean, gathered = (value.numpy() for value in local)
            assert summed == 10.0
            np.testing.assert_array_equal(tensors, [10.0] * 3)
            np.testing.assert_array_equal(sparse, [[10.0], [0.0], [10.0], [0.0]])
            assert mean == 2.5
            np.testing.assert_array_equal(gathered, [[1.0, 2.0, 3.0, 4.0]] * 2)
        assert [float(value) for value in own] == [2 * ctx.rank + 1.0, 2 * ctx.rank + 2.0]
    before = strategy.communication_stats().collectives
    assert strategy.reduce("SUM", run(of_replica)[-1], axis=None).numpy() == 10.0
    # One for both dense tensors, one for the mean, one for `reduce`; to gather takes two, for the
    # sizes and what they are of, and so do rows: as many as with one device.
    assert strategy.communication_stats().collectives - before == 3 + 2 + 2


@on_ranks(2)
def test_workers_with_different_numbers_of_devices(ctx):
    if ctx.rank == 1:
        two_devices()
    options = tfdist.CommunicationOptions(timeout_seconds=5.0)
    with pytest.raises(ClusterConfigError, match="worker 0 has 1, worker 1 has 2"):
        tfdist.MultiWorkerMirroredStrategy(communication_options=options)
