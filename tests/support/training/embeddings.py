"""Small models with an embedding, and the oracle of its tests: the same model with a dense kernel.

A one-hot vector times a kernel is an embedding whose gradients of equal ids are summed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from support.training import models
from tfdist.job import process

IDS, WIDTH, PER_EXAMPLE = 20, 4, 3
FIRST = 0.3  # the initial value of all rows
DENSE_ROWS = "one_hot_rows"  # the name of the kernel


def examples(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Makes Zipf-distributed ids [rows, PER_EXAMPLE], and targets float32[rows, 1]."""
    random = np.random.default_rng(11)
    ids = np.minimum(random.zipf(1.3, (rows, PER_EXAMPLE)), IDS) - 1
    return ids, random.normal(size=(rows, 1)).astype("float32")


def dataset(rows: int, batch: int) -> tf.data.Dataset:
    """Makes `examples(rows)` as a dataset of global batches."""
    return tf.data.Dataset.from_tensor_slices(examples(rows)).batch(batch)


def dense_embedding(library: Any = keras, first: float = FIRST) -> Any:
    """Makes the layer that a `tfdist.layers.Embedding` must equal."""

    class OneHot(library.layers.Layer):
        def build(self, shape):
            initializer = library.initializers.Constant(first)
            self.rows = self.add_weight(
                name=DENSE_ROWS, shape=(IDS, WIDTH), initializer=initializer
            )

        def call(self, ids):
            return tf.one_hot(ids, IDS) @ self.rows

    return OneHot()


def remote_embedding(
    optimizer: Any, library: Any = keras, first: float = FIRST, **arguments: Any
) -> Any:
    """Makes the layer under test."""
    if library is keras:
        from tfdist.layers import Embedding
    else:
        from tfdist.layers.legacy import Embedding
    initializer = library.initializers.Constant(first)
    return Embedding(None, WIDTH, optimizer, initializer, **arguments)


def model_with(embedding: Any, optimizer: Any, library: Any = keras, **compiled: Any) -> Any:
    """Makes a compiled model of `examples` around an embedding layer."""
    layers = library.layers
    head = layers.Dense(1, kernel_initializer=library.initializers.GlorotUniform(seed=1))
    model = library.Sequential(
        [layers.Input((PER_EXAMPLE,), dtype="int64"), embedding, layers.Flatten(), head]
    )
    model.compile(optimizer, "mse", **compiled)
    return model


def train_like_dense(
    strategy: tf.distribute.Strategy,
    optimizer: Callable[[], Any],
    of_rows: Any,
    library: Any = keras,
    tolerance: float = models.EXACT,
    rows: int = 96,
    batch: int = 16,
    first: float = FIRST,
    placement: str | None = None,
    **compiled: Any,
) -> Any:
    """Trains with and without a remote embedding; asserts that both end with the same weights.

    Args:
      strategy: of the model with the remote embedding.
      optimizer: makes the model's optimizer.
      of_rows: the table's optimizer.
      library: `keras` or `tf_keras`.
      tolerance: the largest difference in any weight or row.
      rows: the number of examples.
      batch: the global batch size.
      first: the initial value of all rows.
      placement: of the table.
      **compiled: further arguments of `compile`.

    Returns:
      The trained model; its first layer is the embedding.
    """
    plain = model_with(dense_embedding(library, first), optimizer(), library)
    with strategy.scope():
        embedding = remote_embedding(of_rows, library, first, placement=placement)
        model = model_with(embedding, optimizer(), library, **compiled)
    data = dataset(rows, batch)
    expected = plain.fit(data, epochs=2, verbose=0).history["loss"]
    losses = model.fit(data, epochs=2, verbose=0).history["loss"]
    kernel, *others = plain.get_weights()
    assert np.abs(kernel - first).max() > 100 * tolerance  # the training moves the rows
    assert models.difference([rows_of(embedding)], [kernel]) <= tolerance
    assert models.difference(model.get_weights()[1:], others) <= tolerance
    if strategy.num_replicas_in_sync == 1:
        assert models.difference([losses], [expected]) <= tolerance
    return model


def rows_of(embedding: Any, ids: Any = range(IDS)) -> np.ndarray:
    """Returns the table's rows of these ids."""
    return tfdist.ops.embedding_lookup(
        embedding.table, tf.constant(list(ids), tf.int64), training=False
    ).numpy()


def alone() -> tfdist.ParameterServerStrategy:
    """Makes the strategy of a process without a cluster, which serves itself."""
    del os.environ["TF_CONFIG"]
    return tfdist.ParameterServerStrategy()


def held(table: tfdist.EmbeddingTable) -> dict[str, Any]:
    """Returns a table's `tfdist.ops.TableStats`, as a dict, on the only server of the job."""
    (reading,) = process.current.readings()
    return reading["tables"][table.name]
