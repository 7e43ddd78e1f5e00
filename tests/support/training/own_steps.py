"""Models of public kinds that a batch's shapes do not build: GANs, a VAE, ragged words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

layers = keras.layers
ROWS, BATCH, COLUMNS, NOISE = 64, 8, 6, 3
UNEVEN_ROWS, SIDE = 29, 8


def _dense(inputs: int, outputs: int, name: str) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((inputs,)),
            layers.Dense(8, activation="tanh"),
            layers.Dense(outputs),
        ],
        name=name,
    )


class WassersteinGan(keras.Model):
    """A GAN with a penalty of the critic's gradient; it has no `call`."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = _dense(NOISE, COLUMNS, "generator")
        self.critic = _dense(COLUMNS, 1, "critic")

    def compile(self) -> None:
        """With two optimizers."""
        super().compile()
        self.generator_optimizer = keras.optimizers.Adam(0.01)
        self.critic_optimizer = keras.optimizers.Adam(0.01)

    def train_step(self, data: Any) -> dict[str, Any]:
        """One step of the critic, one of the generator."""
        real, noise = data
        with tf.GradientTape() as tape:
            made = self.generator(noise, training=True)
            with tf.GradientTape() as inner:
                between = (real + made) / 2
                inner.watch(between)
                score = self.critic(between, training=True)
            slopes = inner.gradient(score, between)
            norm = tf.sqrt(tf.reduce_sum(tf.square(slopes), axis=1) + 1e-6)
            critics = self.critic(made)[:, 0] - self.critic(real)[:, 0]
            critics += 10.0 * tf.square(norm - 1)
            loss = tf.nn.compute_average_loss(critics, global_batch_size=BATCH)
        self._apply(tape, loss, self.critic, self.critic_optimizer)
        with tf.GradientTape() as tape:
            generators = -self.critic(self.generator(noise, training=True))[:, 0]
            loss = tf.nn.compute_average_loss(generators, global_batch_size=BATCH)
        self._apply(tape, loss, self.generator, self.generator_optimizer)
        return self.logs(critics, generators)

    def logs(self, critics: Any, generators: Any) -> dict[str, Any]:
        """The logs of a step, from the losses of the rows."""
        return {"critic": tf.reduce_mean(critics), "generator": tf.reduce_mean(generators)}

    def _apply(self, tape: Any, loss: Any, part: keras.Model, optimizer: Any) -> None:
        gradients = tape.gradient(loss, [v.value for v in part.trainable_variables])
        optimizer.apply(gradients, part.trainable_variables)


class ConvolutionalGan(keras.Model):
    """A DCGAN, as keras.io has it: one batch of made and real images, and a loss of Keras."""

    def __init__(self) -> None:
        super().__init__()
        self.discriminator = keras.Sequential(
            [
                keras.Input((SIDE, SIDE, 1)),
                layers.Conv2D(4, 3, strides=2, padding="same"),
                layers.LeakyReLU(negative_slope=0.2),
                layers.Flatten(),
                layers.Dense(1, activation="sigmoid"),
            ],
            name="discriminator",
        )
        self.generator = keras.Sequential(
            [
                keras.Input((NOISE,)),
                layers.Dense(SIDE * SIDE),
                layers.Reshape((SIDE // 2, SIDE // 2, 4)),
                layers.Conv2DTranspose(4, 4, strides=2, padding="same"),
                layers.LeakyReLU(negative_slope=0.2),
                layers.Conv2D(1, 3, padding="same", activation="sigmoid"),
            ],
            name="generator",
        )

    def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any) -> None:
        """With two optimizers, and a loss for both."""
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn
        self.d_loss = keras.metrics.Mean(name="d_loss")
        self.g_loss = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self) -> list[Any]:
        """The trackers."""
        return [self.d_loss, self.g_loss]

    def train_step(self, data: Any) -> dict[str, Any]:
        """One step of each; the noise comes with the data."""
        real, noise = data
        rows = keras.ops.shape(real)[0]
        ones, zeros = keras.ops.ones((rows, 1)), keras.ops.zeros((rows, 1))
        both = keras.ops.concatenate([self.generator(noise), real], axis=0)
        with tf.GradientTape() as tape:
            found = self.discriminator(both)
            d_loss = self.loss_fn(keras.ops.concatenate([ones, zeros], axis=0), found)
        weights = self.discriminator.trainable_weights
        gradients = tape.gradient(d_loss, weights)
        self.d_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(zeros, self.discriminator(self.generator(noise)))
        weights = self.generator.trainable_weights
        gradients = tape.gradient(g_loss, weights)
        self.g_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        return {"d_loss": self.d_loss.result(), "g_loss": self.g_loss.result()}


class Autoencoder(keras.Model):
    """A variational autoencoder, as keras.io has it: trackers, `metrics`, and no `call`."""

    def __init__(self) -> None:
        super().__init__()
        inputs = keras.Input((COLUMNS,))
        hidden = layers.Dense(8, activation="tanh")(inputs)
        self.encoder = keras.Model(
            inputs, [layers.Dense(NOISE)(hidden), layers.Dense(NOISE)(hidden)]
        )
        self.decoder = _dense(NOISE, COLUMNS, "decoder")
        self.loss_tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self) -> list[Any]:
        """The trackers."""
        return [self.loss_tracker]

    def train_step(self, data: Any) -> dict[str, Any]:
        """One step; the noise comes with the data, so that it is the same on all replicas."""
        x, noise = data
        with tf.GradientTape() as tape:
            mean, log_variance = self.encoder(x)
            made = self.decoder(mean + tf.exp(0.5 * log_variance) * noise)
            divergence = 1 + log_variance - tf.square(mean) - tf.exp(log_variance)
            each = tf.reduce_sum(tf.square(x - made), 1) - 0.5 * tf.reduce_sum(divergence, 1)
            loss = tf.nn.compute_average_loss(each, global_batch_size=BATCH)
        variables = self.trainable_weights
        self.optimizer.apply(tape.gradient(loss, [v.value for v in variables]), variables)
        self.loss_tracker.update_state(each)
        return {"loss": self.loss_tracker.result()}


