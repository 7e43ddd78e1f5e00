"""A loss of `compile` that returns one number for a batch weighs by the replica's rows, too."""

from __future__ import annotations

import tensorflow as tf

from tfdist.internals.keras_3 import loss as losses
from tfdist.keras import scalar_losses
from tfdist.keras.registry import hooks
from tfdist.keras.workers import replica_with_peers


@hooks(losses.Loss, "__call__")
def note_call(original, self, y_true, y_pred, sample_weight=None):
    """A call of a loss knows whether the loss divides by the number of replicas itself."""
    if replica_with_peers() is None:
        return original(self, y_true, y_pred, sample_weight)
    with scalar_losses.called(self, y_true, y_pred):
        return original(self, y_true, y_pred, sample_weight)


@hooks(losses, "reduce_values")
def weigh_means(original, values, sample_weight=None, reduction="sum_over_batch_size"):
    """A loss that returns a mean trains with the mean over the global batch, not with a sum."""
    value = original(values, sample_weight, reduction)
    if values.shape.rank == 0 and replica_with_peers() is not None and scalar_losses.is_mean():
        return losses.scale_loss_for_distribution(value)
    return value


@hooks(losses, "scale_loss_for_distribution")
def note_scaling(original, value):
    """A loss that calls losses of Keras is not weighed again."""
    scalar_losses.note_division()
    return original(value)


@hooks(tf.nn, "compute_average_loss")
def note_average(original, *args, **kwargs):
    """A loss that divides by the global batch is not weighed again."""
    scalar_losses.note_division()
    return original(*args, **kwargs)
