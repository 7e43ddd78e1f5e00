"""Several fields of categories in one tensor, each with ids of its own."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfdist
from support.processes.ranks import on_ranks
from support.training.embeddings import alone
from tfdist import embedding, layers
from tfdist.embedding import legacy_layer

LAYERS = {
    "keras": (keras, layers.FieldWiseEmbedding),
    "tf_keras": (tf_keras, legacy_layer.FieldWiseEmbedding),
}
IDS = np.array([[1, 1, 2, 1], [3, 3, 1, 1]])


def total(_, rows):
    return tf.reduce_sum(rows, [1, 2])


@pytest.mark.parametrize("name", LAYERS)
@on_ranks(1)
def test_one_table_for_all_slots(ctx, name):
    library, make = LAYERS[name]
    strategy = alone()
    with strategy.scope():
        ids = library.Input((4,), dtype="int64")
        layer = make(2, [0, 1, 1, 2], "sgd", "normal", name="fields")
        rows = layer(ids)
        model = library.Model(ids, rows)
        model.compile(library.optimizers.SGD(0.5), total)
    assert tuple(rows.shape) == (None, 3, 2)
    before = strategy.communication_stats().lookups
    first = model.predict(IDS, verbose=0)
    assert strategy.communication_stats().lookups == before + 1
    table = layer.table

    def row(id_, slot):
        return table.fetch(embedding.field_ids(tf.constant([id_]), slot)).numpy()[0]

    expected = [
        [row(1, 0), row(1, 1) + row(2, 1), row(1, 2)],
        [row(3, 0), row(3, 1) + row(1, 1), row(1, 2)],
    ]
    np.testing.assert_allclose(first, expected, rtol=1e-6)
    values = {tuple(row(1, slot)) for slot in range(3)}
    assert len(values) == 3  # an id is another one in each slot
    model.train_on_batch(IDS, np.zeros((2, 3, 2)))
    # The mean over the examples: 1 occurs once in slot 1 of each, and twice in slot 2.
    moved = model.predict(IDS, verbose=0) - first
    np.testing.assert_allclose(
        moved[:, :, 0], [[-0.25, -0.75, -0.5], [-0.25, -0.75, -0.5]], rtol=1e-5
    )
    assert table.size() == 6
    again = make.from_config(layer.get_config())
    assert again.slots == [0, 1, 1, 2]
    assert again.combiner == "sum"


@pytest.mark.parametrize("name", LAYERS)
@on_ranks(1)
def test_a_table_for_each_slot(ctx, name):
    library, make = LAYERS[name]
    strategy = alone()
    with strategy.scope():
        tables = [
            tfdist.EmbeddingTable(f"slot {i}", 2, optimizer="sgd", initializer="zeros")
            for i in range(3)
        ]
        ids = library.Input((4,), dtype="int64")
        layer = make(slots=[1, 0, 1, 2], tables=tables, combiner="mean")
        model = library.Model(ids, layer(ids))
        model.compile(library.optimizers.SGD(2.0), total)
    assert len(model.trainable_variables) == 3
    assert [table.name for table in layer.tables] == ["slot 0", "slot 1", "slot 2"]
    tables[0].upsert([1, 3], [[10, 10], [30, 30]])
    tables[1].upsert([1, 2, 3], [[1, 1], [2, 2], [3, 3]])
    expected = [[10, 1.5, 0], [30, 2, 0]]
    before = strategy.communication_stats().lookups
    np.testing.assert_allclose(model.predict(IDS, verbose=0)[:, :, 0], expected)
    assert strategy.communication_stats().lookups == before + 1
    model.train_on_batch(IDS, np.zeros((2, 3, 2)))
    # Each example's slot is worth 1, of its two columns in slot 1 each one half.
    np.testing.assert_allclose(tables[0].fetch([1, 3])[:, 0], [9, 29])
    np.testing.assert_allclose(tables[1].fetch([1, 2, 3])[:, 0], [0, 1.5, 2.5])
    np.testing.assert_allclose(tables[2].fetch([1])[:, 0], [-2])
    if library is keras:
        model.save(ctx.tmp_path / "model.keras")
        with strategy.scope():
            loaded = keras.models.load_model(
                ctx.tmp_path / "model.keras", custom_objects={"total": total}
            )
        np.testing.assert_allclose(loaded.predict(IDS, verbose=0), model.predict(IDS, verbose=0))


@on_ranks(1)
def test_strings_weights_and_prefetched_rows(ctx):
    strategy = alone()
    with strategy.scope():
        table = tfdist.EmbeddingTable("t", 1, optimizer="sgd", initializer="ones")
        words = keras.Input((3,), dtype="string")
        weights = keras.Input((3,))
        layer = layers.FieldWiseEmbedding(slots=[0, 0, 1], table=table, combiner="sqrtn")
        model = keras.Model([words, weights], layer(words, weights=weights))
        plain = layers.FieldWiseEmbedding(table=table, combiner="mean", prefetch=True, max_norm=0.5)
        other = keras.Model(words, plain(words))
        other.compile("sgd", lambda _, rows: tf.reduce_sum(rows, [1, 2]))
    text = tf.constant([["a", "b", "a"], ["a", "a", "c"]])
    got = model([text, tf.constant([[3.0, 4.0, 2.0], [0.0, 0.0, 1.0]])])
    np.testing.assert_allclose(got, [[[7 / 5], [1]], [[0], [1]]], rtol=1e-6)
    np.testing.assert_allclose(other(text), np.full([2, 3, 1], 0.5), rtol=1e-6)
    data = tf.data.Dataset.from_tensor_slices((text, np.zeros([2, 3, 1]))).repeat(4).batch(2)
    other.fit(data, verbose=0)
    assert strategy.communication_stats().prefetch_hits >= 2


@on_ranks(1)
def test_arguments_that_make_no_sense(ctx):
    strategy = alone()
    with strategy.scope():
        tables = [tfdist.EmbeddingTable(f"t{i}", 2 + i // 2) for i in range(3)]
        bounded = tfdist.EmbeddingTable("bounded", 2, input_dim=5)
        make = layers.FieldWiseEmbedding
        for message, arguments in (
            ("expected slots that are counted from 0 without a gap, received", {"slots": [0, 2]}),
            ("expected tables of one output_dim, received", {"tables": tables}),
            (
                "expected a table for each of 3 slots, received 2",
                {"tables": tables[:2], "slots": [0, 1, 2]},
            ),
            ("expected a table of any ids", {"table": bounded}),
            (
                "expected tables for each slot, or one table",
                {"tables": tables[:1], "table": tables[0]},
            ),
            ("expected combiner 'sum', 'mean' or 'sqrtn'", {"combiner": None}),
        ):
            with pytest.raises(ValueError, match=message):
                make(**arguments)
        layer = make(2, [0, 1])
        with pytest.raises(ValueError, match=r"expected ids of shape \(batch, 2\), received"):
            layer(tf.constant([[1, 2, 3]]))
        with pytest.raises(ValueError, match="expected a table for each of 4 slots, received 2"):
            make(tables=tables[:2])(tf.constant(IDS))
