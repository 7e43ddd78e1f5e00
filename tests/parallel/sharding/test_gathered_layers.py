"""`Sharding(stage=3)`: layers gather their variables, and all train as one process."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks
from support.training import models
from support.training.models import (
    ADAPTIVE,
    CLASSES,
    COLUMNS,
    classifier,
    dataset,
    examples,
    identical,
)

STEPS, BATCH = 20, 64
K, layers = keras.optimizers, keras.layers


def train(ctx, build, rows=None, **sharding):
    data = dataset(BATCH * STEPS, BATCH) if rows is None else rows
    return models.train_like_one_process(
        ctx,
        build,
        lambda model: model.fit(data, verbose=0),
        ADAPTIVE,
        sharding=tfdist.Sharding(stage=3, **sharding),
    )


def bytes_here(model) -> int:
    """Bytes of trainable variables that this worker has."""
    return sum(v.value.part().shape.num_elements() * 4 for v in model.trainable_variables)


OPTIMIZERS = {
    "adam": lambda: K.Adam(0.01),
    "momentum_clipnorm": lambda: K.SGD(0.1, momentum=0.9, clipnorm=0.05),
    "global_clipnorm": lambda: K.AdamW(0.01, weight_decay=0.01, global_clipnorm=0.1),
    "ema_overwrite": lambda: K.Adam(0.01, use_ema=True, ema_overwrite_frequency=3),
    "accumulation": lambda: K.Adam(0.01, gradient_accumulation_steps=3, global_clipnorm=0.1),
    "loss_scale": lambda: K.LossScaleOptimizer(
        K.Adam(0.01), initial_scale=8.0, dynamic_growth_steps=3
    ),
}


@pytest.mark.long(
    "*ema_overwrite",
    "*loss_scale",
    "*global_clipnorm",
    "*-adam",
    covered_by="the other cases, parallel/sharding/test_sharded_optimizers.py",
)
@pytest.mark.parametrize("name", OPTIMIZERS)
@on_ranks(2, check=identical)
def test_equals_one_process(ctx, name):
    return train(ctx, lambda: classifier(OPTIMIZERS[name]())).get_weights()


@pytest.mark.long("4-ranks", covered_by="the other cases")
@on_ranks(3, 4, check=identical)
def test_parts_of_other_sizes(ctx):
    model = train(ctx, lambda: classifier(K.Adam(0.01)))
    assert bytes_here(model) <= 83 * 4 / ctx.size + 4 * 4
    return model.get_weights()


def transformer():
    inputs = keras.Input((COLUMNS,))
    hidden = layers.Dense(8, name="into")(layers.Reshape((COLUMNS, 1))(inputs))
    for _ in range(2):
        normal = layers.LayerNormalization()(hidden)
        # The gradient of a key's bias is 0, of whose rounding Adam would make whole steps.
        attention = layers.MultiHeadAttention(2, 4, use_bias=False)
        hidden = hidden + attention(normal, normal, use_causal_mask=True)
        hidden = hidden + layers.Dense(8)(layers.Dense(16, "gelu")(hidden))
    model = keras.Model(inputs, layers.Dense(CLASSES)(layers.Flatten()(hidden)))
    model.compile(K.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def convolutional():
    model = keras.Sequential(
        [
            layers.Reshape((COLUMNS, 1)),
            layers.Conv1D(4, 3, activation="relu"),
            layers.BatchNormalization(synchronized=True),
            layers.Conv1D(4, 3, kernel_regularizer="l2"),
            layers.Flatten(),
            layers.Dense(CLASSES, kernel_constraint=keras.constraints.MaxNorm(1.0)),
        ]
    )
    model.compile(
        K.SGD(0.05, momentum=0.9), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def recurrent():
    inputs = keras.Input((COLUMNS,))
    shared = layers.Dense(1, use_bias=False)
    steps = layers.Reshape((COLUMNS, 1))(inputs)
    hidden = layers.LSTM(6)(shared(shared(steps)))
    model = keras.Model(inputs, layers.Dense(CLASSES)(hidden))
    model.compile(K.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.mark.long("*transformer", "*recurrent", covered_by="the other cases")
@pytest.mark.parametrize("build", [transformer, convolutional, recurrent])
@on_ranks(2, check=identical)
def test_kinds_of_layers(ctx, build):
    return train(ctx, build).get_weights()


@pytest.mark.long(
    covered_by="test_parts_of_other_sizes, parallel/sharding/test_sharded_optimizers.py"
)
@on_ranks(2, check=identical)
def test_units_and_bytes(ctx):
    """Both ways together three times (N-1)/N of the variables' bytes."""
    model = train(ctx, transformer, units="multi_head_attention.*")
    strategy = model.distribute_strategy
    features, labels = examples(BATCH)
    batch = strategy.experimental_distribute_dataset(
        tf.data.Dataset.from_tensor_slices((features, labels)).batch(BATCH)
    )
    step = tf.function(lambda data: strategy.run(model.train_step, (data,)))
    (data,) = batch
    step(data)
    before = strategy.communication_stats().bytes_sent
    step(data)
    sent = strategy.communication_stats().bytes_sent - before
    whole = 4 * sum(v.shape.num_elements() for v in model.trainable_variables)
    variables = len(model.trainable_variables)
    # One element of a variable of odd size; besides these the metrics of the step.
    assert abs(sent - 3 * whole / 2) <= 3 * 4 * variables + 200
    return model.get_weights()


