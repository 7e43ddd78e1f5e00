"""A model whose steps return results of metrics under other names than the metrics'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

ROWS, BATCH, COLUMNS = 43, 12, 4  # neither divides by the replicas
NAMES = ["auc", "loss", "val_auc", "val_loss"]


def model_of(keras: Any, decorated: bool = False) -> Any:
    """Returns a compiled model of a Keras, Keras 3 or tf_keras.

    Args:
      keras: the module.
      decorated: its `train_step` is a `tf.function`.
    """

    class Renamed(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.score = keras.Sequential([keras.Input((COLUMNS,)), keras.layers.Dense(1)])
            self.total = keras.metrics.Mean(name="total_loss")
            self.area = keras.metrics.AUC(name="area")

        @property
        def metrics(self) -> list[Any]:
            return [self.total, self.area]

        def call(self, x: Any) -> Any:
            return self.score(x)

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                losses = tf.square(self(x)[:, 0] - y)
                loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
            variables = self.trainable_weights
            gradients = tape.gradient(loss, variables)
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return self._results(x, y)

        def test_step(self, data: Any) -> dict[str, Any]:
            return self._results(*data)

        def _results(self, x: Any, y: Any) -> dict[str, Any]:
            found = self(x)[:, 0]
            self.total.update_state(tf.square(found - y))
            self.area.update_state(y > 0, tf.sigmoid(found))
            return {"loss": self.total.result(), "auc": self.area.result()}

    if decorated:
        Renamed.train_step = tf.function(Renamed.train_step)
    model = Renamed()
    model.compile(optimizer=keras.optimizers.SGD(0.1))
    return model


def logged(
    keras: Any,
    strategy: tf.distribute.Strategy,
    decorated: bool = False,
    started: Callable[[], None] = lambda: None,
) -> np.ndarray:
    """Returns what `fit` and `evaluate` log: a row for each name, then the evaluation's.

    Args:
      keras: Keras 3 or tf_keras.
      strategy: of the model.
      decorated: as for `model_of`.
      started: is called before the training.
    """
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = model_of(keras, decorated)
    started()
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, COLUMNS)).astype("float32")
    y = x.sum(axis=1) + random.normal(size=ROWS).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, y))
    validation = data.take(17).batch(BATCH)
    data = data.batch(BATCH)
    history = model.fit(data, epochs=2, verbose=0, validation_data=validation).history
    evaluated = model.evaluate(data, verbose=0, return_dict=True)
    # Once more: the second `fit` makes no function.
    again = model.fit(data, epochs=2, verbose=0, validation_data=validation).history
    names = NAMES[:2]
    return np.array(
        [*(history[n] for n in NAMES), *(again[n] for n in NAMES), [evaluated[n] for n in names]]
    )