class TwoViews(keras.Model):
    """Compares two views of each row; `call` takes one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = _dense(COLUMNS, 4, "encoder")

    def call(self, x: Any) -> Any:
        """The code of a view."""
        return self.encoder(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        """One step on both views."""
        (one, other), _ = data
        with tf.GradientTape() as tape:
            each = tf.reduce_mean(tf.square(self(one) - self(other) - 1.0), axis=1)
            loss = tf.nn.compute_average_loss(each, global_batch_size=BATCH)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, [v.value for v in variables]), variables)
        self._loss_tracker.update_state(tf.reduce_mean(each))
        return {"loss": self._loss_tracker.result()}


class Words(keras.Model):
    """Takes ragged words, which shapes alone do not describe."""

    def __init__(self, count: int = 10, activation: str = "linear") -> None:
        super().__init__()
        self.table = layers.Embedding(count, 4)
        self.score = layers.Dense(1, activation)
        self.score.build((None, 4))
        self.table.build()
        self.built = True

    def call(self, words: Any) -> Any:
        """A number for each row of words."""
        means = tf.reduce_mean(words.with_values(self.table(words.values)), axis=1)
        return self.score(means)


def words() -> tuple[keras.Model, Any]:
    """A compiled model of ragged words, and its data."""
    model = Words()
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    lengths = 1 + np.arange(ROWS) % 4
    values = tf.range(lengths.sum()) % 10
    return model, (tf.RaggedTensor.from_row_lengths(values, lengths), *_rows(1))


def texts() -> tuple[keras.Model, Any]:
    """A compiled classifier of texts, which the input makes ragged, and its batches."""
    names = "a quick brown fox jumps over the lazy dog".split()
    sentences = [" ".join(names[i % 5 : i % 5 + 1 + i % 4]) for i in range(UNEVEN_ROWS)]
    vectorizer = layers.TextVectorization(ragged=True, vocabulary=names)
    model = Words(vectorizer.vocabulary_size(), "sigmoid")
    # Not Adam: in one process Keras squares the gradients of a word that repeats one by one.
    model.compile(keras.optimizers.SGD(0.5), "binary_crossentropy", metrics=["accuracy"])
    labels = np.array([["dog" in s or "fox" in s] for s in sentences], "float32")
    data = tf.data.Dataset.from_tensor_slices((sentences, labels)).batch(BATCH)
    return model, data.map(lambda text, label: (vectorizer(text), label))


def replica_loss() -> tuple[keras.Model, Any]:
    """A compiled model whose loss needs a replica, and its data."""

    def loss(y_true: Any, y_pred: Any) -> Any:
        replica = tf.distribute.get_replica_context()
        return tf.reduce_sum(tf.square(y_true - y_pred)) / (
            replica.num_replicas_in_sync * tf.cast(tf.shape(y_pred)[0], tf.float32)
        )

    model = _dense(COLUMNS, 1, "model")
    model.compile(keras.optimizers.SGD(0.1), loss)
    return model, tuple(_rows(COLUMNS, 1))


def _rows(*columns: int) -> list[np.ndarray]:
    random = np.random.default_rng(5)
    return [random.normal(size=(ROWS, count)).astype("float32") for count in columns]


def gan() -> tuple[keras.Model, Any]:
    """A compiled GAN, and its data."""
    model = WassersteinGan()
    model.compile()
    return model, tuple(_rows(COLUMNS, NOISE))


def convolutional_gan() -> tuple[keras.Model, Any]:
    """A compiled DCGAN, and its data, whose last batch is smaller and odd."""
    model = ConvolutionalGan()
    optimizers = keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.01)
    model.compile(*optimizers, keras.losses.BinaryCrossentropy())
    random = np.random.default_rng(6)
    images = random.uniform(size=(UNEVEN_ROWS, SIDE, SIDE, 1)).astype("float32")
    return model, (images, random.normal(size=(UNEVEN_ROWS, NOISE)).astype("float32"))


def autoencoder() -> tuple[keras.Model, Any]:
    """A compiled autoencoder, and its data."""
    model = Autoencoder()
    model.compile(keras.optimizers.Adam(0.01))
    return model, tuple(_rows(COLUMNS, NOISE))


def two_views() -> tuple[keras.Model, Any]:
    """A compiled model of two views, and its data."""
    model = TwoViews()
    model.compile(keras.optimizers.SGD(0.1), loss="mse")
    one, other, labels = _rows(COLUMNS, COLUMNS, 1)
    return model, ((one, other), labels)


PROGRAMS = {
    "WGAN-GP": gan,
    "DCGAN": convolutional_gan,
    "VAE": autoencoder,
    "two views": two_views,
    "ragged words": words,
    "ragged texts": texts,
    "loss of a replica": replica_loss,
}


def trained(
    name: str, strategy: Any, started: Callable[[], None] = lambda: None
) -> list[np.ndarray]:
    """The weights of a program after two epochs; `started` is called before them."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model, data = PROGRAMS[name]()
    started()
    if not isinstance(data, tf.data.Dataset):
        data = tf.data.Dataset.from_tensor_slices(data).batch(BATCH)
    model.fit(data, epochs=2, verbose=0)
    return model.get_weights()
