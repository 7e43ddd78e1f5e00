"""A worker that maps its own rows alone has the same batches as with maps of all rows."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.training.pipelines import (
    BATCHES,
    CUTS,
    ELEMENTS,
    Dataset,
    assert_same_shares,
    changed,
    normalized,
    rows,
)
from tfdist.data.cut.plan import plan_of
from tfdist.data.cut.row_cache import row_cache_of
from tfdist.data.cut.share import own_rows, share_of
from tfdist.data.shares import rows_of
from tfdist.internals.keras_3 import ArrayDataAdapter, TFDatasetAdapter


@pytest.mark.long("*-10-33-True-3", covered_by="the other cases")
@pytest.mark.long("*-10-38-False-4", covered_by="the other cases")
@pytest.mark.parametrize(("size", "count", "drops", "workers"), CUTS)
@pytest.mark.parametrize("name", ELEMENTS)
def test_elements(name, size, count, drops, workers):
    assert_same_shares(lambda: ELEMENTS[name](count).batch(size, drops), workers)


@pytest.mark.long("*-10-33-True-3", covered_by="the other cases")
@pytest.mark.long("*-10-38-False-4", covered_by="the other cases")
@pytest.mark.parametrize(("size", "count", "drops", "workers"), CUTS)
@pytest.mark.parametrize("name", BATCHES)
def test_batches(name, size, count, drops, workers):
    data = lambda: rows(count).shuffle(9, seed=5).map(changed)  # noqa: E731
    assert_same_shares(lambda: BATCHES[name](data(), size, drops), workers)


@pytest.mark.parametrize("drops", [False, True])
def test_padded_batches(drops):
    def make():
        padded = rows(33).map(lambda a, b: (tf.range(a % 4), b))
        return padded.padded_batch(8, ([5], [3]), (tf.constant(-1, tf.int64), 0.0), drops)

    assert_same_shares(make, 3)


@pytest.mark.parametrize(("count", "drops"), [(38, False), (38, True), (21, False)])
def test_several_devices(count, drops):
    assert_same_shares(lambda: rows(count).map(changed).batch(10, drops), 2, devices=3)


def test_a_batch_of_fewer_rows_than_workers():
    assert_same_shares(lambda: rows(9).map(changed).batch(4), 6)


@pytest.mark.long("4-6-1-*", "10-3-1-*", covered_by="the other cases")
@pytest.mark.parametrize("name", [*ELEMENTS][:4])
@pytest.mark.parametrize(("size", "workers", "devices"), [(10, 3, 1), (4, 6, 1), (8, 2, 3)])
def test_batches_that_are_known_to_be_full(name, size, workers, devices):
    assert_same_shares(lambda: ELEMENTS[name](size * 4).batch(size), workers, devices)


def test_batches_of_an_endless_source_are_full():
    make = lambda: rows(9).shuffle(9, seed=2).repeat().map(changed).batch(4)  # noqa: E731
    assert plan_of(make()).has_full_batches
    assert_same_shares(lambda: make().take(7), 3)
    assert not plan_of(rows(9).map(changed).batch(4)).has_full_batches
    assert not plan_of(rows(8).filter(lambda a, b: a < 7).map(changed).batch(4)).has_full_batches


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


@pytest.mark.parametrize("reads", [32, 20])
def test_a_cache_after_maps_keeps_what_a_worker_maps(reads):
    """A pass that ends early is not kept, as in one process."""
    count = [0]

    def counted(values):
        count[0] += 1
        return values

    data = rows(32).map(lambda _, b: tf.numpy_function(counted, [b], tf.float32), 2).cache()
    own = share_of(plan_of(data.shuffle(32, seed=1).take(reads).batch(8)), 2, 0)
    calls, kept = [], []
    for _ in range(8):
        before = count[0]
        assert len(list(own)) == len(range(0, reads, 8))
        calls.append(count[0] - before)
        kept.append(int(row_cache_of(data)._kept.size()))
    assert calls[0] == kept[0] == reads // 2
    assert kept == [sum(calls[: epoch + 1]) for epoch in range(8)]
    assert calls[-1] < reads // 2 and kept[-1] <= 32


def test_a_cache_of_a_pass_that_never_ends_is_emptied():
    data = rows(32).shuffle(32, seed=1).map(changed).cache()
    own = share_of(plan_of(data.take(24).batch(8)), 2, 0)
    for _ in range(3):
        assert len(list(own)) == 3
        assert int(row_cache_of(data)._kept.size()) == 12


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
        "a map over batches runs Mean, which": rows(9).batch(4).map(normalized),
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


def test_epochs_and_skips_have_one_cache():
    """As of one process: the order of the first epoch is the order of all."""
    make = lambda: rows(40).shuffle(40, seed=3).map(changed).batch(8).cache()  # noqa: E731
    data, expected = make(), make()
    for skipped in (0, 0, 2, 1):
        own = own_rows(data.skip(skipped) if skipped else data, 2, 1)
        wanted = expected.skip(skipped).map(lambda *batch: rows_of(batch, 2, 1))
        for batch, other in zip(own, wanted, strict=True):
            np.testing.assert_array_equal(batch[0], other[0])


def test_the_maps_of_keras_are_none_of_the_user():
    """Arrays have no advice, and the map of `class_weight` treats each row by itself."""
    arrays = ArrayDataAdapter(np.ones((9, 2)), np.ones(9), batch_size=4, shuffle=True)
    assert plan_of(arrays.get_tf_dataset()).reason == ""

    def weighted():
        data = rows(33).map(lambda a, b: (b, a % 3)).batch(8)
        return TFDatasetAdapter(data, class_weight={0: 1.0, 1: 2.0, 2: 0.5}).get_tf_dataset()

    assert len(next(iter(weighted()))) == 3
    assert_same_shares(weighted, 2)
    whole = rows(9).batch(4).map(normalized)
    adapted = TFDatasetAdapter(whole.map(lambda a, b: (b, a)), class_weight={0: 1.0})
    assert "a map over batches runs Mean" in plan_of(adapted.get_tf_dataset()).reason


def test_the_reason_is_told_once_by_rank_0(caplog):
    data = rows(9).batch(4).map(normalized)
    for rank in (1, 0, 0):
        assert own_rows(data, 2, rank) is None
    (message,) = caplog.messages
    assert "each worker maps whole global batches" in message and "tfdist.data.per_row" in message
