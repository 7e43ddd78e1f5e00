"""A worker that maps its own rows alone has the same batches as with maps of all rows."""

from __future__ import annotations

import collections
from collections.abc import Callable

import numpy as np
import pytest
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
        data.batch(size, drop).map(lambda *batch: (batch, batch[0] + 1))
    ),
}
# Rows of a batch, rows, whether a short batch is dropped, workers.
CUTS = [(8, 33, False, 2), (10, 38, False, 4), (10, 33, True, 3)]


def flat(batch) -> list[np.ndarray]:
    parts = tf.nest.flatten(batch, expand_composites=True)
    return [part.numpy() for part in parts if part is not None]


def assert_same_batches(make: Callable[[], Dataset], workers: int, devices: int = 1) -> None:
    """Asserts that shares equal the shares of whole batches, in two epochs."""
    for rank in range(workers):
        plan = plan_of(make())
        assert isinstance(plan, CutPlan), plan
        own = share_of(plan, workers, rank, devices)
        expected = make().map(
            lambda *batch, first=rank * devices: tuple(
                rows_of(batch, workers * devices, first + i) for i in range(devices)
            )
        )
        for _ in range(2):
            batches = [flat(batch) for batch in own]
            wanted = [flat(part) for parts in expected for part in parts]
            assert len(batches) == len(wanted) > 0
            for batch, other in zip(batches, wanted, strict=True):
                for value, same in zip(batch, other, strict=True):
                    assert value.dtype == same.dtype
                    np.testing.assert_array_equal(value, same)


@pytest.mark.parametrize(("size", "count", "drops", "workers"), CUTS)
@pytest.mark.parametrize("name", ELEMENTS)
def test_elements(name, size, count, drops, workers):
    assert_same_batches(lambda: ELEMENTS[name](count).batch(size, drops), workers)


@pytest.mark.parametrize(("size", "count", "drops", "workers"), CUTS)
@pytest.mark.parametrize("name", BATCHES)
def test_batches(name, size, count, drops, workers):
    data = lambda: rows(count).shuffle(9, seed=5).map(changed)  # noqa: E731
    assert_same_batches(lambda: BATCHES[name](data(), size, drops), workers)


@pytest.mark.parametrize("drops", [False, True])
def test_padded_batches(drops):
    def make():
        padded = rows(33).map(lambda a, b: (tf.range(a % 4), b))
        return padded.padded_batch(8, ([5], [3]), (tf.constant(-1, tf.int64), 0.0), drops)

    assert_same_batches(make, 3)


@pytest.mark.parametrize(("count", "drops"), [(38, False), (38, True), (21, False)])
def test_several_devices(count, drops):
    assert_same_batches(lambda: rows(count).map(changed).batch(10, drops), 2, devices=3)


def test_a_batch_of_fewer_rows_than_workers():
    assert_same_batches(lambda: rows(9).map(changed).batch(4), 6)


def test_a_dataset_without_rows():
    plan = plan_of(rows(0).map(changed).batch(4))
    assert list(share_of(plan, 2, 1)) == []


@pytest.mark.parametrize("drops", [False, True])
def test_the_number_of_batches_and_the_options_are_kept(drops):
    options = tf.data.Options()
    options.threading.private_threadpool_size = 3
    data = rows(33).map(changed).batch(8, drops).repeat(2).with_options(options)
    own = share_of(plan_of(data), 2, 1)
    assert own.cardinality() == data.cardinality()
    assert own.options().threading.private_threadpool_size == 3
    assert own.element_spec == data.map(lambda *batch: rows_of(batch, 2, 1)).element_spec
    endless = rows(3).map(changed).batch(2, drops).repeat()
    assert share_of(plan_of(endless), 2, 0).cardinality() == tf.data.INFINITE_CARDINALITY


