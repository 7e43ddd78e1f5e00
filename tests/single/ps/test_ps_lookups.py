"""Lookups of rows: ahead, from a cache, and as short floats."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from single.ps.lookup_job import Job, counted
from tfdist.ops.ps.prefetched import prefetched


@pytest.fixture
def job():
    job = Job()
    yield job
    job.close()


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_short_floats_are_rounded_once_each_way(job, dtype):
    table = job.table(5)
    short = dataclasses.replace(table, wire_dtype=dtype)
    ids = np.arange(100, dtype=np.int64) * 12345678901
    exact = job.rows(table, ids)
    rows = []
    counts = counted(job, lambda: rows.append(job.rows(short, ids)))
    assert counts["lookup_bytes"] == 100 * 5 * 2
    np.testing.assert_array_equal(rows[0], exact.astype(dtype.as_numpy_dtype).astype(np.float32))
    gradients = np.random.default_rng(3).normal(size=(101, 5)).astype(np.float32)
    pushed = counted(job, lambda: job.update(short, [*ids, ids[0]], gradients))["bytes_pushed"]
    assert pushed == 100 * 5 * 2 + 100 * 8
    sums = gradients[:100].copy()
    sums[0] += gradients[100]
    rounded = sums.astype(dtype.as_numpy_dtype).astype(np.float32)
    np.testing.assert_array_equal(job.rows(table, ids), exact - rounded)


def test_cached_rows_are_used_for_some_steps(job):
    table = job.table(2)
    job.client.tables.set_cache(table.table, rows=2, steps=1)
    ids = tf.constant([1, 2, 1], tf.int64)
    look = lambda: job.client.tables.lookup([table], [ids], True)[0].numpy()  # noqa: E731
    first = look()
    counts = counted(job, look)
    assert (counts["cache_lookups"], counts["cache_hits"], counts["lookups"]) == (2, 2, 0)
    job.update(table, [1], np.ones((1, 2), np.float32))
    np.testing.assert_array_equal(look(), first)
    np.testing.assert_array_equal(job.rows(table, [1]), first[:1] - 1)
    job.update(table, [2], np.ones((1, 2), np.float32))
    np.testing.assert_array_equal(look(), first - 1)
    job.client.tables.set_cache(table.table, rows=0, steps=0)
    assert counted(job, look)["lookups"] == 1


def test_a_dataset_asks_one_batch_ahead(job):
    table, other = job.table(2), job.table(3)
    batches = np.arange(24, dtype=np.int64).reshape(8, 3)
    dataset = prefetched(
        tf.data.Dataset.from_tensor_slices(batches),
        lambda ids: (job.client, [table, table, other], [ids, ids + 1, ids]),
    )

    @tf.function
    def step(ids):
        with job.parameters.step():
            a = job.parameters.lookup([table], [ids], True)[0]
            b = job.parameters.lookup([table], [ids + 1], True)[0]
            return a, b, job.parameters.lookup([other], [ids], True)[0]

    def epoch():
        for i, ids in enumerate(dataset):
            assert job.client.stats().prefetched - before <= 3 * (i + 1) + 3
            a, b, c = step(ids)
            np.testing.assert_array_equal(a, job.rows(table, batches[i]))
            np.testing.assert_array_equal(b, job.rows(table, batches[i] + 1))
            np.testing.assert_array_equal(c, job.rows(other, batches[i]))

    before = job.client.stats().prefetched
    counts = counted(job, epoch)
    assert (counts["prefetched"], counts["prefetch_hits"]) == (24, 24)
    # An abandoned iterator leaves an unused batch.
    for _ in range(3):
        iterator = iter(dataset)
        step(next(iterator))
    before = job.client.stats().prefetched
    assert counted(job, epoch)["prefetch_hits"] == 24


def test_prefetched_rows_are_one_step_old_at_most(job):
    table = job.table(2)
    ids = tf.constant([1, 2], tf.int64)
    first = job.rows(table, [1, 2])
    ones = np.ones((2, 2), np.float32)
    look = lambda: job.client.tables.lookup([table], [ids], True)[0].numpy()  # noqa: E731
    job.client.tables.prefetch([table], [ids])
    job.update(table, [1, 2], ones)
    np.testing.assert_array_equal(look(), first)
    np.testing.assert_array_equal(look(), first - 1)
    job.client.tables.prefetch([table], [ids])
    for _ in range(2):
        job.update(table, [1, 2], ones)
    np.testing.assert_array_equal(look(), first - 3)
    assert job.client.stats().prefetch_hits == 1


def test_prefetching_keeps_the_structure_of_a_batch():
    """A dataset of one component that is a pair is none of features and labels."""

    client = SimpleNamespace(tables=SimpleNamespace(prefetch=lambda *asked: None))
    numbers = tf.range(4, dtype=tf.int64)
    for components in (((numbers, numbers),), (numbers, numbers), numbers, {"ids": numbers}):
        dataset = tf.data.Dataset.from_tensor_slices(components)
        asking = prefetched(dataset, lambda *batch: (client, [], []))
        assert asking.element_spec == dataset.element_spec
