"""The base class of all strategies."""

from __future__ import annotations

import numbers
from typing import Any

import tensorflow as tf


class StrategyBase(tf.distribute.Strategy):
    """Marks a strategy as one of tfdist's, and reduces nested values.

    Comes before TensorFlow's class among a strategy's bases.
    """

    # For tfdist.keras, which cannot import this class.
    is_of_tfdist = True

    def reduce(self, reduce_op: Any, value: Any, axis: int | None) -> Any:
        """Reduces `value`, which may be nested, as `tf.distribute.Strategy.reduce` does.

        Args:
          reduce_op: "SUM", "MEAN" or a `tf.distribute.ReduceOp`.
          value: a tensor or `tf.distribute.DistributedValues` of any shape, or nested lists, tuples
            and dicts of them.
          axis: also reduce each replica's value along this dimension. Scalars are reduced over the
            replicas only.

        Returns:
          A tensor, or the same structure of tensors.
        """
        # Keras 3 passes whole batches, and scalars with axis=0 (keras-team/keras#20585).
        leaves = tf.nest.flatten(value)
        if tf.nest.is_nested(value) and any(map(_is_tensor, leaves)):
            return tf.nest.map_structure(lambda v: self.reduce(reduce_op, v, axis), value)
        if axis is not None and all(_is_scalar(v) for v in self.experimental_local_results(value)):
            axis = None
        return super().reduce(reduce_op, value, axis)


def _is_tensor(value: Any) -> bool:
    """Whether `value` is a tensor, on one replica or on each."""
    return tf.is_tensor(value) or isinstance(value, tf.distribute.DistributedValues)


def _is_scalar(value: Any) -> bool:
    # Older releases of Keras reduce Python numbers with run_eagerly=True.
    return isinstance(value, numbers.Number) or (_is_tensor(value) and value.shape.rank == 0)
