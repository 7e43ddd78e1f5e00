"""Tables in files, and models that serve without tfdist."""

from __future__ import annotations

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tfdist
from support.processes.ranks import on_ranks
from support.training.embeddings import (
    alone,
    dataset,
    examples,
    model_with,
    remote_embedding,
    rows_of,
)
from support.training.models import difference
from tfdist import layers, ops
from tfdist.embedding.initial_rows import initial_rows
from tfdist.ops.ps.table_config import InitializerKind

SERVER = """
import sys
from pathlib import Path
import numpy as np
import tensorflow as tf
root = Path(sys.argv[1])
loaded = tf.saved_model.load(str(root / "served"))
with np.load(root / "inputs.npz") as arrays:
    inputs = [tf.constant(arrays[name]) for name in sorted(arrays)]
answer = loaded.serve(*inputs) if len(inputs) == 1 else loaded.serve(inputs)
np.save(root / "answer.npy", answer)
assert "serving_default" in loaded.signatures
assert not [name for name in sys.modules if name.startswith("tfdist")]
"""


def served(folder, *inputs) -> np.ndarray:
    """Returns the exported model's answers in a process that cannot import tfdist."""
    np.savez(folder / "inputs.npz", **{f"input_{i}": value for i, value in enumerate(inputs)})
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-c", SERVER, str(folder)]
    subprocess.run(command, check=True, cwd=folder, env=environment, timeout=50)
    return np.load(folder / "answer.npy")


@pytest.mark.long(covered_by="test_strings_and_a_shared_table_serve")
@pytest.mark.parametrize("name", ["keras", "tf_keras"])
@on_ranks(1)
def test_a_model_serves_without_tfdist(ctx, name):
    library = {"keras": keras, "tf_keras": tf_keras}[name]
    strategy = alone()
    with strategy.scope():
        layer = remote_embedding("adagrad", library)
        model = model_with(layer, library.optimizers.SGD(0.1), library)
    model.fit(dataset(64, 16), verbose=0)
    if name == "keras":
        model.export(ctx.tmp_path / "served", verbose=False)
    else:
        tfdist.export_for_serving(model, str(ctx.tmp_path / "served"))
    ids = np.concatenate([examples(40)[0], [[10**15, -7, 3]]])  # some without a row
    expected = model.predict(ids, verbose=0)
    assert difference([served(ctx.tmp_path, ids)], [expected]) <= 1e-6
    # The layer is the servers' again.
    model.fit(dataset(16, 16), verbose=0)
    assert difference([model.predict(ids, verbose=0)], [expected]) > 1e-4


@on_ranks(1)
def test_strings_and_a_shared_table_serve(ctx):
    strategy = alone()
    with strategy.scope():
        table = tfdist.EmbeddingTable("words", 2, optimizer="sgd", initializer="normal")
        unused = tfdist.EmbeddingTable("other", 3, initializer="truncated_normal")
        other_words = tfdist.EmbeddingTable("more/words too", 2, optimizer="adamw")
        left, right = keras.Input((), dtype="string"), keras.Input((2,), dtype="string")
        rows = [
            layers.Embedding(table=table)(left),
            layers.Embedding(table=table, combiner="mean")(right),
        ]
        rows.append(layers.Embedding(table=unused)(left))
        fields = [
            layers.FieldWiseEmbedding(tables=[table, other_words])(right),
            layers.FieldWiseEmbedding(3, [0, 0], max_norm=0.1)(right),
        ]
        rows += [keras.layers.Flatten()(each) for each in fields]
        model = keras.Model([left, right], keras.layers.Concatenate()(rows))
        model.compile("sgd", lambda _, y: tf.reduce_sum(y, -1))
    x = [np.array(["ann", "bob"]), np.array([["bob", "cid"], ["ann", "ann"]])]
    model.train_on_batch([tf.constant(v) for v in x], np.zeros((2, 14)))
    tfdist.export_for_serving(model, str(ctx.tmp_path / "served"))
    new = [np.array(["ann", "dan"]), np.array([["eve", "ann"], ["bob", "fay"]])]
    expected = model.predict([tf.constant(v) for v in new], verbose=0)
    assert difference([served(ctx.tmp_path, *new)], [expected]) <= 1e-6


@on_ranks(1)
def test_a_model_without_tables_is_not_for_this(ctx):
    strategy = alone()
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="to have embedding tables"):
        tfdist.export_for_serving(model, str(ctx.tmp_path / "served"))


@on_ranks(1)
def test_ragged_inputs_are_not_served(ctx):
    strategy = alone()
    with strategy.scope():
        ids = keras.Input((None,), dtype="int64", ragged=True, name="genres")
        model = keras.Model(ids, layers.Embedding(None, 2, combiner="sum")(ids))
    model(tf.ragged.constant([[1, 2], []], tf.int64))
    with pytest.raises(ValueError, match="genres of model .* is ragged"):
        tfdist.export_for_serving(model, str(ctx.tmp_path / "served"))


@pytest.mark.parametrize("kind", list(InitializerKind))
@on_ranks(1)
def test_first_values_are_the_servers(ctx, kind):
    strategy = alone()
    a, b = (0.25, 0.0) if kind == InitializerKind.CONSTANT else (-1.0, 2.0)
    initializers = {
        InitializerKind.CONSTANT: keras.initializers.Constant(a),
        InitializerKind.UNIFORM: keras.initializers.RandomUniform(a, b, seed=5),
        InitializerKind.NORMAL: keras.initializers.RandomNormal(a, b, seed=5),
        InitializerKind.TRUNCATED_NORMAL: keras.initializers.TruncatedNormal(a, b, seed=5),
    }
    with strategy.scope():
        table = tfdist.EmbeddingTable("t", 5, initializer=initializers[kind])
    ids = tf.constant([0, 1, -5, 2**62, *range(100, 200)], tf.int64)
    expected = ops.embedding_lookup(table, ids, training=False)
    found = initial_rows(table.config().initializer, ids, 5)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert len(np.unique(expected)) > 400 or kind == InitializerKind.CONSTANT


@pytest.mark.long("*parquet", covered_by="the other cases, single/ps/test_ps_table_files.py")
@pytest.mark.parametrize("kind", ["npz", "parquet"])
@on_ranks(1)
def test_a_table_goes_through_a_file(ctx, kind):
    strategy = alone()
    with strategy.scope():
        layer = remote_embedding("adagrad")
        model = model_with(layer, keras.optimizers.SGD(0.1))
        copy = tfdist.EmbeddingTable("copy", 4, initializer="zeros")
    model.fit(dataset(64, 16), verbose=0)
    path = str(ctx.tmp_path / f"table.{kind}")
    count = layer.table.export_table(path, slots=True)
    ids, rows = layer.table.fetch()
    assert count == len(ids) == len(set(examples(64)[0].ravel()))
    np.testing.assert_array_equal(rows, rows_of(layer, ids))
    assert copy.import_table(path) == count
    np.testing.assert_array_equal(ops.embedding_lookup(copy, ids, training=False), rows)
