"""Repairs of layers: `BatchNormalization`."""

from __future__ import annotations

import tensorflow as tf
from keras.layers import BatchNormalization

from tfdist.keras.registry import repairs
from tfdist.keras.workers import has_copies


def _averaged_on_read(next_creator, **kwargs):
    kwargs["synchronization"] = tf.VariableSynchronization.ON_READ
    kwargs["aggregation"] = tf.VariableAggregation.MEAN
    return next_creator(**kwargs)


@repairs(BatchNormalization, "add_weight", since="3.8")
def average_moving_statistics(original, self, *args, **kwargs):
    """Every worker keeps `BatchNormalization` statistics of its own, which differ when saved.

    Keras 3.8 changed the default aggregation of variables from "mean" to "none". As in Keras 2,
    each worker updates its own statistics while it trains, which costs no communication, and a read
    outside a step gives the mean over the workers. That read is a collective: all workers must
    save, not the chief alone.
    """
    strategy = tf.distribute.get_strategy()
    if kwargs.get("trainable", True) or not has_copies(strategy):
        return original(self, *args, **kwargs)
    with tf.variable_creator_scope(_averaged_on_read):
        variable = original(self, *args, **kwargs)
    # While a model is built symbolically, Keras creates the tf.Variable later, from these.
    variable._synchronization, variable._aggregation = "on_read", "mean"
    return variable
