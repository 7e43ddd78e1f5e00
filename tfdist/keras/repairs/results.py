"""Repairs of the results of the replicas' steps, as logs and predictions."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator

import tensorflow as tf
from keras import tree

from tfdist.data.strategies import workers_of
from tfdist.internals.keras_3 import trainer
from tfdist.internals.keras_3_trainer import TensorFlowTrainer
from tfdist.internals.tensorflow import regroup
from tfdist.keras.models import is_variable, tf_variable
from tfdist.keras.registry import repairs
from tfdist.keras.workers import has_copies, is_ours
from tfdist.ops.collectives.naming import named

_thread = threading.local()
# By model: its way of making functions, and the function that `predict_on_batch` calls.
_of_batches: weakref.WeakKeyDictionary[TensorFlowTrainer, tuple[tuple, Callable]] = (
    weakref.WeakKeyDictionary()
)


@repairs(trainer, "reduce_per_replica")
def reduce_as_in_one_process(original, values, strategy, reduction):
    """Vectors in the logs of a batch become their mean on several workers.

    Keras asks for the mean along the vector, and not only over the replicas. `F1Score` without an
    average is such a vector. `fit` also fails with a metric whose `result` is its variable, as in
    the example of `keras.metrics.Metric`.
    """
    if reduction == "concat" and getattr(_thread, "takes_first", False):
        return tree.map_structure(
            lambda value: strategy.experimental_local_results(value)[0], values
        )
    if not is_ours(strategy) or workers_of(strategy) is None:
        return original(values, strategy, reduction)
    values = tree.map_structure(lambda value: _in_replicas(value, strategy), values)
    if reduction in ("auto", "mean"):
        with named("the metrics of the step"):
            return tree.map_structure(
                lambda value: strategy.reduce("MEAN", value, axis=None), values
            )
    with named("the results of predict"):
        return original(values, strategy, reduction)


def _in_replicas(value, strategy):
    if not is_variable(value):
        return value
    parts = strategy.experimental_local_results(tf_variable(value))
    return regroup(tuple(tf.convert_to_tensor(part) for part in parts))


@repairs(TensorFlowTrainer, "predict_on_batch")
def predict_on_batch_once(original, self, x):
    """`predict_on_batch` returns every row once per replica, since each predicts the whole batch.

    Here the first replica of this worker returns its rows. No other worker needs to make the call.
    """
    if not has_copies(self.distribute_strategy):
        return original(self, x)
    way = self.run_eagerly, self.jit_compile, self.steps_per_execution
    made_for, function = _of_batches.get(self, (None, None))
    of_predict = self.predict_function
    self.predict_function = function if made_for == way else None
    try:
        with _taking_first():
            predicted = original(self, x)
        _of_batches[self] = way, self.predict_function
    finally:
        self.predict_function = of_predict
    return predicted


@contextlib.contextmanager
def _taking_first() -> Iterator[None]:
    _thread.takes_first = True
    try:
        yield
    finally:
        _thread.takes_first = False
