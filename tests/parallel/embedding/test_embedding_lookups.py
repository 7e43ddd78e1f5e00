"""Lookups beside TensorFlow's own functions on a dense table: values and gradients."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks
from support.training.embeddings import alone
from tfdist import layers, ops

ROWS, WIDTH = 12, 3


def tables(**arguments):
    """A table and a dense variable of the same rows."""
    strategy = alone()
    with strategy.scope():
        table = tfdist.EmbeddingTable("t", WIDTH, initializer="zeros", **arguments)
    dense = tf.Variable(np.random.default_rng(3).normal(size=[ROWS, WIDTH]).astype("float32"))
    table.upsert(np.arange(ROWS), dense)
    return strategy, table, dense


def same(table, dense, ours, theirs):
    """Asserts that two lookups give the same, and the same gradient."""

    def loss_of(found):
        factors = tf.reshape(tf.range(1.0, found.shape.num_elements() + 1.0), found.shape)
        return tf.reduce_sum(found**2 * factors)

    with tf.GradientTape() as tape:
        found = ours()
        loss = loss_of(found)
    slices = tape.gradient(loss, table.rows)
    got = tf.math.unsorted_segment_sum(slices.values, slices.indices, ROWS)
    with tf.GradientTape() as tape:
        expected = theirs()
        loss = loss_of(expected)
    wanted = tf.convert_to_tensor(tape.gradient(loss, dense))
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def sparse(indices, values, shape):
    return tf.SparseTensor(indices, values, shape)


# Two dimensions: an example without ids, one with a negative id alone, and weights of all signs.
INDICES = [[0, 0], [0, 2], [1, 0], [3, 0], [3, 1], [4, 3]]
IDS = tf.constant([1, 3, -1, 5, 5, 0], tf.int64)
WEIGHTS = tf.constant([2.0, 0.5, 1.0, 0.0, -1.0, 3.0])
# Three.
DEEP = [[0, 0, 0], [0, 0, 1], [0, 2, 3], [2, 1, 0], [2, 1, 1], [2, 2, 0]]


@on_ranks(1)
def test_max_norm(ctx):
    strategy, table, dense = tables()
    ids = tf.constant([[1, 7, 1], [0, 2, 11]], tf.int64)
    for norm in (0.7, 1.5, 100.0):
        same(
            table,
            dense,
            lambda n=norm: ops.embedding_lookup(table, ids, max_norm=n),
            lambda n=norm: tf.nn.embedding_lookup(dense, ids, max_norm=n),
        )
    bags = sparse(INDICES, tf.abs(IDS), [5, 4])
    weights = sparse(INDICES, tf.abs(WEIGHTS), [5, 4])
    for combiner in ("sum", "mean", "sqrtn"):
        same(
            table,
            dense,
            lambda c=combiner: ops.embedding_lookup(table, bags, weights, c, max_norm=0.7),
            lambda c=combiner: tf.nn.embedding_lookup_sparse(
                dense, bags, weights, combiner=c, max_norm=0.7
            ),
        )
    with pytest.raises(ValueError, match="max_norm to be a positive number, or None, received 0"):
        ops.embedding_lookup(table, ids, max_norm=0)
    with strategy.scope():
        layer = layers.Embedding(table=table, max_norm=0.7)
        got = layer(ids)
        assert layers.Embedding.from_config(layer.get_config()).max_norm == 0.7
    np.testing.assert_allclose(got, tf.nn.embedding_lookup(dense, ids, max_norm=0.7), rtol=1e-5)


@on_ranks(1)
def test_safe_lookups(ctx):
    strategy, table, dense = tables(input_dim=ROWS)
    for indices, shape in ((INDICES, [5, 4]), (DEEP, [3, 3, 4])):
        ids, weights = sparse(indices, IDS, shape), sparse(indices, WEIGHTS, shape)
        for combiner in ("sum", "mean", "sqrtn"):
            for default_id in (None, 4):
                for of_weights in (None, weights):
                    options = {"combiner": combiner, "default_id": default_id, "max_norm": 1.2}
                    same(
                        table,
                        dense,
                        lambda i=ids, w=of_weights, o=options: ops.safe_embedding_lookup_sparse(
                            table, i, w, **o
                        ),
                        lambda i=ids, w=of_weights, o=options: tf.nn.safe_embedding_lookup_sparse(
                            dense, i, w, **o
                        ),
                    )
    traced = tf.function(
        lambda ids: ops.safe_embedding_lookup_sparse(table, ids, default_id=4),
        input_signature=[tf.SparseTensorSpec([None, None, None], tf.int64)],
    )(ids)
    expected = tf.nn.safe_embedding_lookup_sparse(dense, ids, default_id=4)
    np.testing.assert_allclose(traced, expected, rtol=1e-5)
    with pytest.raises(ValueError, match="expected sparse or ragged ids, received a"):
        ops.safe_embedding_lookup_sparse(table, IDS)
    with pytest.raises(ValueError, match=r"\('sum', 'mean', 'sqrtn'\), received None"):
        ops.safe_embedding_lookup_sparse(table, ids, combiner=None)

    bags = tf.ragged.constant([[1, 2], [], [5]], tf.int64)
    with strategy.scope():
        layer = layers.Embedding(table=table, combiner="mean", default_id=4)
        got = layer(bags)
        assert layers.Embedding.from_config(layer.get_config()).default_id == 4
        expected = tf.nn.safe_embedding_lookup_sparse(dense, bags.to_sparse(), default_id=4)
        np.testing.assert_allclose(got, expected, rtol=1e-5)
        with pytest.raises(ValueError, match="expected sparse or ragged ids with default_id=4"):
            layer(tf.constant([[1]]))
        with pytest.raises(ValueError, match="expected a combiner with default_id=4"):
            layers.Embedding(table=table, default_id=4)


@on_ranks(1)
def test_ids_of_all_signs_are_ids_without_an_input_dim(ctx):
    strategy = alone()
    with strategy.scope():
        table = tfdist.EmbeddingTable("t", 1, initializer="zeros")
    table.upsert(["ann", "nobody"], [[3.0], [9.0]])
    table.upsert([-7], [[5.0]])
    words = tf.RaggedTensor.from_row_lengths(["ann", "ann"], [2, 0]).to_sparse()
    found = ops.safe_embedding_lookup_sparse(table, words, default_id="nobody")
    assert found.numpy().tolist() == [[3], [9]]
    ids = sparse([[0, 0]], tf.constant([-7], tf.int64), [1, 1])
    assert ops.safe_embedding_lookup_sparse(table, ids).numpy().tolist() == [[5]]


@on_ranks(1)
def test_sparse_ids_of_three_dimensions(ctx):
    strategy, table, dense = tables()
    ids, weights = sparse(DEEP, tf.abs(IDS), [3, 3, 4]), sparse(DEEP, tf.abs(WEIGHTS), [3, 3, 4])
    flat = tf.sparse.reshape(ids, [9, 4]), tf.sparse.reshape(weights, [9, 4])
    for combiner in ("sum", "mean", "sqrtn"):
        same(
            table,
            dense,
            lambda c=combiner: ops.embedding_lookup(table, ids, weights, c),
            # The last example has an id, for TensorFlow drops examples behind the last that has.
            lambda c=combiner: tf.reshape(
                tf.nn.embedding_lookup_sparse(dense, *flat, combiner=c), [3, 3, WIDTH]
            ),
        )
    with strategy.scope():
        model_ids = keras.Input((3, 4), dtype="int64", sparse=True)
        rows = layers.Embedding(table=table, combiner="sum")(model_ids)
    assert rows.shape[1:] == (3, WIDTH)


@on_ranks(1)
def test_default_ids_where_every_example_has_ids_or_there_is_none(ctx):
    _, table, dense = tables(input_dim=ROWS)
    for indices, shape in (
        ([[0, 0], [1, 0]], [2, 2]),
        ([], [0, 2]),
        ([], [2, 0, 3]),
        ([[0, 1, 0]], [1, 2, 3]),
    ):
        indices = np.reshape(indices, [-1, len(shape)]).astype("int64")
        ids = sparse(indices, np.arange(len(indices)), shape)
        got = ops.safe_embedding_lookup_sparse(table, ids, default_id=4)
        assert got.shape == (*shape[:-1], dense.shape[1])
        if len(indices):
            expected = tf.nn.safe_embedding_lookup_sparse(dense, ids, default_id=4)
            np.testing.assert_allclose(got, expected, rtol=1e-5)
