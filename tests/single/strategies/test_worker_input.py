"""Each worker's share of a dataset."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies._input import worker_input

Named = collections.namedtuple("Named", ["x", "y"])
X, Y = np.arange(10), np.arange(10.0)


@pytest.mark.parametrize(
    "columns",
    [X, (X,), (X, Y), ((X, Y),), {"x": X, "y": Y}, ({"x": X}, Y), Named(X, Y)],
    ids=["tensor", "tuple of one", "pair", "tuple of a pair", "dict", "dict and tensor", "named"],
)
@pytest.mark.parametrize("batch_size", [4, 3])
def test_shares_have_the_structure_and_all_rows(columns, batch_size):
    whole = tf.data.Dataset.from_tensor_slices(columns).batch(batch_size)
    shares = [worker_input.share(whole, 2, rank, split=True) for rank in range(2)]
    for batch, *parts in zip(whole, *shares, strict=True):
        tf.nest.assert_same_structure(parts[0], batch)
        both = tf.nest.map_structure(lambda *rows: tf.concat(rows, 0), *parts)
        tf.nest.map_structure(np.testing.assert_array_equal, both, batch)
