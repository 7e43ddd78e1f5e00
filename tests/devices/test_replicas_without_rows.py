"""A replica without rows computes on a substitute row, which reaches no sum."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from devices.replicas import make_strategy
from support.tiers import LONG, chosen
from support.training import parity_models
from support.training.layer_cases import CASES

# Kernels that fail on empty batches, or give gradients of memory that nothing has written.
FEW = ("DepthwiseConv2D", "SeparableConv1D", "pooled mask", "BatchNormalization")


@pytest.mark.long("*SeparableConv1D", "*DepthwiseConv2D", covered_by="the other cases")
@pytest.mark.parametrize("name", chosen(CASES, *FEW))
@pytest.mark.parametrize("kind", ["mirrored", "central"] if LONG else ["mirrored"])
def test_layer(kind, name):
    found = parity_models.train(CASES[name], make_strategy(kind, 2))
    parity_models.assert_like_alone(kind, name, CASES[name], found)


L = keras.layers
IMAGES = (9, 9, 2)


def _images(rows: int = 49) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(2).normal(size=(rows, *IMAGES)).astype("float32")
    return x, (np.abs(x).sum((1, 2, 3)) * 3).astype("int32") % 3


def _classifier(library, **compiled):
    """Reduced from a tutorial of image classification, with each kind of convolution."""
    layers = library.layers
    model = library.Sequential(
        [
            layers.Input(IMAGES),
            layers.DepthwiseConv2D(3),
            layers.BatchNormalization(synchronized=True, momentum=0.5),
            layers.Conv2D(4, 3, activation="relu"),
            layers.Reshape((-1, 4)),
            layers.SeparableConv1D(4, 3),
            layers.Flatten(),
            layers.Dense(3, activation="softmax"),
        ]
    )
    loss = library.losses.SparseCategoricalCrossentropy()
    model.compile(library.optimizers.SGD(0.1), loss, metrics=["accuracy"], **compiled)
    return model


def _like_one_process(strategy, build, run, tolerance=3e-6):
    """Asserts that `run(model)` returns the same numbers, and leaves the same weights."""
    results = []
    for each in (tf.distribute.get_strategy(), strategy):
        keras.utils.set_random_seed(0)
        with each.scope():
            model = build()
        # tf_keras has generators of its own.
        random = np.random.default_rng(3)
        model.set_weights(
            [
                w + random.normal(scale=0.1, size=w.shape).astype(w.dtype) ** 2
                for w in (np.zeros_like(v) for v in model.get_weights())
            ]
        )
        results.append([*tf.nest.flatten(run(model)), *model.get_weights()])
    for expected, found in zip(*results, strict=True):
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


@pytest.mark.long(
    "mirrored-keras-eager", "mirrored-tf_keras-eager", "central-*", covered_by="the other cases"
)
@pytest.mark.long("central-*-eager", covered_by="the other cases")
@pytest.mark.parametrize("eager", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_fit_evaluate_and_predict(strategy, library, eager):
    """Of 49 rows in batches of 12 the last batch has one row."""
    library = keras if library == "keras" else pytest.importorskip("tf_keras")
    x, y = _images()

    def run(model):
        options = {"batch_size": 12, "verbose": 0}
        logs = model.fit(x, y, epochs=2, shuffle=False, **options).history
        return logs, model.evaluate(x, y, **options), model.predict(x, **options)

    _like_one_process(strategy, lambda: _classifier(library, run_eagerly=eager), run)


class Autoencoder(keras.Model):
    """Has two models, and a `train_step` that calls each; the code's size is a loss."""

    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential(
            [keras.Input(IMAGES), L.SeparableConv2D(4, 3, strides=2, activation="relu")]
        )
        self.decoder = keras.Sequential(
            [keras.Input((4, 4, 4)), L.Conv2DTranspose(2, 3, strides=2)]
        )
        self.built = True

    def call(self, x):
        return self.decoder(self.encoder(x))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            code = self.encoder(data, training=True)
            # A sum over rows, divided by the rows of the whole batch.
            errors = tf.reduce_sum(tf.square(self.decoder(code, training=True) - data), (1, 2, 3))
            sizes = tf.reduce_sum(tf.abs(code), (1, 2, 3))
            loss = tf.reduce_sum(errors + 0.01 * sizes) / 12.0
        weights = self.trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"weights": len(weights)}


def test_an_autoencoder_with_its_own_step(strategy):
    def build():
        model = Autoencoder()
        model.compile(keras.optimizers.SGD(0.01))
        return model

    def run(model):
        model.fit(_images()[0], batch_size=12, shuffle=False, verbose=0)
        return model.predict(_images()[0], batch_size=12, verbose=0)

    _like_one_process(strategy, build, run)


