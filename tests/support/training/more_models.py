"""Models with inputs, outputs or gradients that are not one dense tensor, and their data."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from support.training.models import CLASSES, built_classifier, difference, examples, slots

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
WORDS = ["north", "east", "south", "west"]

_SGD = keras.optimizers.SGD
# Most steps of a `classifier` exceed these limits.
CLIPPED = {
    "clipnorm": lambda: keras.optimizers.AdamW(weight_decay=0.01, clipnorm=0.1),
    "global_clipnorm": lambda: _SGD(0.1, momentum=0.9, global_clipnorm=0.1),
    "clipvalue": lambda: _SGD(0.1, momentum=0.9, clipvalue=0.01),
    "accumulation": lambda: _SGD(0.1, gradient_accumulation_steps=2, global_clipnorm=0.1),
    "loss_scale": lambda: keras.optimizers.LossScaleOptimizer(
        _SGD(0.1, clipnorm=0.1), initial_scale=8.0, dynamic_growth_steps=3
    ),
}


def nested_model() -> keras.Model:
    """Makes a compiled model of a dict and a tuple of inputs, with a dict of outputs."""
    inputs = {
        "pair": (keras.Input((2,), name="first"), keras.Input((3,), name="second")),
        "alone": keras.Input((1,), name="alone"),
    }
    hidden = keras.layers.Concatenate()([*inputs["pair"], inputs["alone"]])
    hidden = keras.layers.Dense(8, activation="tanh")(hidden)
    outputs = {
        "label": keras.layers.Dense(CLASSES, name="label")(hidden),
        "sum": keras.layers.Dense(1, name="sum")(hidden),
    }
    model = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.SGD(0.05),
        loss={"label": LOSS, "sum": "mse"},
        metrics={"label": ["accuracy"], "sum": ["mae"]},
    )
    return model


def nested_dataset() -> tf.data.Dataset:
    """Makes 320 rows for `nested_model`, in batches of 64."""
    features, labels = examples(320)
    inputs = {"pair": (features[:, :2], features[:, 2:5]), "alone": features[:, 5:]}
    targets = {"label": labels, "sum": features.sum(axis=1, keepdims=True)}
    return tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(64)


def reader_of_words() -> keras.Model:
    """Makes a compiled model whose input is text."""
    words = keras.Input((), dtype="string", name="word")
    numbers = keras.layers.StringLookup(vocabulary=WORDS)(words)
    hidden = keras.layers.CategoryEncoding(len(WORDS) + 1, output_mode="one_hot")(numbers)
    model = keras.Model({"word": words}, keras.layers.Dense(CLASSES)(hidden))
    model.compile(keras.optimizers.SGD(0.1), LOSS, metrics=["accuracy"])
    return model


def words(count: int) -> tf.data.Dataset:
    """Makes single rows for `reader_of_words`; some words are not in its vocabulary."""
    numbers = np.arange(count) * 7 % 5
    texts = np.array([*WORDS, "nowhere"])[numbers]
    return tf.data.Dataset.from_tensor_slices(({"word": texts}, numbers % CLASSES))


def embedding(optimizer: Any, sparse: bool, library: Any = keras, ids_dtype: str = "int32") -> Any:
    """Makes a compiled model that sums the rows of four ids below 10.

    Args:
      optimizer: as for `compile`.
      sparse: whether the gradient of the table is `tf.IndexedSlices`, or dense.
      library: `keras` or `tf_keras`.
      ids_dtype: of the input, and of the gradient's indices.
    """
    layers = library.layers
    ids = library.Input((4,), dtype=ids_dtype)
    if sparse:
        rows = layers.Embedding(10, 5, embeddings_initializer="uniform")(ids)
        summed = layers.Lambda(lambda rows: tf.reduce_sum(rows, axis=1))(rows)
    else:
        counts = layers.CategoryEncoding(10, output_mode="count")(ids)
        summed = layers.Dense(5, use_bias=False, kernel_initializer="uniform")(counts)
    model = library.Model(ids, layers.Dense(CLASSES)(summed))
    loss = library.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def ids_and_labels(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Makes ids int32[rows, 4] that often repeat and never are 9, and labels int32[rows]."""
    ids = np.random.default_rng(5).integers(0, 9, size=(rows, 4)).astype("int32")
    return ids, (ids.sum(axis=1) % CLASSES).astype("int32")


def loss_scaled_classifier() -> keras.Model:
    """Makes a built classifier whose loss scale starts at 1024 and doubles every three steps."""
    inner = keras.optimizers.SGD(0.1, momentum=0.9)
    return built_classifier(
        keras.optimizers.LossScaleOptimizer(inner, initial_scale=1024.0, dynamic_growth_steps=3)
    )


def train_embedding_like_one_process(
    ctx: Any, name: str, tolerance: float, ids_dtype: str, library: Any = keras
) -> list[np.ndarray]:
    """Trains an `embedding` on two ranks; asserts that it equals a dense one of one process.

    Ids repeat within a row, within a worker's share and between workers; one is never seen. The
    rows of int32 ids are less than the table, the rows of int64 ids are more (math/row_sums.h).

    Returns:
      The weights and the optimizer's slots.
    """
    ids, labels = ids_and_labels(64 * 20)
    options = {"batch_size": 64, "shuffle": False, "verbose": 0}
    library.utils.set_random_seed(0)
    optimizer = getattr(library.optimizers, name)
    alone = embedding(optimizer(), False, library)
    start = alone.get_weights()
    if ctx.rank == 0:
        alone.fit(ids, labels, **options)
    with tfdist.MultiWorkerMirroredStrategy().scope():
        model = embedding(optimizer(), True, library, ids_dtype)
        model.set_weights(start)
    model.fit(ids.astype(ids_dtype), labels, **options)
    if ctx.rank == 0:
        assert difference(model.get_weights(), alone.get_weights()) <= tolerance
        np.testing.assert_array_equal(model.get_weights()[0][9], start[0][9])
    return [*model.get_weights(), *slots(model)]


def overflow_on_one_of_two(model: keras.Model) -> None:
    """Trains a `loss_scaled_classifier`; asserts that an overflow is skipped and halves the scale.

    The gradient overflows on the second of two replicas only: both must skip the step.
    """
    scaled = model.optimizer
    features, labels = examples(64 * 7)
    options = {"batch_size": 64, "shuffle": False, "verbose": 0}
    history = model.fit(features, labels, **options).history
    assert scaled.dynamic_scale.numpy() == 4096  # doubled after steps 3 and 6
    assert scaled.inner_optimizer.iterations.numpy() == 7

    before = model.get_weights()
    overflowing = features[:64].copy()
    overflowing[40] = np.inf
    model.fit(overflowing, labels[:64], **options)
    assert scaled.dynamic_scale.numpy() == 2048
    assert scaled.inner_optimizer.iterations.numpy() == 7
    assert difference(model.get_weights(), before) == 0

    again = model.fit(features, labels, **options).history
    assert again["loss"][0] < history["loss"][0]
