"""Losses find the mask and the logits of predictions whose batches have a known size."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from devices.replicas import make_strategy

WORDS = np.random.default_rng(1).integers(1, 9, (24, 6)).astype("int32")
WORDS[::2, 3:] = 0


def train(strategy: tf.distribute.Strategy, scale: float, outputs: int) -> list[np.ndarray]:
    """Returns losses and weights; probabilities of large logits round to 0 and 1."""
    words = keras.Input((6,), dtype="int32")
    with strategy.scope():
        hidden = keras.layers.Embedding(9, 4, mask_zero=True)(words)
        tags = [keras.layers.Dense(9, activation="softmax")(hidden) for _ in range(outputs)]
        model = keras.Model(words, tags if outputs > 1 else tags[0])
        model.compile(keras.optimizers.SGD(0.1), ["sparse_categorical_crossentropy"] * outputs)
    random = np.random.default_rng(3)
    model.set_weights([random.normal(scale=scale, size=w.shape) for w in model.get_weights()])
    targets = (WORDS,) * outputs if outputs > 1 else WORDS
    data = tf.data.Dataset.from_tensor_slices((WORDS, targets)).batch(12, drop_remainder=True)
    logs = model.fit(data, verbose=0).history
    return [np.array([*logs.values()]), *model.get_weights()]


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("scale", [0.1, 6.0], ids=["small logits", "large logits"])
def test_they_train_as_in_one_process(scale, outputs):
    expected = train(tf.distribute.get_strategy(), scale, outputs)
    found = train(make_strategy("mirrored", 2), scale, outputs)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
