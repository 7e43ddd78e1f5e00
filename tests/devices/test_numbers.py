"""Python gets the number of a scalar variable, as without a strategy."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from support.training import models
from support.training.models import built_classifier

# A callback's use of `x`; each has the result that it has without a strategy.
READS = {
    "float": float,
    "int": int,
    "complex": complex,
    "%f": lambda x: "%.2f" % x,  # noqa: UP031
    "%d": lambda x: "%d" % x,  # noqa: UP031
    "f-string": lambda x: f"{x:.2f}",
    "log": math.log,
    "floor": math.floor,
    "isnan": math.isnan,
    "round": lambda x: float(round(x, 1)),
    "asarray": lambda x: np.asarray(x).tolist(),
    "asarray of a dtype": lambda x: np.asarray(x, "float64").dtype.name,
    "array of a list": lambda x: np.array([x], "float64").tolist(),
    "isfinite": lambda x: bool(np.isfinite(x)),
    "less": lambda x: bool(x < 2),
    "sum": lambda x: float(sum([x, 1])),
    "index": lambda x: list(range(9))[x],
    "constant": lambda x: float(tf.constant(x)),
}
MAKERS = {
    "float": lambda: tf.Variable(1.5),
    "zero": lambda: tf.Variable(0.0),
    "int64": lambda: tf.Variable(3, dtype=tf.int64),
    "bool": lambda: tf.Variable(False),
    "vector": lambda: tf.Variable([1.5, 0.0]),
    "mean": lambda: tf.Variable(1.5, trainable=False, aggregation=tf.VariableAggregation.MEAN),
    "on read": lambda: tf.Variable(
        1.5,
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.MEAN,
    ),
    "of Keras": lambda: keras.Variable(1.5),
    "of Keras, int": lambda: keras.Variable(3, dtype="int64", trainable=False),
}


def result_of(read, variable):
    try:
        return read(variable)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("make", MAKERS)
def test_as_without_a_strategy(strategy, make, read):
    expected = result_of(READS[read], MAKERS[make]())
    with strategy.scope():
        variable = MAKERS[make]()
        inside = result_of(READS[read], variable)
    assert inside == result_of(READS[read], variable) == expected


class Reader(keras.callbacks.Callback):
    """Reads numbers of a model as callbacks on the web do."""

    def on_train_batch_end(self, batch, logs=None):
        optimizer = self.model.optimizer
        assert "%.2f" % optimizer.learning_rate == "0.25"  # noqa: UP031
        assert math.log(optimizer.learning_rate) == math.log(0.25)
        assert int(optimizer.iterations) == batch + 1

    def on_epoch_end(self, epoch, logs=None):
        metric = self.model.metrics[0]
        assert float(metric.total) / float(metric.count) == pytest.approx(logs["loss"])


def test_callbacks_read_numbers(strategy):
    with strategy.scope():
        model = built_classifier(keras.optimizers.SGD(0.25))
    model.fit(models.dataset(64, 32), epochs=1, verbose=0, callbacks=[Reader()])


def test_a_sum_over_replicas(strategy):
    with strategy.scope():
        mean = keras.metrics.Mean()
    strategy.run(lambda: mean.update_state([1.0, 3.0]))
    assert (float(mean.total), int(mean.count)) == (8.0, 4)


@pytest.mark.parametrize("kind", ["mirrored"], indirect=True)
def test_a_graph_has_no_numbers(strategy):
    with strategy.scope():
        variable = tf.Variable(1.5)

    @tf.function(autograph=False)
    def read():
        return float(variable)

    with pytest.raises(NotImplementedError, match="eager"):
        read()
