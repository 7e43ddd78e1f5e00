"""The embedding layer and its table: all but parity with dense training."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks
from support.ps_job import meet, on_job, served
from support.training.embeddings import (
    IDS,
    alone,
    dataset,
    held,
    model_with,
    remote_embedding,
    rows_of,
)
from tfdist import embedding, layers


@on_ranks(1)
def test_only_training_makes_rows(ctx):
    strategy = alone()
    with strategy.scope():
        layer = remote_embedding("sgd")
        model = model_with(layer, keras.optimizers.SGD(0.0))
    np.testing.assert_allclose(model.layers[0](tf.constant([10**15, -3])), 0.3, rtol=1e-7)
    model.predict(np.array([[1, 2, 3]]), verbose=0)
    model.evaluate(dataset(4, 4), verbose=0)
    assert held(layer.table)["rows"] == 0
    model.fit(np.array([[7, 8, 7]]), np.array([[1.0]]), verbose=0, shuffle=False)
    assert held(layer.table)["rows"] == 2
    np.testing.assert_allclose(rows_of(layer, [7, 8]), 0.3, rtol=1e-7)


@on_ranks(1)
def test_two_features_share_a_table(ctx):
    strategy = alone()
    with strategy.scope():
        table = tfdist.EmbeddingTable("words", 2, optimizer="sgd", initializer="zeros")
        left, right = keras.Input((), dtype="int64"), keras.Input((), dtype="int64")
        rows = [layers.Embedding(table=table)(x) for x in (left, right)]
        model = keras.Model([left, right], keras.layers.Add()(rows))
        model.compile(keras.optimizers.SGD(1.0, global_clipnorm=1.0), _sum)
    assert len(model.trainable_variables) == 1
    # The gradient of row 4 is 2, and the gradient of row 9 is 1, in both columns: its norm is
    # sqrt(10).
    x = [np.array([4, 4]), np.array([9, 4])]
    model.train_on_batch(x, np.zeros((2, 2)))
    got = tfdist.ops.embedding_lookup(table, tf.constant([4, 9]), training=False)
    np.testing.assert_allclose(got, np.array([[-3, -3], [-1, -1]]) / np.sqrt(20), rtol=1e-6)


def _sum(_, rows):
    return tf.reduce_sum(rows, -1) * tf.cast(tf.shape(rows)[0], rows.dtype)


@on_ranks(1)
def test_strings_ragged_and_sparse(ctx):
    strategy = alone()
    with strategy.scope():
        table = tfdist.EmbeddingTable("names", 3, optimizer="sgd")
        layer = layers.Embedding(table=table, combiner="mean")
        words = tf.ragged.constant([["ann", "bob"], [], ["ann"]])
        ragged = layer(words)
        sparse = layer(words.to_sparse())
    ann, bob = tfdist.ops.embedding_lookup(table, tf.constant(["ann", "bob"]), training=False)
    expected = np.stack([(ann + bob) / 2, np.zeros(3), ann])
    np.testing.assert_allclose(ragged, expected, rtol=1e-6)
    np.testing.assert_allclose(sparse, expected, rtol=1e-6)


@on_job(1, 2)
def test_a_loop_of_ones_own(ctx):
    if served():
        return
    strategy = tfdist.ParameterServerStrategy()
    with strategy.scope():
        tables = [
            tfdist.EmbeddingTable("a", 2, optimizer="sgd", initializer="ones"),
            tfdist.EmbeddingTable("b", 3, optimizer="sgd", initializer="ones", learning_rate=0.25),
        ]
        optimizer = keras.optimizers.SGD(1.0)

    @tf.function
    def step(ids):
        def of_replica():
            variables = [table.rows for table in tables]
            with tf.GradientTape() as tape:
                a, b = tfdist.ops.embedding_lookup(tables, [ids, ids[:2]])
                loss = tf.reduce_sum(a) + 2 * tf.reduce_sum(b)
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        return strategy.run(of_replica)

    ids = tf.constant([3, 2**62, 3], tf.int64)
    assert step(ids) == 3 * 2 + 2 * 2 * 3
    assert step(ids) == (-1 + 0 - 1) * 2 + 2 * 2 * 3 * 0.5
    a, b = (
        tfdist.ops.embedding_lookup(t, tf.constant([3, 2**62, 7]), training=False) for t in tables
    )
    np.testing.assert_array_equal(a, [[-3, -3], [-1, -1], [1, 1]])
    np.testing.assert_array_equal(b, [[0, 0, 0], [0, 0, 0], [1, 1, 1]])


@on_job(2, 3)
def test_two_workers_push_to_the_same_rows(ctx):
    if served():
        return
    strategy = tfdist.ParameterServerStrategy()
    with strategy.scope():
        table = tfdist.EmbeddingTable("t", 2, optimizer="sgd", initializer="zeros")
        optimizer = keras.optimizers.SGD(1.0)

    @tf.function
    def step(ids, gradient):
        def of_replica():
            with tf.GradientTape() as tape:
                rows = tfdist.ops.embedding_lookup(table, ids)
                loss = tf.reduce_sum(rows) * gradient
            optimizer.apply_gradients([(tape.gradient(loss, table.rows), table.rows)])

        strategy.run(of_replica)

    random = np.random.default_rng(strategy.extended.rank)
    steps, counts = 30, np.zeros(50)
    for _ in range(steps):
        ids = random.integers(0, 50, 20)
        np.add.at(counts, ids, 1)
        step(tf.constant(ids), tf.constant(-1.0))
    np.save(ctx.tmp_path / f"{strategy.extended.rank}.npy", counts)
    table.rows.parameters.client.flush(30)
    meet(ctx, "pushed")
    everyone = sum(np.load(ctx.tmp_path / f"{rank}.npy") for rank in range(2))
    got = tfdist.ops.embedding_lookup(table, tf.range(50), training=False)
    np.testing.assert_array_equal(got, np.stack([everyone, everyone], 1))


@on_ranks(1)
def test_a_learning_rate_of_its_own(ctx):
    strategy = alone()
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0], [1.0, 0.125])
    with strategy.scope():
        ids = keras.Input((), dtype="int64")
        layer = layers.Embedding(None, 2, embedding.SGD(learning_rate=schedule), "zeros")
        model = keras.Model(ids, layer(ids))
        model.compile(keras.optimizers.SGD(100.0), _sum)
    for _ in range(3):
        model.train_on_batch(np.array([6]), np.zeros((1, 2)))
    np.testing.assert_allclose(rows_of(layer, [6]), [[-1.25, -1.25]])


@on_ranks(1)
def test_an_id_beyond_input_dim(ctx):
    strategy = alone()
    with strategy.scope():
        layer = layers.Embedding(IDS, 2)
        layer.build()
    assert layer(tf.constant([0, IDS - 1])).shape == (2, 2)
    for wrong in (IDS, -1):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=f"expected ids from 0 to {IDS - 1}"
        ):
            layer(tf.constant([wrong]))


@on_ranks(1)
def test_mixed_precision(ctx):
    strategy = alone()
    with strategy.scope():
        ids = keras.Input((), dtype="int64")
        layer = layers.Embedding(None, 2, "sgd", "zeros", dtype="mixed_float16")
        rows = layer(ids)
        model = keras.Model(ids, rows)
        inner = keras.optimizers.SGD(1.0)
        model.compile(keras.optimizers.LossScaleOptimizer(inner, initial_scale=4.0), _sum)
    assert rows.dtype == "float16"
    model.train_on_batch(np.array([6, 6]), np.zeros((2, 2)))
    np.testing.assert_allclose(rows_of(layer, [6]), [[-2, -2]])


@on_ranks(1)
def test_a_model_that_is_loaded_beside_the_saved_one(ctx):
    """It has the rows in a table of its own: the model that was saved may continue training."""
    strategy = alone()
    with strategy.scope():
        layer = remote_embedding(embedding.Adagrad(epsilon=0.01), max_rows=1000, name="users")
        model = model_with(layer, keras.optimizers.SGD(0.1))
    model.fit(dataset(32, 16), verbose=0)
    predicted = model.predict(dataset(32, 16), verbose=0)
    model.save(ctx.tmp_path / "model.keras")
    model.fit(dataset(32, 16), verbose=0)
    before = model.predict(dataset(32, 16), verbose=0)
    with strategy.scope():
        loaded = keras.models.load_model(ctx.tmp_path / "model.keras")
    assert loaded.layers[0].table.name != layer.table.name
    np.testing.assert_allclose(loaded.predict(dataset(32, 16), verbose=0), predicted, rtol=1e-6)
    np.testing.assert_array_equal(model.predict(dataset(32, 16), verbose=0), before)


@on_ranks(1)
def test_a_shared_table_is_shared_again_when_it_is_loaded(ctx):
    strategy = alone()
    with strategy.scope():
        table = tfdist.EmbeddingTable("words", 2, optimizer="ftrl", max_rows=100)
        left, right = keras.Input((), dtype="int64"), keras.Input((), dtype="int64")
        rows = [layers.Embedding(table=table)(x) for x in (left, right)]
        model = keras.Model([left, right], keras.layers.Add()(rows))
        model.compile("sgd", _sum)
    model.train_on_batch([np.array([4]), np.array([9])], np.zeros((1, 2)))
    model.save(ctx.tmp_path / "model.keras")
    with strategy.scope():
        loaded = keras.models.load_model(
            ctx.tmp_path / "model.keras", custom_objects={"_sum": _sum}
        )
    tables = [layer.table for layer in loaded.layers if isinstance(layer, layers.Embedding)]
    assert tables[0] is tables[1]
    assert bytes(tables[0].config()) == bytes(table.config())
    x = [np.array([4, 5]), np.array([9, 4])]
    np.testing.assert_allclose(loaded.predict(x, verbose=0), model.predict(x, verbose=0))


@on_ranks(1)
def test_two_tables_of_one_name(ctx):
    strategy = alone()
    with strategy.scope():
        tfdist.EmbeddingTable("t", 2).rows  # noqa: B018
        with pytest.raises(ValueError, match="table 't': expected the same arguments"):
            tfdist.EmbeddingTable("t", 3).rows  # noqa: B018


@pytest.mark.parametrize("strategy", ["OneDeviceStrategy", None])
@on_ranks(1)
def test_a_strategy_without_servers(ctx, strategy):
    scope = tfdist.OneDeviceStrategy("CPU:0") if strategy else tf.distribute.get_strategy()
    with scope.scope():
        layer = layers.Embedding(None, 2)
        with pytest.raises(ValueError, match=r"in the scope of a tfdist\.ParameterServerStrategy"):
            layer(tf.constant([1]))


@on_ranks(1)
def test_models_of_the_same_names_have_tables_of_their_own(ctx):
    strategy = alone()
    with strategy.scope():
        tables = []
        for _ in range(2):
            ids = keras.Input((), dtype="int64")
            layer = layers.Embedding(None, 2, "sgd", "ones", name="users")
            model = keras.Model(ids, layer(ids))
            model.compile(keras.optimizers.SGD(1.0), _sum)
            model.train_on_batch(np.array([4]), np.zeros((1, 2)))
            tables.append(layer.table)
    assert tables[0].name != tables[1].name
    for table in tables:
        np.testing.assert_array_equal(table.fetch()[1], [[0, 0]])


@on_job(2)
def test_workers_that_make_different_tables(ctx):
    if served():
        return
    strategy = tfdist.ParameterServerStrategy()
    with strategy.scope():
        tfdist.EmbeddingTable("t", 2).rows if ctx.rank == 0 else None  # noqa: B018
        meet(ctx, "made")
        if ctx.rank == 1:
            layer = layers.Embedding(table=tfdist.EmbeddingTable("t", 2, optimizer="sgd"))
            with pytest.raises(ValueError, match="'t': expected the same arguments in all workers"):
                layer(tf.constant([1]))


@on_ranks(1, 2)
def test_all_reduce_without_servers(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy()
    with strategy.scope():
        with pytest.raises(ValueError, match="the cluster has no ps tasks"):
            layers.Embedding(None, 2, placement="servers")(tf.constant([1]))


@on_ranks(1)
def test_a_shared_table_says_what_it_is_like(ctx):
    strategy = alone()
    with strategy.scope():
        table = tfdist.EmbeddingTable("t", 8)
        assert layers.Embedding(table=table).output_dim == 8
        with pytest.raises(
            ValueError, match="which has its own, received input_dim=None, output_dim=4"
        ):
            layers.Embedding(output_dim=4, table=table)
        with pytest.raises(ValueError, match="'max_rows': 7"):
            layers.Embedding(table=table, max_rows=7)


@on_ranks(1)
def test_gradients_applied_outside_of_run(ctx):
    """They make a step of their own, as gradients of dense variables do."""
    strategy = alone()
    with strategy.scope():
        table = tfdist.EmbeddingTable("t", 2, optimizer="sgd", initializer="zeros")
        optimizer = keras.optimizers.SGD(1.0)

    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tfdist.ops.embedding_lookup(table, ids))
        optimizer.apply_gradients([(tape.gradient(loss, table.rows), table.rows)])

    step(tf.constant([3, 5]))
    tf.function(step)(tf.constant([3, 3]))
    got = tfdist.ops.embedding_lookup(table, tf.constant([3, 5, 7]), training=False)
    np.testing.assert_array_equal(got, [[-3, -3], [-1, -1], [0, 0]])
