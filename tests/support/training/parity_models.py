"""Models of many kinds, and their differences between replicas and one process.

docs/reference/parity.md has a table of the output of the tests that use these.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from support.training import own_steps
from support.training.models import ADAPTIVE, EXACT, difference

BATCH, STEPS = 48, 8  # of all replicas together
TIMES, COLUMNS, CLASSES = 6, 5, 3
NOISE = 4
layers = keras.layers


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A model and how it is trained.

    Args:
      build: makes the compiled model, with its weights.
      data: makes the arrays of a dataset of rows.
      tolerance: the largest difference allowed in any weight, slot or logged number.
      options: of `fit`.
      batch: the rows of a batch of all replicas together.
    """

    build: Callable[[], keras.Model]
    data: Callable[[], tuple]
    tolerance: float
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    batch: int = BATCH


@dataclasses.dataclass(frozen=True)
class Trained:
    """The result of a training.

    Args:
      weights: of the model.
      slots: all variables of its optimizers.
      history: by name, the logs at the end of each epoch.
      moved: the largest change of any weight.
    """

    weights: list[np.ndarray]
    slots: list[np.ndarray]
    history: dict[str, list[float]]
    moved: float


def sequences() -> tuple[np.ndarray, np.ndarray]:
    """Makes float32[rows, TIMES, COLUMNS] and labels int32[rows]."""
    random = np.random.default_rng(11)
    x = random.normal(size=(BATCH * STEPS, TIMES, COLUMNS)).astype("float32")
    return x, (np.abs(x).sum(axis=(1, 2)) * 3).astype("int32") % CLASSES


def classifier_of(body: Callable, optimizer: Any, loss: Any = None) -> keras.Model:
    """Makes a compiled classifier of `sequences`; `body` makes one row of each."""
    inputs = keras.Input((TIMES, COLUMNS))
    model = keras.Model(inputs, layers.Dense(CLASSES)(body(inputs)))
    loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def mean_of_batch(labels: Any, logits: Any) -> tf.Tensor:
    """A loss that is one number for a batch."""
    labels = tf.cast(tf.reshape(labels, [-1]), tf.int32)
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    )


def transformer_block(inputs: Any) -> Any:
    """One encoder block over the times, and the mean of its output."""
    hidden = layers.Dense(16)(inputs)
    attended = layers.MultiHeadAttention(num_heads=2, key_dim=8)(hidden, hidden)
    hidden = layers.LayerNormalization()(hidden + attended)
    fed = layers.Dense(16)(layers.Dense(32, activation="gelu")(hidden))
    hidden = layers.LayerNormalization()(hidden + fed)
    return layers.GlobalAveragePooling1D()(hidden)


def normalized(inputs: Any) -> Any:
    """Normalizes over the rows of all replicas."""
    hidden = layers.Dense(16, activation="relu")(layers.Flatten()(inputs))
    return layers.BatchNormalization(momentum=0.8, synchronized=True)(hidden)


class Gan(keras.Model):
    """Two networks that train each other, each with an optimizer of its own.

    The noise comes with the data, in the place of labels, and so does not depend on the replicas.
    """

    def __init__(self) -> None:
        super().__init__()
        size = TIMES * COLUMNS
        self.generator = keras.Sequential(
            [keras.Input((NOISE,)), layers.Dense(16, activation="relu"), layers.Dense(size)]
        )
        self.discriminator = keras.Sequential(
            [keras.Input((size,)), layers.Dense(16, activation="relu"), layers.Dense(1)]
        )
        self.built = True
        self.of_generator = keras.metrics.Mean(name="generator")
        self.of_discriminator = keras.metrics.Mean(name="discriminator")

    def compile(self, generator_optimizer: Any, discriminator_optimizer: Any) -> None:
        """Takes an optimizer for each."""
        super().compile()
        self.generator_optimizer = generator_optimizer
        self.discriminator_optimizer = discriminator_optimizer

    @property
    def metrics(self) -> list:
        """The metrics that the steps update."""
        return [self.of_generator, self.of_discriminator]

    def train_step(self, data: Any) -> dict[str, Any]:
        """One step of the discriminator, and then one of the generator."""
        real, noise = data
        with tf.GradientTape() as tape:
            found = self.discriminator(real, training=True)
            made = self.discriminator(self.generator(noise, training=True), training=True)
            losses = _says(1.0, found) + _says(0.0, made)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
        self._apply(tape, loss, self.discriminator, self.discriminator_optimizer)
        self.of_discriminator.update_state(losses)
        with tf.GradientTape() as tape:
            made = self.discriminator(self.generator(noise, training=True), training=True)
            losses = _says(1.0, made)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
        self._apply(tape, loss, self.generator, self.generator_optimizer)
        self.of_generator.update_state(losses)
        return {metric.name: metric.result() for metric in self.metrics}

    @staticmethod
    def _apply(tape: Any, loss: Any, of: Any, optimizer: Any) -> None:
        variables = of.trainable_variables
        optimizer.apply(tape.gradient(loss, [v.value for v in variables]), variables)


