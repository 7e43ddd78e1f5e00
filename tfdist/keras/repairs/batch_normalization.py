"""Repairs of layers: `BatchNormalization`."""

from __future__ import annotations

import tensorflow as tf
from keras.layers import BatchNormalization

from tfdist.keras.registry import repairs
from tfdist.keras.substitute_rows.calls import substitution
from tfdist.keras.workers import has_copies, has_peers
from tfdist.ops.collectives.naming import named


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


@repairs(BatchNormalization, "_moments", issue="tensorflow/tensorflow#24320")
def keep_statistics_of_no_rows(original, self, inputs, mask):
    """`BatchNormalization` takes the mean of no rows, which is NaN, or of a substitute row.

    A worker's share of the last batch can be empty, or a substitute row. Keras 2 left the moving
    statistics as they were; so does this.
    """
    with named(f"the statistics of {self.name}"):
        mean, variance = original(self, inputs, mask)
    # Synchronized statistics cover all workers' rows, at least one.
    if self.synchronized or not has_peers(tf.distribute.get_strategy()):
        return mean, variance
    current = substitution()
    empty = tf.equal(tf.size(inputs), 0) if current is None else current.is_empty
    return (
        tf.where(empty, tf.cast(self.moving_mean, mean.dtype), mean),
        tf.where(empty, tf.cast(self.moving_variance, variance.dtype), variance),
    )
