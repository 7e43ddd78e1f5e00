"""Values of arrays that members compare: others are noticed, rounding is not."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfdist.elastic.data_values import differences, values_of

RANDOM = np.random.default_rng(3)
X, Y = RANDOM.normal(size=(500, 7)), RANDOM.integers(10, size=500)
WORDS = np.array([f"word {i}" for i in range(90)])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((X, Y), (X + RANDOM.normal(size=X.shape), Y)),
        ((X, Y), (X, RANDOM.permutation(Y))),
        ((X, Y), (X[RANDOM.permutation(500)], Y)),
        ({"a": X, "b": [Y, None]}, {"a": X, "b": [Y[::-1], None]}),
        (X, (X, Y)),
        (WORDS, WORDS[::-1]),
        (tf.constant(X), tf.constant(X) * 2.0),
        (X, np.where(X > 0, np.nan, X)),
    ],
)
def test_other_arrays(one, other):
    text = differences(values_of(one), values_of(other))
    assert "values" in text and "expected" in text and "received" in text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((X, Y), (X * (1 + 1e-7), Y.astype("int32"))),
        ((X, Y), (X, np.where(np.arange(500) == 0, Y + 1, Y))),  # one label
        (np.full(4, np.nan), np.full(4, np.nan)),
        (None, tf.data.Dataset.range(3)),
        ({"b": X, "a": Y}, {"a": Y, "b": X}),
        (np.zeros((0, 3)), np.zeros((0, 3))),
        (np.array(7.0), np.array(7.0)),
        ([np.zeros(3)] * 400, [np.zeros(3)] * 400),
    ],
)
def test_arrays_that_are_alike(one, other):
    assert differences(values_of(one), values_of(other)) == ""


def test_few_values_of_large_arrays():
    assert len(values_of((np.zeros((1000, 1000)), np.zeros(1000)))) == 256
    assert len(values_of(np.zeros((1000, 1000))[:, ::3])) == 256