@pytest.mark.long(covered_by="test_layer, devices/test_masks_and_logits.py")
def test_a_text_model_with_masks_and_two_inputs(strategy):
    words = np.random.default_rng(1).integers(1, 9, (49, 6)).astype("int32")
    words[::2, 3:] = 0
    data = {"words": words, "number": words.sum(1, keepdims=True).astype("float32") / 40}

    def build():
        inputs = {"words": keras.Input((6,), dtype="int32", name="words")}
        inputs["number"] = keras.Input((1,), name="number")
        hidden = L.Embedding(9, 4, mask_zero=True)(inputs["words"])
        pooled = L.GlobalAveragePooling1D()(hidden)
        recurrent = L.Bidirectional(L.GRU(3))(hidden)
        tags = L.Dense(9, activation="softmax", name="tags")(hidden)
        score = L.Dense(1)(L.Concatenate()([pooled, recurrent, inputs["number"]]))
        model = keras.Model(inputs, {"tags": tags, "score": score})
        model.compile(
            keras.optimizers.SGD(0.1, clipnorm=0.5),
            {"tags": "sparse_categorical_crossentropy", "score": "mse"},
        )
        return model

    def run(model):
        targets = {"tags": words, "score": data["number"]}
        model.fit(data, targets, batch_size=12, shuffle=False, verbose=0)
        return model.predict(data, batch_size=12, verbose=0)

    _like_one_process(strategy, build, run)


class Counter(L.Layer):
    """Has a metric of its own, and adds a loss."""

    def __init__(self):
        super().__init__()
        self.mean = keras.metrics.Mean(name="mean")

    def call(self, inputs):
        self.mean.update_state(inputs)
        self.add_loss(keras.ops.mean(inputs))
        return inputs


def test_a_loop_of_ones_own(strategy):
    """Losses of layers and metrics in them do not count the substitute row."""
    x = np.arange(25, dtype="float32").reshape(25, 1)

    def build():
        return keras.Sequential([keras.Input((1,)), Counter(), L.Dense(1)])

    def run(model):
        here = tf.distribute.get_strategy()
        here = strategy if model.distribute_strategy is strategy else here
        with here.scope():
            data = here.experimental_distribute_dataset(
                tf.data.Dataset.from_tensor_slices(x).batch(12)
            )
            losses = []

            @tf.function
            def step(batch):
                def of_replica(rows):
                    with tf.GradientTape() as tape:
                        outputs = model(rows)
                        loss = tf.reduce_sum(outputs) / 12
                        added = tf.cast(tf.shape(rows)[0], tf.float32) * tf.add_n(model.losses)
                    gradients = tape.gradient(loss, model.trainable_variables)
                    for variable, gradient in zip(model.trainable_weights, gradients, strict=True):
                        total = tf.distribute.get_replica_context().all_reduce("SUM", gradient)
                        variable.assign_sub(0.001 * total)
                    return loss, added

                return [
                    here.reduce("SUM", each, axis=None) for each in here.run(of_replica, (batch,))
                ]

            for batch in data:
                losses.append([float(each) for each in step(batch)])
        return losses, float(model.layers[0].mean.result())

    _like_one_process(strategy, build, run, 1e-4)


@pytest.mark.parametrize("kind_of_input", ["ragged", "sparse"])
def test_other_tensors(strategy, kind_of_input):
    """They also get a row, and an output of the batch has none."""
    seen = []

    class Sums(L.Layer):
        def __init__(self):
            super().__init__()
            self._convert_input_args = False
            self._allow_non_tensor_positional_args = True

        def call(self, inputs):
            rows = inputs.nrows() if kind_of_input == "ragged" else inputs.dense_shape[0]
            seen.append(int(rows))
            return tf.reduce_sum(inputs, 1) if kind_of_input == "ragged" else inputs

    with strategy.scope():
        layer = Sums()

    def of_replica():
        if kind_of_input == "ragged":
            return layer(tf.RaggedTensor.from_row_splits(tf.zeros([0]), [0]))
        return layer(tf.SparseTensor(tf.zeros([0, 2], tf.int64), tf.zeros([0]), [0, 3]))

    outputs = strategy.experimental_local_results(strategy.run(of_replica))
    assert seen == [1, 1]
    if kind_of_input == "ragged":
        assert [output.shape[0] for output in outputs] == [0, 0]


def test_nothing_is_added_where_batches_have_rows(strategy):
    """The graph of a batch of a known size has no branch."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), L.Dense(2)])
    names = {}
    for rows in (4, None):
        replica = tf.function(
            lambda x: strategy.run(model, (x,)),
            input_signature=[tf.TensorSpec([rows, 3])],
        ).get_concrete_function()
        names[rows] = {operation.type for operation in replica.graph.get_operations()}
    assert not names[4] & {"If", "StatelessIf", "StridedSlice"}
    assert names[None] & {"If", "StatelessIf"}
