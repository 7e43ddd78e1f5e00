"""Rows that are mapped ahead equal the rows of whole batches, also for workers that change."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from support.training.pipelines import (
    BATCHES,
    CUTS,
    ELEMENTS,
    Dataset,
    changed,
    flat,
    normalized,
    rows,
)
from tfdist.data.cut.ahead import GlobalBatch, GlobalBatches, MappedAhead
from tfdist.data.shares import rows_of

# Elements before the maps without a shape of their own are mapped as whole batches.
WHOLE = ("no static shape", "no static shapes", "no static shape, cache")
# Rank and size of a worker, at each batch in turn.
WORLDS = [(0, 2), (1, 2), (1, 3), (0, 1), (2, 3), (3, 4), (0, 5)]


class World:
    """The rank and the number of workers, which a test changes."""

    def __init__(self, rank: int, size: int) -> None:
        self.variable = tf.Variable([rank, size])

    def __call__(self):
        return tf.unstack(self.variable)


def assert_equal(batch, other):
    for value, same in zip(flat(batch), flat(other), strict=True):
        assert value.dtype == same.dtype
        np.testing.assert_array_equal(value, same)


def assert_same_batches(make, kind: type, devices: int = 1) -> None:
    """Asserts that each worker of some worlds has its rows, in two epochs, after a skip, too."""
    world = World(1, 2)
    data, expected = GlobalBatches(make(), world, devices), make()
    for skipped in (0, 0, 1):
        worlds = itertools.cycle(WORLDS)
        batches = list(zip(data.skip(skipped), expected.skip(skipped), strict=True))
        assert batches
        for batch, whole in batches:
            assert type(batch) is kind
            rank, size = next(worlds)
            own, each = batch.share(size * devices, rank * devices, devices)
            shares = [rows_of(whole, size * devices, rank * devices + i) for i in range(devices)]
            if devices == 1:
                assert_equal(own, shares[0])
            for i, share in enumerate(shares):
                assert_equal(GlobalBatch(own).between(i * each, (i + 1) * each), share)


@pytest.mark.long("*-10-33-True", covered_by="the other cases")
@pytest.mark.long("*-10-38-False", covered_by="the other cases")
@pytest.mark.parametrize(("size", "count", "drops"), [cut[:3] for cut in CUTS])
@pytest.mark.parametrize("name", ELEMENTS)
def test_elements(name, size, count, drops):
    kind = GlobalBatch if name in WHOLE else MappedAhead
    assert_same_batches(lambda: ELEMENTS[name](count).batch(size, drops), kind)


@pytest.mark.long("*-10-33-True", covered_by="the other cases")
@pytest.mark.long("*-10-38-False", covered_by="the other cases")
@pytest.mark.parametrize(("size", "count", "drops"), [cut[:3] for cut in CUTS])
@pytest.mark.parametrize("name", BATCHES)
def test_batches(name, size, count, drops):
    data = lambda: rows(count).shuffle(9, seed=5).map(changed)  # noqa: E731
    assert_same_batches(lambda: BATCHES[name](data(), size, drops), MappedAhead)


@pytest.mark.parametrize("devices", [1, 3])
def test_maps_of_batches_alone(devices):
    assert_same_batches(lambda: rows(33).batch(8).map(changed).repeat(2), MappedAhead, devices)


def test_several_devices():
    assert_same_batches(lambda: rows(38).map(changed).batch(10), MappedAhead, devices=3)


@pytest.mark.parametrize(
    "make", [lambda: rows(33).batch(8), lambda: rows(33).map(changed).batch(8).map(normalized)]
)
def test_pipelines_that_are_not_cut(make):
    assert_same_batches(make, GlobalBatch)


def test_rows_are_mapped_ahead_for_the_present_workers():
    """Rows that another cut needs, and no others, are mapped a second time."""
    calls = []

    def noted(number):
        calls.append(int(number))
        return number

    of_row = lambda number: tf.ensure_shape(  # noqa: E731
        tf.numpy_function(noted, [number], tf.int64), []
    )
    world = World(1, 2)
    data = iter(GlobalBatches(Dataset.range(24).map(of_row).batch(8), world, 1))
    first = next(data)
    assert first.share(2, 1, 1)[0].numpy().tolist() == [4, 5, 6, 7]
    assert first.share(4, 3, 1)[0].numpy().tolist() == [6, 7]
    assert set(calls) <= set(range(4, 8)) | set(range(12, 16)) | set(range(20, 24))
    assert not {0, 1, 2, 3} & set(calls)
    assert first.share(2, 0, 1)[0].numpy().tolist() == [0, 1, 2, 3]
    assert {0, 1, 2, 3} < set(calls) and calls.count(5) == 1
    world.variable.assign([0, 8])
    later = [batch.share(8, 0, 1)[0].numpy().tolist() for batch in data]
    assert later == [[8], [16]]


def test_batches_without_tensors():
    batch = GlobalBatch((None, None))
    assert batch.share(2, 1, 1) == ((None, None), 0)
