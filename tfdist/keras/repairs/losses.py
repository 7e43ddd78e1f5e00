"""Repairs of losses."""

from __future__ import annotations

from keras import ops

from tfdist.internals.keras_3 import loss as losses
from tfdist.keras.registry import repairs


@repairs(losses, "reduce_values")
def reduce_no_rows(original, values, sample_weight=None, reduction="sum_over_batch_size"):
    """With `run_eagerly=True` a replica without rows makes the logged loss NaN.

    Keras does not reduce values of the shape (0,). In a graph, whose shapes are not known, their
    mean is zero.
    """
    reduced = original(values, sample_weight, reduction)
    is_reduction = reduction not in (None, "none")
    return ops.sum(reduced) if is_reduction and tuple(reduced.shape) == (0,) else reduced
