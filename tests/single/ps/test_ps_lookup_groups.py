"""Lookups of one step go together, and none of them hangs."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf

from single.ps.lookup_job import Job, counted


@pytest.fixture
def job():
    job = Job()
    yield job
    job.close()


def test_lookups_of_a_step_go_together(job):
    tables = [job.table(i + 1) for i in range(5)]

    @tf.function
    def step(ids):
        with job.parameters.step():
            return [job.parameters.lookup([tables[i % 5]], [ids + i], True)[0] for i in range(26)]

    ids = tf.constant([[3, 9], [27, 3]], tf.int64)
    step(ids)
    rows = []
    counts = counted(job, lambda: rows.extend(step(ids)))
    assert counts["lookups"] == 1
    assert counts["lookup_ids"] == 26 * 4
    # Each table's ids once: the ids of five or six lookups, which are i, i + 5, ...
    unique = [{k + i for i in range(t, 26, 5) for k in (3, 9, 27)} for t in range(5)]
    assert counts["lookup_rows"] == sum(len(each) for each in unique)
    for i in range(26):
        expected = job.rows(tables[i % 5], ids.numpy() + i)
        np.testing.assert_array_equal(rows[i], expected)


def test_dependent_lookups_do_not_wait_for_each_other(job):
    first, second = job.table(1), job.table(2)

    @tf.function
    def step(ids):
        with job.parameters.step():
            a, b = (job.parameters.lookup([first], [ids + i], True)[0] for i in range(2))
            number = tf.cast(tf.reduce_sum(a + b) * 1000, tf.int64)
            with tf.control_dependencies([b]):
                c = job.parameters.lookup([first], [ids + 7], True)[0]
            d = job.parameters.lookup([second], [number[tf.newaxis]], True)[0]
            tf.print(d, output_stream="file:///dev/null")
            e = job.parameters.lookup([second], [random_ids()], True)[0]
            return a, b, c, d, e

    def random_ids():
        # Runs after the print, without an explicit dependency.
        return tf.raw_ops.RandomUniformInt(
            shape=[2], minval=tf.constant(5, tf.int64), maxval=tf.constant(6, tf.int64)
        )

    ids = tf.constant([1, 2], tf.int64)
    step(ids)
    rows = []
    counts = counted(job, lambda: rows.extend(step(ids)))
    assert counts["lookups"] == 3
    number = int((rows[0] + rows[1]).numpy().sum(dtype=np.float32) * np.float32(1000))
    np.testing.assert_array_equal(rows[2], job.rows(first, [8, 9]))
    np.testing.assert_array_equal(rows[3], job.rows(second, [number]))
    np.testing.assert_array_equal(rows[4], job.rows(second, [5, 5]))


def test_lookups_behind_an_update_of_their_table_wait_for_it(job):
    table = job.table(2)

    @tf.function
    def step(ids):
        with job.parameters.step():
            a = job.parameters.lookup([table], [ids], True)[0]
            job.parameters.stage_rows([table], [ids], [a], [tf.constant(1.0)], tf.constant(1))
            b = job.parameters.lookup([table], [ids + 1], True)[0]
            return a, b

    step(tf.constant([1], tf.int64))
    assert counted(job, lambda: step(tf.constant([1], tf.int64)))["lookups"] == 2


def test_loops_branches_and_eager_steps(job):
    table = job.table(3)

    @tf.function
    def steps(ids, count):
        total = tf.zeros((2, 3))
        for i in tf.range(count):
            with job.parameters.step():
                a = job.parameters.lookup([table], [ids + i], True)[0]
                b = job.parameters.lookup([table], [ids + i + 1], True)[0]
                c = tf.cond(
                    ids[0] > 0,
                    lambda: job.parameters.lookup([table], [ids], True)[0],
                    lambda: tf.zeros((2, 3)),
                )
                total += a + b + c
        return total

    ids = tf.constant([4, 5], tf.int64)
    steps(ids, tf.constant(2, tf.int64))
    counts = counted(job, lambda: steps(ids, tf.constant(4, tf.int64)))
    assert counts["lookups"] == 4 * 2

    def eager():
        with job.parameters.step():
            for i in range(3):
                job.parameters.lookup([table], [ids + i], True)

    assert counted(job, eager)["lookups"] == 3


def test_two_threads_run_one_step_at_once(job):
    tables = [job.table(4) for _ in range(3)]

    @tf.function
    def step(ids):
        with job.parameters.step():
            return [job.parameters.lookup([table], [ids], True)[0] for table in tables]

    step(tf.constant([0], tf.int64))
    expected = {i: [job.rows(table, [i]) for table in tables] for i in range(40)}
    failures = []

    def run(ids):
        for i in ids:
            got = step(tf.constant([i], tf.int64))
            if not all(np.array_equal(a, b) for a, b in zip(got, expected[i], strict=True)):
                failures.append(i)

    threads = [threading.Thread(target=run, args=(range(k, 40, 2),)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert failures == []


@pytest.mark.parametrize("checks", [False, True])
def test_a_failing_step_ends_in_its_error(job, checks):
    tables = [job.table(2) for _ in range(3)]
    known = tf.range(10, dtype=tf.int64)

    def checked(ids):
        if not checks:
            return tf.gather(known, ids)
        with tf.control_dependencies([tf.debugging.assert_less(ids, known[9] + 1)]):
            return tf.identity(ids)

    @tf.function
    def step(ids):
        with job.parameters.step():
            rows = [job.parameters.lookup([tables[0]], [ids], True)[0]]
            rows.append(job.parameters.lookup([tables[1]], [ids + 1], True)[0])
            rows.append(job.parameters.lookup([tables[2]], [checked(ids)], True)[0])
            return rows

    good = tf.constant([1], tf.int64)
    step(good)
    assert counted(job, lambda: step(good))["lookups"] == 1 + checks
    for _ in range(5):
        with pytest.raises(tf.errors.InvalidArgumentError, match="11"):
            step(tf.constant([11], tf.int64))
        np.testing.assert_array_equal(step(good)[2], job.rows(tables[2], [1]))
