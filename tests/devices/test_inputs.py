"""All kinds of inputs of `fit` and `predict`, and options of both, on two devices."""

from __future__ import annotations

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from devices.replicas import make_strategy
from support.training import models
from support.training.models import EXACT, classifier, difference, examples, train_like_no_strategy
from support.training.more_models import LOSS, nested_dataset, nested_model, reader_of_words, words

# Both strategies read with the same code.
pytestmark = pytest.mark.long("central*", covered_by="the other cases")


def _fit(data, **options):
    return lambda model: model.fit(data, verbose=0, **options)


def test_nested_inputs_and_outputs(strategy):
    model = train_like_no_strategy(strategy, nested_model, _fit(nested_dataset(), epochs=2))
    predicted = model.predict(nested_dataset(), verbose=0)
    assert predicted["label"].shape == (320, models.CLASSES)
    assert predicted["sum"].shape == (320, 1)


def test_strings(strategy):
    train_like_no_strategy(strategy, reader_of_words, _fit(words(320).batch(64), epochs=2))


def _sentences(kind_of_batch):
    """Rows of 3 to 9 numbers; no batch has the length of the one before it."""
    random = np.random.default_rng(11)
    rows = [random.normal(size=(3 + i // 16 % 7)).astype("float32") for i in range(16 * 14)]
    labels = np.array([int(row.sum() > 0) for row in rows], "int32")
    data = tf.data.Dataset.from_tensor_slices((tf.ragged.constant(rows), labels))
    data = data.map(lambda row, label: (row[:, tf.newaxis], label))
    if kind_of_batch == "padded":
        return data.padded_batch(16, padded_shapes=((None, 1), ()))
    return data.ragged_batch(16)


# Keras takes ragged tensors from 3.9 on.
TAKES_RAGGED = "ragged" in inspect.signature(keras.Input).parameters


@pytest.mark.parametrize("kind_of_batch", ["padded", "ragged"] if TAKES_RAGGED else ["padded"])
def test_dimensions_that_change_from_batch_to_batch(strategy, kind_of_batch):
    """keras-team/keras#21069."""

    def build():
        options = {"ragged": True} if kind_of_batch == "ragged" else {}
        rows = keras.Input((None, 1), **options)
        means = keras.layers.Lambda(lambda rows: tf.reduce_mean(rows, axis=1))(rows)
        hidden = keras.layers.Dense(8, activation="tanh")(means)
        model = keras.Model(rows, keras.layers.Dense(2)(hidden))
        model.compile(keras.optimizers.SGD(0.1), LOSS, metrics=["accuracy"])
        return model

    train_like_no_strategy(strategy, build, _fit(_sentences(kind_of_batch), epochs=2))


def test_first_dimensions_that_change_from_batch_to_batch(strategy):
    """keras-team/keras#21069: no two batches have the same number of rows."""
    features, labels = models.examples(2 + 4 + 6 + 8 + 10)
    ends = np.cumsum([2, 4, 6, 8, 10])

    def batches():
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            yield features[start:end], labels[start:end]

    signature = (
        tf.TensorSpec((None, models.COLUMNS), tf.float32),
        tf.TensorSpec((None,), tf.int32),
    )
    data = tf.data.Dataset.from_generator(batches, output_signature=signature)
    data = data.apply(tf.data.experimental.assert_cardinality(len(ends)))
    train_like_no_strategy(
        strategy, lambda: classifier(keras.optimizers.SGD(0.1)), _fit(data, epochs=3)
    )


def test_predict_returns_all_rows_in_order(kind):
    with make_strategy(kind, 3).scope():
        rows = keras.Input((1,))
        doubled, above = keras.layers.Rescaling(2.0), keras.layers.Rescaling(1.0, 5.0)
        model = keras.Model(rows, {"doubled": doubled(rows), "above": above(rows)})
    for count in (101, 33, 1):
        numbers = np.arange(count, dtype="float32")[:, np.newaxis]
        predicted = model.predict(tf.data.Dataset.from_tensor_slices(numbers).batch(16), verbose=0)
        np.testing.assert_array_equal(predicted["doubled"], numbers * 2)
        np.testing.assert_array_equal(predicted["above"], numbers + 5)


@pytest.mark.parametrize(
    "options",
    [{"steps_per_execution": 4}, {"run_eagerly": True}],
    ids=["steps_per_execution", "run_eagerly"],
)
def test_compile_options(strategy, options):
    data, validation = models.dataset(64 * 10, 64), models.dataset(100, 50)
    model = train_like_no_strategy(
        strategy,
        lambda: classifier(keras.optimizers.Adam(), **options),
        _fit(data, validation_data=validation),
        tolerance=models.ADAPTIVE,
    )
    assert model.optimizer.iterations.numpy() == 10  # not a multiple of steps_per_execution


def test_infinite_datasets(strategy):
    data = models.dataset(64 * 3, 64).repeat()
    model = train_like_no_strategy(
        strategy,
        lambda: classifier(keras.optimizers.SGD(0.1)),
        _fit(data, epochs=2, steps_per_epoch=7, validation_data=data, validation_steps=2),
    )
    assert model.optimizer.iterations.numpy() == 14


def _yield_batches(count):
    yield from models.batches(*models.examples(16 * count), 16)


class _Batches(keras.utils.PyDataset):
    def __len__(self):
        return 6

    def __getitem__(self, i):
        return models.batches(*models.examples(16 * 6), 16)[i]


PYTHON = {
    "generator": lambda model: model.fit(
        _yield_batches(9), steps_per_epoch=3, epochs=3, verbose=0, shuffle=False
    ),
    "threads": lambda model: model.fit(_Batches(workers=2), epochs=2, verbose=0, shuffle=False),
}


@pytest.mark.parametrize("source", PYTHON)
@pytest.mark.parametrize("kind", ["mirrored", "central", "one"])
def test_batches_that_python_yields_come_once_and_in_order(kind, source):
    strategy = tfdist.OneDeviceStrategy("CPU:0") if kind == "one" else make_strategy(kind, 2)
    model = train_like_no_strategy(
        strategy, lambda: classifier(keras.optimizers.SGD(0.1)), PYTHON[source]
    )
    evaluated = model.evaluate(_yield_batches(4), steps=4, verbose=0)
    expected = model.evaluate(*models.examples(16 * 4), verbose=0)
    assert difference(evaluated, expected) <= 1e-6


def test_sample_weights(strategy):
    features, labels = models.examples(320)
    train_like_no_strategy(
        strategy,
        lambda: classifier(keras.optimizers.SGD(0.1), weighted_metrics=["accuracy"]),
        lambda model: model.fit(
            features,
            labels,
            sample_weight=np.linspace(0.0, 2.0, 320, dtype="float32"),
            batch_size=64,
            shuffle=False,
            verbose=0,
        ),
    )


METRICS = [
    lambda: keras.metrics.SparseTopKCategoricalAccuracy(k=2, name="top"),
    lambda: _Precision(name="precision"),
]


class _Precision(keras.metrics.Precision):
    """Precision of class 1: a quotient of sums, which no mean over replicas equals."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(
            tf.equal(tf.reshape(y_true, [-1]), 1), tf.nn.softmax(y_pred)[:, 1], sample_weight
        )


def test_metrics_after_each_batch(strategy):
    """keras-team/keras#19891: logs after a batch include every replica's rows."""
    rows = 64 * 4 + 37

    def fit(model):
        seen = []
        record = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: seen.append(
                [logs[name] for name in sorted(logs)]
            )
        )
        history = model.fit(models.dataset(rows, 64), verbose=0, callbacks=[record])
        history.history = {"seen": seen, "last": seen[-1]}
        return history

    def build():
        # A learning rate of zero: TensorFlow weights the rows of a partial batch differently.
        metrics = [make() for make in METRICS]
        return classifier(keras.optimizers.SGD(0.0), metrics=metrics)

    model = train_like_no_strategy(strategy, build, fit)
    last = model.history.history["last"]  # before evaluate makes a history of its own
    evaluated = model.evaluate(models.dataset(rows, 64), verbose=0, return_dict=True)
    assert difference([evaluated[name] for name in sorted(evaluated)], last) <= EXACT


def test_one_order(strategy):
    """Each epoch has the same batches as without a strategy."""

    def fit(model):
        shuffled = tf.data.Dataset.from_tensor_slices(examples(320)).shuffle(320, seed=3)
        return model.fit(shuffled.batch(64), epochs=3, verbose=0)

    train_like_no_strategy(strategy, lambda: classifier(keras.optimizers.SGD(0.1)), fit)
