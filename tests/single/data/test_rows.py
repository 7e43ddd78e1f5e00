"""The number of rows that a dataset of batches is made of, as it tells by itself."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfdist.data.rows import rows_of


def _rows(count=83):
    return tf.data.Dataset.from_tensor_slices(np.zeros((count, 2)))


def _zipped():
    return tf.data.Dataset.zip((_rows(), _rows()))


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (lambda: _rows().batch(16), 83),
        (lambda: _rows().batch(16, drop_remainder=True), 83),
        (lambda: _rows().repeat().shuffle(9, seed=1).batch(16).prefetch(1), 83),
        (lambda: _rows().repeat(2).batch(16).repeat(3), 83),
        (lambda: _rows().take(40).batch(16).map(lambda x: 2 * x, 2), 40),
        (lambda: _rows().batch(4).cache().batch(4), 83),
        (lambda: _zipped().map(lambda x, y: x + y).batch(16), 83),
        (lambda: _rows().filter(lambda x: True).batch(16), None),
        (lambda: _rows().filter(lambda x: True).repeat().batch(16), None),
        (lambda: _rows().batch(16).unbatch().batch(8), None),
        (_rows, None),  # of rows, not of batches
    ],
)
def test_rows(dataset, expected):
    assert rows_of(dataset()) == expected
