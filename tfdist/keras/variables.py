"""Repairs of variables: what replicas do with those that each of them writes."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import tensorflow as tf
from keras.src.backend import Variable

from tfdist.keras.workers import is_ours


def tell_how_replicas_agree() -> None:
    """keras-team/keras#19891: until Keras 3.9 metrics count what they knew before once per replica.

    Their variables are to be sums over the replicas, but Keras adds the replicas' at every write.
    Here each replica keeps its own, and they are added when they are read.
    """
    if "synchronization" in inspect.signature(Variable.__init__).parameters:
        return
    original = Variable._initialize

    @functools.wraps(original)
    def _initialize(self, value):
        with tf.variable_creator_scope(_creator(_options(self))):
            original(self, value)

    Variable._initialize = _initialize


def _creator(options: dict[str, Any]):
    return lambda next_creator, **kwargs: next_creator(**{**kwargs, **options})


def _options(variable: Variable) -> dict[str, Any]:
    if not is_ours(tf.distribute.get_strategy()):
        return {}
    # Of BatchNormalization's statistics: see layers.average_moving_statistics.
    on_read = getattr(variable, "_synchronization", None) == "on_read"
    if not on_read and variable.aggregation != "sum":
        return {}
    return {"synchronization": tf.VariableSynchronization.ON_READ}
