"""tf_keras: calls of layers, losses in them, `BatchNormalization`."""

from __future__ import annotations

import tensorflow as tf
from tf_keras.layers import Layer

from tfdist.internals.tf_keras import BatchNormalizationBase
from tfdist.keras.registry import hooks
from tfdist.keras.substitute_rows import calls


@hooks(Layer, "__call__")
def substitute_a_row(original, self, *args, **kwargs):
    """A replica without rows computes on a substitute row; see `substitute_rows`."""
    return calls.substituted(lambda *a, **k: original(self, *a, **k), args, kwargs)


@hooks(Layer, "add_loss")
def discount_losses(original, self, losses, **kwargs):
    """The loss that a layer adds is 0 for a substitute row."""
    if calls.substitution() is not None:
        losses = tf.nest.map_structure(
            lambda loss: calls.no_value(loss) if isinstance(loss, tf.Tensor) else loss, losses
        )
    return original(self, losses, **kwargs)


@hooks(BatchNormalizationBase, "_assign_moving_average")
def keep_moving_averages(original, self, variable, value, momentum, inputs_size):
    """A substitute row leaves the statistics of `BatchNormalization` as they are."""
    current = calls.substitution()
    if current is not None and inputs_size is not None and not self.synchronized:
        inputs_size = tf.where(current.is_empty, 0, inputs_size)
    return original(self, variable, value, momentum, inputs_size)


@hooks(BatchNormalizationBase, "_assign_new_value")
def keep_values(original, self, variable, value):
    """A substitute row leaves statistics that are computed in one operation as they are."""
    if not self.synchronized:
        value = calls.unchanged(variable, value)
    return original(self, variable, value)


@hooks(BatchNormalizationBase, "_calculate_mean_and_var")
def leave_out_substitutes(original, self, inputs, reduction_axes, keep_dims, mask=None):
    """Synchronized `BatchNormalization` has the statistics of all replicas' own rows."""
    if self.synchronized:
        inputs, mask = calls.own_rows(inputs), calls.own_rows(mask)
    return original(self, inputs, reduction_axes, keep_dims, mask=mask)