def _says(truth: float, logits: Any) -> tf.Tensor:
    """The loss of each row."""
    truths = tf.fill(tf.shape(logits), truth)
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=truths, logits=logits)[:, 0]


def gan() -> keras.Model:
    """Makes a compiled `Gan`."""
    model = Gan()
    model.compile(keras.optimizers.Adam(2e-3, 0.5), keras.optimizers.SGD(0.05, momentum=0.9))
    return model


def pairs() -> tuple:
    """Makes the rows of a `Gan`: real rows, and noise."""
    x, _ = sequences()
    noise = np.random.default_rng(12).normal(size=(len(x), NOISE)).astype("float32")
    return x.reshape(len(x), -1), noise


def weighted_outputs(loss: Any = None) -> keras.Model:
    """Makes a compiled model of two outputs whose losses, and rows, have different weights.

    Args:
      loss: of the labels.
    """
    inputs = keras.Input((TIMES, COLUMNS))
    hidden = layers.Dense(16, activation="tanh")(layers.Flatten()(inputs))
    outputs = {
        "label": layers.Dense(CLASSES, name="label")(hidden),
        "size": layers.Dense(1, name="size")(hidden),
    }
    model = keras.Model(inputs, outputs)
    model.compile(
        keras.optimizers.Adam(0.005),
        loss={
            "label": loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "size": "mse",
        },
        loss_weights={"label": 0.75, "size": 0.125},
        metrics={"size": ["mae"]},
        weighted_metrics={"label": ["accuracy"]},
    )
    return model


def weighted_rows() -> tuple:
    """Makes rows with a weight for each of two outputs."""
    x, labels = sequences()
    weights = np.random.default_rng(13).uniform(0.0, 2.0, size=(2, len(x))).astype("float32")
    targets = {"label": labels, "size": np.abs(x).mean(axis=(1, 2))[:, None]}
    return x, targets, {"label": weights[0], "size": weights[1]}


