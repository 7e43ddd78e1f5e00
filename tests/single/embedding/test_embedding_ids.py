"""Ids of all kinds, and rows in the shape of the ids."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist import reasons
from tfdist.embedding import ids as id_kinds

ROWS = np.arange(24, dtype="float32").reshape(6, 4) ** 2


def expected(bags, weights, combiner):
    """The documented result of `tf.nn.embedding_lookup_sparse`, in NumPy."""
    out = []
    for bag, of_bag in zip(bags, weights, strict=True):
        w = np.array(of_bag, "float32")
        total = (ROWS[bag] * w[:, None]).sum(0) if len(bag) else np.zeros(4, "float32")
        divisor = {"sum": 1, "mean": w.sum(), "sqrtn": np.sqrt((w**2).sum())}[combiner]
        out.append(total / divisor if divisor else total)
    return np.stack(out)


BAGS = [[0, 1, 5], [], [2], [3, 3]]
WEIGHTS = [[0.5, 2.0, -1.0], [], [4.0], [1.0, 3.0]]


def ragged(lists, dtype):
    return tf.ragged.constant(lists, dtype)


def sparse(lists, dtype):
    return ragged(lists, dtype).to_sparse()


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("kind", [ragged, sparse])
@pytest.mark.parametrize("weighted", [False, True])
def test_bags_of_any_length(combiner, kind, weighted):
    ids = kind(BAGS, tf.int64)
    weights = kind(WEIGHTS, tf.float32) if weighted else None
    rows = tf.gather(ROWS, id_kinds.flat_values(ids))
    result = id_kinds.combined(ids, rows, weights, combiner)
    ones = [[1.0] * len(bag) for bag in BAGS]
    np.testing.assert_allclose(
        result, expected(BAGS, WEIGHTS if weighted else ones, combiner), rtol=1e-6
    )


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_dense_bags(combiner):
    bags, weights = [[0, 1], [4, 4]], [[0.5, 2.0], [1.0, 3.0]]
    rows = tf.gather(ROWS, bags)
    result = id_kinds.combined(tf.constant(bags), rows, tf.constant(weights), combiner)
    np.testing.assert_allclose(result, expected(bags, weights, combiner), rtol=1e-6)
    result = id_kinds.combined(tf.constant(bags), rows, None, combiner)
    np.testing.assert_allclose(result, expected(bags, [[1, 1], [1, 1]], combiner), rtol=1e-6)


def test_rows_keep_their_place_without_a_combiner():
    ids = tf.ragged.constant([[[1, 2], []], [[3]]], tf.int64)
    result = id_kinds.combined(ids, tf.gather(ROWS, id_kinds.flat_values(ids)), None, None)
    assert result.shape.as_list() == [2, None, None, 4]
    np.testing.assert_array_equal(result[0, 0], ROWS[[1, 2]])
    np.testing.assert_array_equal(result[1, 0], ROWS[[3]])


def test_ragged_bags_within_ragged_dimensions():
    ids = tf.ragged.constant([[[1, 2], []], [[3]]], tf.int64)
    rows = tf.gather(ROWS, id_kinds.flat_values(ids))
    result = id_kinds.combined(ids, rows, None, "mean")
    np.testing.assert_allclose(result[0, 0], ROWS[[1, 2]].mean(0))
    np.testing.assert_array_equal(result[0, 1], np.zeros(4))
    np.testing.assert_array_equal(result[1, 0], ROWS[3])


def test_strings_become_their_64_bit_fingerprints():
    words = tf.constant([["ann", "bob"], ["", "ann"]])
    hashed = id_kinds.as_int64(words)
    assert hashed.dtype == tf.int64
    assert hashed.shape == (2, 2)
    assert hashed[0, 0] == hashed[1, 1]
    assert len(set(hashed.numpy().ravel())) == 3
    # FarmHash64 of "ann", as TensorFlow's own op says.
    bytes_of_ann = tf.fingerprint(["ann"]).numpy()[0]
    assert hashed[0, 0].numpy() == bytes_of_ann.view("<i8")[0]


@pytest.mark.parametrize("dtype", [tf.int32, tf.uint8, tf.int64])
def test_integers_stay(dtype):
    assert id_kinds.as_int64(tf.constant([3, 200], dtype)).numpy().tolist() == [3, 200]


def test_other_ids_are_refused():
    with pytest.raises(TypeError, match="expected integers or strings, received float32"):
        id_kinds.as_int64(tf.constant([1.0]))


def test_a_report_has_the_words_about_ids_that_a_layer_refuses():
    class Lookup(keras.layers.Layer):
        def call(self, ids):
            return id_kinds.as_int64(ids)

    with pytest.raises(TypeError, match="Exception encountered when calling") as caught:
        Lookup()(tf.constant([1.0]))
    told = "IdTypeError: an embedding's ids: expected integers or strings, received float32"
    assert reasons.one_line(caught.value).startswith(told)


def test_sparse_ids_need_a_combiner():
    ids = sparse(BAGS, tf.int64)
    with pytest.raises(ValueError, match=r"dimensions or more and a combiner, received .*None"):
        id_kinds.combined(ids, tf.gather(ROWS, ids.values), None, None)


def test_weights_are_of_the_same_kind():
    ids = ragged(BAGS, tf.int64)
    with pytest.raises(ValueError, match="expected a RaggedTensor"):
        id_kinds.combined(ids, tf.gather(ROWS, ids.flat_values), tf.ones([4, 3]), "sum")
