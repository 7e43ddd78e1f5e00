"""A model whose weights are a ledger: one counter for each record, of how often it was trained."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist


class Counters(keras.layers.Layer):
    """A weight for each record; the output of a record is its weight."""

    def __init__(self, records: int, name: str = "counters") -> None:
        super().__init__(name=name)
        self.records = records

    def build(self, input_shape) -> None:
        self.counters = self.add_weight((self.records,), initializer="zeros", name="counters")

    def call(self, records):
        return keras.ops.matmul(keras.ops.one_hot(records, self.records), self.counters[:, None])


class MinusSum(keras.losses.Loss):
    """Its gradient adds 1 to the counter of each record."""

    def __init__(self) -> None:
        super().__init__(reduction="sum")

    def call(self, _, output):
        return -output[:, 0]


def model(records: int, **compiled: Any) -> keras.Model:
    """Makes the compiled model."""
    made = keras.Sequential([keras.Input((), dtype="int64"), Counters(records)])
    made.compile(keras.optimizers.SGD(1.0), MinusSum(), **compiled)
    return made


def model_with_rows(records: int) -> keras.Model:
    """Makes the model with two counters of each record: in a variable, and in a table's row."""
    record = keras.Input((), dtype="int64")
    rows = tfdist.layers.Embedding(
        output_dim=1, optimizer="sgd", initializer="zeros", learning_rate=1.0, name="rows"
    )
    made = keras.Model(record, Counters(records)(record) + rows(record))
    made.compile(keras.optimizers.SGD(1.0), MinusSum())
    return made


def model_of_two(records: int) -> keras.Model:
    """Makes the model of `model_with_rows` with a variable in place of the table."""
    record = keras.Input((), dtype="int64")
    rows = Counters(records, "rows")
    made = keras.Model(record, Counters(records)(record) + rows(record))
    made.compile(keras.optimizers.SGD(1.0), MinusSum())
    return made


def counts_of_rows(trained: keras.Model) -> list[int]:
    """Returns the counters of `model_with_rows` that are in the table."""
    (counters,) = trained.get_layer("counters").get_weights()
    both = trained.predict_on_batch(np.arange(len(counters)))[:, 0]
    return (both - counters).tolist()


def batches(dataset: tf.data.Dataset, size: int) -> tf.data.Dataset:
    """Makes batches of inputs and targets of a dataset of record numbers."""
    return dataset.batch(size).map(lambda records: (records, records))


def counts(trained: keras.Model, records: int | None = None) -> list[int]:
    """Returns how often each record was trained, of the first `records` if given."""
    (counters,) = trained.get_layer("counters").get_weights()
    found = counters[:records].tolist()
    assert all(count == int(count) for count in found), counters
    return [int(count) for count in found]
