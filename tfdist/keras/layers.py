"""Repairs of layers: `BatchNormalization`."""

from __future__ import annotations

import functools
import inspect

import tensorflow as tf
from keras.layers import BatchNormalization, Layer

from tfdist.keras.workers import has_copies, has_peers


def average_moving_statistics() -> None:
    """Since Keras 3.8 every worker keeps `BatchNormalization` statistics of its own.

    Keras 3.8 changed the default aggregation of variables from "mean" to "none". As in Keras 2,
    each worker updates its own statistics while it trains, which costs no communication, and
    whoever reads them outside a step gets the mean over the workers. That read is a collective: all
    workers must save, not the chief alone.
    """
    default = inspect.signature(Layer.add_weight).parameters.get("aggregation")
    if default is not None and default.default == "mean":
        return
    original = BatchNormalization.add_weight

    def averaged_on_read(next_creator, **kwargs):
        kwargs["synchronization"] = tf.VariableSynchronization.ON_READ
        kwargs["aggregation"] = tf.VariableAggregation.MEAN
        return next_creator(**kwargs)

    @functools.wraps(original)
    def add_weight(self, *args, **kwargs):
        strategy = tf.distribute.get_strategy()
        if kwargs.get("trainable", True) or not has_copies(strategy):
            return original(self, *args, **kwargs)
        with tf.variable_creator_scope(averaged_on_read):
            variable = original(self, *args, **kwargs)
        # While a model is built symbolically, Keras creates the tf.Variable later, from these.
        variable._synchronization, variable._aggregation = "on_read", "mean"
        return variable

    BatchNormalization.add_weight = add_weight


def keep_statistics_of_no_rows() -> None:
    """tensorflow/tensorflow#24320: `BatchNormalization` takes the mean of no rows, which is NaN.

    A worker's share of the last batch can be empty. Keras 2 left the moving statistics as they
    were; so do we.
    """
    original = BatchNormalization._moments

    @functools.wraps(original)
    def _moments(self, inputs, mask):
        mean, variance = original(self, inputs, mask)
        # Synchronized statistics are those of all workers' rows, of which there are some.
        if self.synchronized or not has_peers(tf.distribute.get_strategy()):
            return mean, variance
        empty = tf.equal(tf.size(inputs), 0)
        return (
            tf.where(empty, tf.cast(self.moving_mean, mean.dtype), mean),
            tf.where(empty, tf.cast(self.moving_variance, variance.dtype), variance),
        )

    BatchNormalization._moments = _moments