@pytest.mark.parametrize(("workers", "calls"), [(1, 33), (2, 4 * 4 + 1), (4, 4 * 2 + 1)])
def test_a_worker_maps_its_rows_alone(workers, calls):
    count = [0]

    def counted(values):
        count[0] += 1
        return values

    data = rows(33).map(lambda _, b: tf.numpy_function(counted, [b], tf.float32)).batch(8)
    assert len(list(share_of(plan_of(data), workers, workers - 1))) == 5
    assert count == [calls]


def test_batches_that_are_left_out_are_not_mapped():
    count = [0]

    def counted(values):
        count[0] += 1
        return values

    data = rows(32).map(lambda _, b: tf.numpy_function(counted, [b], tf.float32)).batch(8)
    assert len(list(share_of(plan_of(data.skip(3)), 2, 0))) == 1
    assert count == [4]


def test_an_opening_of_the_whole_pipeline_is_one_of_the_share_too():
    data = rows(20).map(changed).shuffle(20, seed=1).batch(4)
    own = share_of(plan_of(data), 1, 0)
    orders = [np.concatenate([batch[0] for batch in each]).tolist() for each in (data, own) * 2]
    alone = rows(20).map(changed).shuffle(20, seed=1).batch(4)
    expected = [np.concatenate([batch[0] for batch in alone]).tolist() for _ in range(4)]
    assert orders == expected


NUMBERS = iter(range(100))
SEEN = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)


def numbered():
    calls = 0

    def number(values):
        nonlocal calls
        calls += 1
        return values + calls

    return lambda _, b: tf.numpy_function(number, [b], tf.float32)


def counted_in_a_table(number, _):
    SEEN.insert(number, SEEN.lookup(number) + 1)
    return number


REFUSALS = {
    "a sequential map runs RandomUniform": lambda: rows(9).map(
        lambda _, b: b + tf.random.uniform(())
    ),
    "Python function that uses or sets 'rand'": lambda: rows(9).map(
        lambda _, b: tf.numpy_function(lambda x: x + np.random.rand(), [b], tf.float64)
    ),
    "Python function that uses or sets 'next'": lambda: rows(9).map(
        lambda _, b: tf.py_function(lambda x: x + next(NUMBERS), [b], tf.float32)
    ),
    "Python function that uses or sets 'calls'": lambda: rows(9).map(numbered()),
    "a sequential map runs LookupTableInsertV2": lambda: rows(9).map(counted_in_a_table),
    "Filter comes after map": lambda: rows(9).map(changed).filter(lambda a, _: a > 3),
    "Interleave comes after map": lambda: Dataset.range(3).interleave(
        lambda x: Dataset.range(3).map(lambda y: x + y)
    ),
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_maps_that_need_all_rows_are_told(reason):
    plan = plan_of(REFUSALS[reason]().batch(4))
    assert reason in plan.reason


def test_a_variable_that_a_map_changes():
    variable = tf.Variable(0, dtype=tf.int64)
    plan = plan_of(rows(9).map(lambda a, _: a + variable.assign_add(1)).batch(4))
    assert "a sequential map runs AssignAddVariableOp" in plan.reason


def test_batches_that_need_all_rows_are_told(tmp_path):
    mapped = rows(9).map(changed)
    reasons = {
        "a map over batches may need all rows": rows(9).batch(4).map(changed),
        "padded_batch pads to the longest row": (
            rows(9).map(lambda a, _: tf.range(a % 3)).padded_batch(4)
        ),
        "Unbatch comes after batch": mapped.batch(4).unbatch(),
        "a cache of batches is in a file": mapped.batch(4).cache(str(tmp_path / "cache")),
    }
    assert {reason for reason, data in reasons.items() if reason in plan_of(data).reason} == set(
        reasons
    )


def test_pipelines_without_maps_stay_as_they_are():
    for data in (rows(9).batch(4), rows(9).shuffle(9).batch(4).repeat(), rows(9)):
        assert plan_of(data).reason == ""


def test_per_row_is_for_maps():
    with pytest.raises(ValueError, match="received the result of Batch$"):
        tfdist.data.per_row(rows(9).batch(4))
