"""Pipelines with maps, by their parts."""

from __future__ import annotations

import collections
from collections.abc import Callable

import numpy as np
import tensorflow as tf

import tfdist
from tfdist.data.cut.plan import CutPlan, plan_of
from tfdist.data.cut.share import share_of
from tfdist.data.shares import rows_of

Dataset = tf.data.Dataset
Pair = collections.namedtuple("Pair", ["x", "y"])


def rows(count: int) -> Dataset:
    values = np.arange(count * 3, dtype=np.float32).reshape(count, 3)
    return Dataset.from_tensor_slices((np.arange(count), values))


def changed(number, values):
    return number * 2, values + 1


def normalized(number, values):
    """A map of batches that needs all rows."""
    return number, values - tf.reduce_mean(values)


def lengths(count: int) -> Dataset:
    """Elements without a static shape."""
    return Dataset.from_tensor_slices(tf.ragged.range(np.arange(count) % 4))


# By name: of a number of rows, makes the dataset that is batched, and then what follows.
ELEMENTS: dict[str, Callable[[int], Dataset]] = {
    "map": lambda n: rows(n).map(changed),
    "parallel map": lambda n: rows(n).map(changed, num_parallel_calls=2, deterministic=False),
    "two maps": lambda n: rows(n).map(changed).prefetch(2).map(lambda a, b: {"x": b, "y": a}),
    "named tuple": lambda n: rows(n).map(Pair).map(lambda pair: Pair(pair.x + 1, pair.y)),
    "shuffle, map": lambda n: rows(n).shuffle(20, seed=3).map(changed),
    "map, shuffle": lambda n: rows(n).map(changed).shuffle(20, seed=3),
    "map, fixed shuffle": lambda n: (
        rows(n).map(changed).shuffle(20, seed=3, reshuffle_each_iteration=False)
    ),
    "shuffle, map, repeat": lambda n: rows(n).shuffle(20, seed=3).map(changed).repeat(2),
    "map, shuffle, repeat": lambda n: rows(n).map(changed).shuffle(20, seed=3).repeat(2),
    "map, take, skip": lambda n: rows(n).map(changed).take(n - 3).skip(2),
    "map, assert": lambda n: rows(n).map(changed).apply(tf.data.experimental.assert_cardinality(n)),
    "map, cache, shuffle": lambda n: rows(n).map(changed).cache().shuffle(20, seed=3),
    "parallel maps, cache, map": lambda n: (
        rows(n)
        .map(changed, num_parallel_calls=2)
        .map(lambda a, b: {"x": b[: a % 3], "y": tf.as_string(a)}, num_parallel_calls=2)
        .prefetch(1)
        .cache()
        .map(lambda row: (tf.reduce_sum(row["x"]), row["y"]))
        .shuffle(20, seed=3)
    ),
    "map, shuffle, repeat, cache": lambda n: (
        rows(n).map(changed).shuffle(20, seed=3).repeat(2).cache().repeat(2)
    ),
    "zip of maps, cache": lambda n: Dataset.zip(
        (Dataset.range(n).map(lambda x: x + 1), rows(n))
    ).cache(),
    "part of a cache": lambda n: rows(n).shuffle(9, seed=3).map(changed).cache().take(n - 3),
    "no static shape, cache": lambda n: lengths(n).map(lambda row: tf.reduce_sum(row)).cache(),
    "filter, map": lambda n: rows(n).filter(lambda a, _: a % 5 > 0).map(changed),
    "generator": lambda n: Dataset.from_generator(
        lambda: iter(range(n)), output_signature=tf.TensorSpec((), tf.int64)
    ).map(lambda number: number * 2),
    "interleave, map": lambda n: (
        Dataset.range(n).interleave(lambda x: Dataset.from_tensors(x)).map(lambda x: x + 1)
    ),
    "no static shape": lambda n: lengths(n).map(lambda row: tf.reduce_sum(row)),
    "no static shapes": lambda n: Dataset.zip((lengths(n), Dataset.range(n))).map(
        lambda a, b: tf.reduce_sum(a) + b
    ),
    "ragged": lambda n: rows(n).map(lambda a, _: tf.ragged.range(tf.range(a % 3 + 1))),
    "sparse": lambda n: rows(n).map(
        lambda a, b: tf.sparse.from_dense(b * tf.cast(a % 2, tf.float32))
    ),
    "None": lambda n: rows(n).map(lambda a, b: (a, None, b)),
    "zip": lambda n: Dataset.zip((Dataset.range(n).map(lambda x: x + 1), Dataset.range(n))),
    "nested zip": lambda n: Dataset.zip(
        {"a": Dataset.range(n).map(lambda x: x + 1), "b": (rows(n), rows(n).map(changed))}
    ).shuffle(9, seed=1),
    "table": lambda n: rows(n).map(lambda a, _: TABLE.lookup(a)),
    "stateless random": lambda n: rows(n).map(
        lambda a, b: b + tf.random.stateless_uniform((), [a, 1])
    ),
    "TensorFlow 1": lambda n: tf.compat.v1.data.Dataset.range(n).map(lambda x: x + 1),
    "Python": lambda n: rows(n).map(
        lambda _, b: tf.numpy_function(lambda x: x + 1, [b], tf.float32)
    ),
}
TABLE = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(np.arange(9), np.arange(9) * 7), default_value=-1
)
BATCHES: dict[str, Callable[[Dataset, int, bool], Dataset]] = {
    "batch": lambda data, size, drop: data.batch(size, drop),
    "parallel batch": lambda data, size, drop: data.batch(size, drop, num_parallel_calls=2),
    "prefetch": lambda data, size, drop: data.batch(size, drop).prefetch(tf.data.AUTOTUNE),
    "repeat of batches": lambda data, size, drop: data.batch(size, drop).repeat(2),
    "some batches": lambda data, size, drop: data.batch(size, drop).repeat(3).take(7).skip(2),
    "shuffled batches": lambda data, size, drop: data.batch(size, drop).shuffle(4, seed=2),
    "cached batches": lambda data, size, drop: (
        data.batch(size, drop).cache().shuffle(4, seed=2).prefetch(1)
    ),
    "map per row": lambda data, size, drop: tfdist.data.per_row(
        data.batch(size, drop).map(
            lambda *batch: (batch, batch[0] + 0 * tf.size(batch[0], tf.int64))
        )
    ),
    "map of batches": lambda data, size, drop: data.batch(size, drop).map(changed),
}
# Rows of a batch, rows, whether a short batch is dropped, workers.
CUTS = [(8, 33, False, 2), (10, 38, False, 4), (10, 33, True, 3)]


def flat(batch) -> list[np.ndarray]:
    """The values of a batch, of which `None` is left out."""
    parts = tf.nest.flatten(batch, expand_composites=True)
    return [part.numpy() for part in parts if part is not None]


def assert_same_shares(make: Callable[[], Dataset], workers: int, devices: int = 1) -> None:
    """Asserts that shares equal the shares of whole batches, in two epochs."""
    options = tf.data.Options()
    # Else maps read ahead of `take`, and the second epoch's order depends on how far they got.
    options.experimental_optimization.map_parallelization = False
    for rank in range(workers):
        plan = plan_of(make())
        assert isinstance(plan, CutPlan), plan
        own = share_of(plan, workers, rank, devices)
        expected = make().map(
            lambda *batch, first=rank * devices: tuple(
                rows_of(batch, workers * devices, first + i) for i in range(devices)
            )
        )
        expected = expected.with_options(options)
        for _ in range(2):
            batches = [flat(batch) for batch in own]
            wanted = [flat(part) for parts in expected for part in parts]
            assert len(batches) == len(wanted) > 0
            for batch, other in zip(batches, wanted, strict=True):
                for value, same in zip(batch, other, strict=True):
                    assert value.dtype == same.dtype
                    np.testing.assert_array_equal(value, same)
