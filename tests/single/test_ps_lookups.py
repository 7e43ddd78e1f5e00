"""Lookups of rows: together, ahead, from a cache, and as short floats."""

from __future__ import annotations

import collections
import dataclasses
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist import ops
from tfdist.strategies.parameters import Parameters
from tfdist.strategies.placement import Placement

TOKEN = bytes(range(16))
CONFIG = SimpleNamespace(
    mode="async",
    workers=1,
    num_aggregate=1,
    staleness=0,
    hogwild=False,
    compensation=None,
    worker_timeout=20.0,
    start_timeout=20.0,
    compensation_lambda=0.04,
    trace_events=0,
)


@dataclasses.dataclass(eq=False)
class Table:
    table: int
    width: int
    variable: Any
    wire_dtype: tf.DType = tf.float32

    @property
    def handle(self):
        return self.variable.handle


class Job:
    """Two servers, and a worker."""

    def __init__(self) -> None:
        self.servers = [ops.ParameterServer(i, CONFIG) for i in range(2)]
        self.client = ops.ParameterClient(0, 1, 1234, 2, timeout=20.0)
        for i, server in enumerate(self.servers):
            server.start(TOKEN)
            self.client.connect(i, f"127.0.0.1:{server.port}", TOKEN, server.incarnation, 20.0)
        self.parameters = Parameters(self.client, Placement(2), is_chief=True)
        self.tables: list[Table] = []

    def table(self, width: int, **fields) -> Table:
        name = f"table {len(self.tables)}"
        uniform = ops.RowInitializer(ops.InitializerKind.UNIFORM, -1.0, 1.0, len(self.tables))
        number = self.client.create_table(name, ops.TableConfig(width=width, initializer=uniform))
        # Without rows: it orders what is done with the table.
        parameter = self.parameters.add(name, (0, width), tf.float32)
        value = self.parameters.initial_value(parameter, tf.zeros((0, width)))
        variable = self.parameters.adopt(tf.Variable(value), parameter)
        self.tables.append(Table(number, width, variable, **fields))
        return self.tables[-1]

    def rows(self, table: Table, ids) -> np.ndarray:
        """What the servers have now."""
        return self.client.lookup([table], [tf.constant(ids, tf.int64)], False)[0].numpy()

    def update(self, table: Table, ids, gradients) -> None:
        """A step of SGD with a learning rate of 1."""
        with self.parameters.step():
            self.parameters.stage_rows(
                [table],
                [tf.constant(ids, tf.int64)],
                [gradients],
                [tf.constant(1.0)],
                tf.constant(1),
            )
        self.client.flush(20.0)

    def close(self) -> None:
        self.client.close()
        for server in self.servers:
            server.close()


@pytest.fixture
def job():
    job = Job()
    yield job
    job.close()


def counted(job: Job, run) -> dict[str, int]:
    """Returns by how much `run` raises each counter."""
    before = dataclasses.asdict(job.client.stats())
    run()
    after = dataclasses.asdict(job.client.stats())
    return collections.defaultdict(int, {n: after[n] - before[n] for n in before})


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
    # Each table's ids once: those of five or six lookups, which are i, i + 5, ...
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
        # Runs behind what was printed, though it does not say so.
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
    job.client.set_cache(table.table, rows=2, steps=1)
    ids = tf.constant([1, 2, 1], tf.int64)
    look = lambda: job.client.lookup([table], [ids], True)[0].numpy()  # noqa: E731
    first = look()
    counts = counted(job, look)
    assert (counts["cache_lookups"], counts["cache_hits"], counts["lookups"]) == (2, 2, 0)
    job.update(table, [1], np.ones((1, 2), np.float32))
    np.testing.assert_array_equal(look(), first)
    np.testing.assert_array_equal(job.rows(table, [1]), first[:1] - 1)
    job.update(table, [2], np.ones((1, 2), np.float32))
    np.testing.assert_array_equal(look(), first - 1)
    job.client.set_cache(table.table, rows=0, steps=0)
    assert counted(job, look)["lookups"] == 1


def test_a_dataset_asks_one_batch_ahead(job):
    table, other = job.table(2), job.table(3)
    batches = np.arange(24, dtype=np.int64).reshape(8, 3)
    dataset = ops.prefetch_rows(
        tf.data.Dataset.from_tensor_slices(batches),
        job.client,
        lambda ids: {table: [ids, ids + 1], other: ids},
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
    # An iterator that is left leaves a batch that nobody will use.
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
    look = lambda: job.client.lookup([table], [ids], True)[0].numpy()  # noqa: E731
    job.client.prefetch([table], [ids])
    job.update(table, [1, 2], ones)
    np.testing.assert_array_equal(look(), first)
    np.testing.assert_array_equal(look(), first - 1)
    job.client.prefetch([table], [ids])
    for _ in range(2):
        job.update(table, [1, 2], ones)
    np.testing.assert_array_equal(look(), first - 3)
    assert job.client.stats().prefetch_hits == 1
