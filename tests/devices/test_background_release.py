"""The end of an iteration does not wait for tf.data's threads; its resources end soon."""

from __future__ import annotations

import functools
import gc
import threading
import time
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist

pytestmark = pytest.mark.timeout(60)

PATIENCE = 20.0


STRATEGIES = {
    "two devices": lambda: tfdist.MirroredStrategy(["CPU:0", "CPU:1"]),
    "central storage": lambda: tfdist.CentralStorageStrategy(["CPU:0", "CPU:1"]),
    "one device": tfdist.MultiWorkerMirroredStrategy,
}


@pytest.mark.parametrize("kind", list(STRATEGIES))
@pytest.mark.parametrize("how", ["dataset", "function"])
def test_iterators_end_in_the_background(kind, how):
    """The destructor runs the generator's last step, and no Python thread waits for it."""
    ended, may_end = threading.Event(), threading.Event()

    def numbers():
        try:
            yield from range(8)
        finally:
            may_end.wait(PATIENCE)
            ended.set()

    strategy = STRATEGIES[kind]()
    spec = tf.TensorSpec([], tf.int64)
    dataset = tf.data.Dataset.from_generator(numbers, output_signature=spec).batch(2)
    if how == "dataset":
        distributed = strategy.experimental_distribute_dataset(dataset)
    else:
        distributed = strategy.distribute_datasets_from_function(lambda _, made=dataset: made)
    iterator = iter(distributed)
    first = [part.numpy() for part in strategy.experimental_local_results(next(iterator))]
    assert np.concatenate(first).min() == 0
    began = time.monotonic()
    del iterator, distributed, dataset
    gc.collect()
    assert time.monotonic() - began < PATIENCE / 2 and not ended.is_set()
    may_end.set()
    assert ended.wait(PATIENCE)


def test_an_iterator_that_ends_slowly_does_not_hold_up_others():
    ended = {"slow": threading.Event(), "fast": threading.Event()}

    def numbers(name):
        try:
            yield from range(8)
        finally:
            if name == "slow":
                ended["fast"].wait(PATIENCE)
            ended[name].set()

    strategy = tfdist.MirroredStrategy(["CPU:0", "CPU:1"])
    spec = tf.TensorSpec([], tf.int64)
    for name in ended:
        dataset = tf.data.Dataset.from_generator(
            functools.partial(numbers, name), output_signature=spec
        )
        iterator = iter(strategy.experimental_distribute_dataset(dataset.batch(2)))
        next(iterator)
        del iterator, dataset
        gc.collect()
    assert ended["fast"].wait(PATIENCE / 2)
    assert ended["slow"].wait(PATIENCE)


@pytest.mark.filterwarnings("ignore:To make it possible to preserve tf.data options")
def test_a_distributed_dataset_is_one_of_tensorflow():
    strategy = tfdist.MirroredStrategy(["CPU:0", "CPU:1"])
    distributed = strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(4))
    assert isinstance(distributed, tf.distribute.DistributedDataset)

    @tf.function
    def total(data):
        result = tf.zeros([], tf.int64)
        for batch in data:
            parts = strategy.experimental_local_results(batch)
            result += tf.add_n([tf.reduce_sum(part) for part in parts])
        return result

    assert total(distributed) == sum(range(8)) == total(distributed)


def test_a_collection_that_takes_long_does_not_wait_either():
    """Other threads run between the collection's word of the end and the end itself."""
    ended, may_end = threading.Event(), threading.Event()

    def numbers():
        try:
            yield from range(8)
        finally:
            may_end.wait(PATIENCE)
            ended.set()

    class Linked:
        """Refers to itself, so that a collection ends it."""

        def __init__(self, *held):
            self.held = [self, *held]

    spec = tf.TensorSpec([], tf.int64)
    dataset = tf.data.Dataset.from_generator(numbers, output_signature=spec)
    strategy = tfdist.MirroredStrategy(["CPU:0", "CPU:1"])
    gc.collect()
    gc.disable()
    linked = Linked(iter(strategy.experimental_distribute_dataset(dataset.batch(2))))
    next(linked.held[1])
    later = Linked()
    weakref.finalize(later, time.sleep, 0.5)
    del linked, later, dataset
    began = time.monotonic()
    gc.collect()
    gc.enable()
    assert time.monotonic() - began < PATIENCE / 2 and not ended.is_set()
    may_end.set()
    assert ended.wait(PATIENCE)


def test_the_iterators_of_a_plain_fit_end_in_the_background():
    """Once Keras is repaired, also without a strategy: a later collection waits for none."""
    ended, may_end = threading.Event(), threading.Event()

    def rows():
        try:
            yield from [np.ones((2, 3), np.float32)] * 8
        finally:
            may_end.wait(PATIENCE)
            ended.set()

    tfdist.MirroredStrategy(["CPU:0"])
    spec = tf.TensorSpec([2, 3], tf.float32)
    dataset = tf.data.Dataset.from_generator(rows, output_signature=spec).map(lambda x: (x, x))
    model = keras.Sequential([keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    model.fit(dataset, steps_per_epoch=2, verbose=0)
    began = time.monotonic()
    del dataset, model
    gc.collect()
    assert time.monotonic() - began < PATIENCE / 2 and not ended.is_set()
    may_end.set()
    assert ended.wait(PATIENCE)
