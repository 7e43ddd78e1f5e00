"""Creation and eviction of rows, and the messages that carry them."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks
from support.ps_job import on_job, served
from support.training.embeddings import (
    IDS,
    alone,
    dataset,
    held,
    model_with,
    remote_embedding,
    rows_of,
)
from tfdist import layers


@on_ranks(1)
def test_rows_that_are_seen_often_enough(ctx):
    strategy = alone()
    with strategy.scope():
        ids = keras.Input((), dtype="int64")
        layer = layers.Embedding(None, 2, "sgd", "zeros", min_count=3)
        model = keras.Model(ids, layer(ids))
        model.compile(keras.optimizers.SGD(1.0), lambda _, rows: tf.reduce_sum(rows, -1))
    for _ in range(4):
        model.train_on_batch(np.array([6]), np.zeros((1, 2)))
    # It has a row since the third lookup.
    np.testing.assert_allclose(rows_of(layer, [6]), [[-2, -2]])


@on_ranks(1)
def test_rows_are_looked_up_a_batch_ahead(ctx):
    strategy = alone()
    with strategy.scope():
        layer = remote_embedding("sgd", prefetch=True)
        model = model_with(layer, keras.optimizers.SGD(0.1))
    batches = 12
    model.fit(dataset(8 * batches, 8), epochs=2, verbose=0)
    stats = strategy.communication_stats()
    # The first batch of an epoch may be looked up before its prefetch; before training begins,
    # fit looks at a batch.
    assert 2 * batches - 2 <= stats.prefetch_hits <= stats.prefetched <= 2 * batches + 1
    model.evaluate(dataset(8, 8), verbose=0)
    assert strategy.communication_stats().prefetched == stats.prefetched


@on_ranks(1)
def test_features_travel_together(ctx):
    strategy = alone()
    with strategy.scope():
        inputs = [keras.Input((), dtype="int64") for _ in range(6)]
        table = tfdist.EmbeddingTable("shared", 2)
        rows = [layers.Embedding(table=table)(x) for x in inputs[:3]]
        rows += [layers.Embedding(None, 2, wire_dtype="bfloat16")(x) for x in inputs[3:]]
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(rows)))
        model.compile("sgd", "mse", steps_per_execution=2)
    columns = tuple(np.arange(16) + 100 * i for i in range(6))
    data = tf.data.Dataset.from_tensor_slices((columns, np.ones((16, 1)))).batch(2)
    before = strategy.communication_stats().lookups
    model.fit(data, verbose=0)
    assert strategy.communication_stats().lookups - before == 8


@on_ranks(1)
def test_rows_that_are_seen_often_stay_with_the_worker(ctx):
    strategy = alone()
    with strategy.scope():
        layer = remote_embedding("sgd", cache_rows=IDS, cache_steps=3)
        model = model_with(layer, keras.optimizers.SGD(0.0))
    model.fit(np.ones((40, 3), int), np.ones((40, 1)), batch_size=4, shuffle=False, verbose=0)
    stats = strategy.communication_stats()
    # Of 10 steps one asks, and the three after it do not.
    assert (stats.cache_lookups, stats.cache_hits) == (10, 7)


@on_ranks(1)
def test_rows_go_for_want_of_room(ctx):
    strategy = alone()
    with strategy.scope():
        ids = keras.Input((), dtype="int64")
        layer = layers.Embedding(None, 2, max_rows=160, eviction="lfu")
        model = keras.Model(ids, layer(ids))
        model.compile("sgd", lambda _, rows: tf.reduce_sum(rows, -1))
    often, all_ids = np.arange(8), np.arange(1000)
    for part in np.split(all_ids, 20):
        model.train_on_batch(np.concatenate([often, part]), np.zeros((58, 2)))
    table = held(layer.table)
    assert table["rows"] == 160
    assert table["evicted_for_room"] == table["created"] - table["rows"] >= 840
    rows, _ = layer.table.fetch()
    assert set(often) <= set(rows)


@pytest.mark.parametrize("mode", ["async", "sync"])
@on_job(2)
def test_a_dataset_that_is_dealt_out_asks_for_its_own_batches(ctx, mode):
    if served():
        return
    strategy = tfdist.ParameterServerStrategy(mode=mode)
    with strategy.scope():
        table = tfdist.EmbeddingTable("t", 2, optimizer="sgd", initializer="zeros")
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([table.rows])

    @tf.function
    def step(ids):
        def of_replica(ids):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tfdist.ops.embedding_lookup(table, ids))
            optimizer.apply_gradients([(tape.gradient(loss, table.rows), table.rows)])

        strategy.run(of_replica, args=(ids,))

    whole = tf.data.Dataset.range(64).batch(4)
    asking = tfdist.ops.prefetch_rows(whole, lambda ids: {table: ids})
    steps = 0
    for ids in strategy.experimental_distribute_dataset(asking):
        step(ids)
        steps += 1
    assert steps == (8 if mode == "async" else 16)
    stats = strategy.communication_stats()
    assert steps - 1 <= stats.prefetch_hits <= stats.prefetched == steps
    with pytest.raises(ValueError, match="expected to be the last that is done"):
        strategy.experimental_distribute_dataset(asking.take(3))
