"""Repair of variables that each replica writes."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tfdist.internals.keras_3 import Variable
from tfdist.keras.registry import repairs
from tfdist.keras.workers import is_ours


@repairs(Variable, "_initialize", issue="keras-team/keras#19891", until="3.9")
def tell_how_replicas_agree(original, self, value):
    """Metrics count what they knew before once per replica.

    Their variables are sums over the replicas, but Keras adds the replicas' values at every write.
    Here each replica keeps its own value, and a read adds them.
    """
    with tf.variable_creator_scope(_creator(_options(self))):
        original(self, value)


def _creator(options: dict[str, object]) -> Callable[..., tf.Variable]:
    return lambda next_creator, **kwargs: next_creator(**{**kwargs, **options})


def _options(variable: Variable) -> dict[str, object]:
    if not is_ours(tf.distribute.get_strategy()):
        return {}
    # Of BatchNormalization's statistics: see layers.average_moving_statistics.
    on_read = getattr(variable, "_synchronization", None) == "on_read"
    if not on_read and variable.aggregation != "sum":
        return {}
    return {"synchronization": tf.VariableSynchronization.ON_READ}