class TrackedGan(own_steps.WassersteinGan):
    """Logs means over the rows of an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.of_critic = keras.metrics.Mean(name="critic")
        self.of_generator = keras.metrics.Mean(name="generator")

    @property
    def metrics(self) -> list:
        """The metrics that `logs` updates."""
        return [self.of_critic, self.of_generator]

    def logs(self, critics: Any, generators: Any) -> dict[str, Any]:
        """The means so far."""
        self.of_critic.update_state(critics)
        self.of_generator.update_state(generators)
        return {metric.name: metric.result() for metric in self.metrics}


def tracked_gan() -> keras.Model:
    """Makes a compiled `TrackedGan`."""
    model = TrackedGan()
    model.compile()
    return model


def _own(name: str) -> Case:
    """A program of `own_steps`."""
    make = own_steps.PROGRAMS[name]
    return Case(lambda: make()[0], lambda: make()[1], ADAPTIVE, batch=own_steps.BATCH)


def _adam() -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(0.005)


def _momentum() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.05, momentum=0.9)


CASES = {
    # Not Adam: the gradient of the keys' bias is zero except for rounding, which Adam makes a step
    # of.
    "transformer": Case(lambda: classifier_of(transformer_block, _momentum()), sequences, EXACT),
    "LSTM": Case(lambda: classifier_of(layers.LSTM(12), _adam()), sequences, ADAPTIVE),
    "GRU": Case(lambda: classifier_of(layers.GRU(12), _adam()), sequences, ADAPTIVE),
    "GAN": Case(gan, pairs, ADAPTIVE),
    "weighted outputs": Case(weighted_outputs, weighted_rows, ADAPTIVE),
    "weighted classes": Case(
        lambda: classifier_of(layers.Flatten(), _adam()),
        sequences,
        ADAPTIVE,
        {"class_weight": {0: 0.5, 1: 1.0, 2: 2.0}},
    ),
    "synchronized BatchNormalization": Case(
        lambda: classifier_of(normalized, _momentum()), sequences, ADAPTIVE
    ),
    "scalar loss": Case(
        lambda: classifier_of(layers.LSTM(12), _adam(), mean_of_batch), sequences, ADAPTIVE
    ),
    "VAE": _own("VAE"),
    "WGAN-GP": dataclasses.replace(_own("WGAN-GP"), build=tracked_gan),
    "two views": _own("two views"),
}


def train(case: Case, strategy: Any = None, started: Callable[[], None] = lambda: None) -> Trained:
    """Trains a model for two epochs.

    Args:
      case: which one.
      strategy: `None`: without one.
      started: is called when the model has its first values.
    """
    keras.utils.set_random_seed(3)
    with (strategy or tf.distribute.get_strategy()).scope():
        model = case.build()
    first = _first_weights(model)
    model.set_weights(first)
    started()
    data = tf.data.Dataset.from_tensor_slices(case.data()).batch(case.batch)
    history = model.fit(data, epochs=2, verbose=0, **case.options).history
    own = [v for v in vars(model).values() if isinstance(v, keras.optimizers.Optimizer)]
    # With optimizers of its own a model does not use the optimizer that `compile` has made.
    optimizers = [v for v in own if v is not model.optimizer] or [model.optimizer]
    slots = [np.asarray(v) for optimizer in optimizers for v in optimizer.variables]
    weights = model.get_weights()
    return Trained(weights, slots, history, difference(weights, first))


def _first_weights(model: keras.Model) -> list[np.ndarray]:
    """Weights of Glorot's scale that depend on the model only, so all processes have the same."""
    random, weights = np.random.default_rng(17), []
    for variable in model.weights:
        shape = tuple(variable.shape)
        value = np.ones(shape) if variable.name in ("gamma", "moving_variance") else np.zeros(shape)
        if len(shape) > 1:
            limit = np.sqrt(6.0 / (np.prod(shape[:-1]) + shape[-1]))
            value = random.uniform(-limit, limit, size=shape)
        weights.append(value.astype("float32"))
    return weights


@functools.cache
def alone(case: Case) -> Trained:
    """Returns the result of one process without a strategy."""
    return train(case)


def assert_like_alone(where: str, name: str, case: Case, found: Trained) -> None:
    """Asserts that a training equals one process's, and prints the differences.

    Args:
      where: the strategy, for the printed line.
      name: of the case, for the printed line.
      case: the trained case.
      found: the result of the training.
    """
    expected = alone(case)
    assert found.history.keys() == expected.history.keys()
    assert expected.moved > 0.01, expected.moved  # else equality proves nothing
    logged = [found.history[key] for key in expected.history]
    differences = {
        "weights": difference(found.weights, expected.weights),
        "slots": difference(found.slots, expected.slots),
        "logs": difference(logged, [*expected.history.values()]),
    }
    line = ", ".join(f"{name} {value:.1e}" for name, value in differences.items())
    print(f"parity: {where:28} {name:32} {line}")
    assert max(differences.values()) <= case.tolerance, f"{where}, {name}: {line}"