@on_ranks(2, check=identical)
def test_evaluate_predict_and_files(ctx, tmp_path):
    model = train(ctx, lambda: classifier(K.Adam(0.01)))
    features, labels = examples(BATCH)
    loss, _ = model.evaluate(features, labels, verbose=0)
    outputs = model.predict(features, verbose=0)
    path = str(tmp_path / f"{ctx.rank}.keras")
    model.save(path)
    if ctx.rank == 0:
        plain = keras.models.load_model(path)
        assert abs(plain.evaluate(features, labels, verbose=0)[0] - loss) < 1e-6
        assert abs(plain.predict(features, verbose=0) - outputs).max() < 1e-6
    with model.distribute_strategy.scope():
        again = keras.models.load_model(path)
    assert bytes_here(again) == bytes_here(model)
    return again.get_weights()


@on_ranks(2)
def test_mixed_precision(ctx):
    keras.config.set_dtype_policy("mixed_bfloat16")
    strategy = tfdist.MultiWorkerMirroredStrategy(sharding=tfdist.Sharding(stage=3))
    with strategy.scope():
        model = classifier(K.Adam(0.01))
    history = model.fit(dataset(BATCH * STEPS, BATCH), epochs=3, verbose=0).history["loss"]
    assert history[-1] < history[0] / 1.5


class TwoTapes(keras.Sequential):
    """Reads its weights before the tapes, and adds the gradients of two tapes."""

    def train_step(self, data):
        features, labels = data
        norm = tf.add_n([tf.reduce_sum(tf.square(v)) for v in self.trainable_variables])
        guess = tf.stop_gradient(self(features))
        grads = []
        for target in (labels, guess):
            with tf.GradientTape() as tape:
                error = tf.reduce_sum(tf.square(self(features) - target), axis=-1)
                loss = tf.reduce_sum(error) / BATCH
            grads.append(tape.gradient(loss, self.trainable_variables))
        sums = [a + b for a, b in zip(*grads, strict=True)]
        self.optimizer.apply_gradients(zip(sums, self.trainable_variables, strict=True))
        return {"norm": norm}


class Assigning(layers.Layer):
    """Reads, assigns and reads its kernel."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], CLASSES))

    def call(self, inputs):
        before = keras.ops.matmul(inputs, self.kernel)
        self.kernel.assign(self.kernel * 0.9)
        return before + keras.ops.matmul(inputs, self.kernel)


def own_step():
    hidden = layers.Dense(8, activation="tanh")
    model = TwoTapes([keras.Input((COLUMNS,)), hidden, layers.Dense(1)])
    model.compile(K.Adam(0.01))
    return model


def assigning():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    dense = layers.Dense(8, activation="tanh")
    model = keras.Sequential([layers.SpectralNormalization(dense), Assigning()])
    model.compile(K.SGD(0.01), loss)
    return model


@pytest.mark.long("*own_step", covered_by="the other cases")
@pytest.mark.parametrize("build", [own_step, assigning])
@on_ranks(2, check=identical)
def test_steps_that_read_and_assign_weights(ctx, build):
    features, labels = examples(BATCH * 3)
    labels = labels.astype("float32")[:, None] if build is own_step else labels
    rows = tf.data.Dataset.from_tensor_slices((features, labels)).batch(BATCH)
    return train(ctx, build, rows).get_weights()


class ClippingItself(keras.Sequential):
    """Clips its gradients in its step."""

    def train_step(self, data):
        features, labels = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(features, labels, self(features))
        grads, _ = tf.clip_by_global_norm(tape.gradient(loss, self.trainable_variables), 0.1)
        self.optimizer.apply(grads, self.trainable_variables)
        return {"loss": loss}


@on_ranks(2)
def test_norms_of_parts_are_refused(ctx):
    strategy = tfdist.MultiWorkerMirroredStrategy(sharding=tfdist.Sharding(stage=3))
    with strategy.scope():
        model = ClippingItself([layers.Dense(CLASSES)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="its norm would be the part's. Use the optimizer's clip"):
        model.fit(dataset(BATCH, BATCH), verbose=0)


@on_ranks(2, check=identical)
def test_clipnorm_of_variables_of_two_dtypes(ctx):
    def build():
        model = keras.Sequential([layers.Dense(8, dtype="float64"), layers.Dense(CLASSES)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(K.SGD(0.1, clipnorm=0.05), loss)
        return model

    return train(ctx, build).get_weights()
