"""Training of tf_keras: order of arrays, weights of rows, statistics, metrics, saving."""

from __future__ import annotations

import contextlib

import tensorflow as tf
import tf_keras

from tfdist.internals.tf_keras import (
    BatchNormalizationBase,
    TensorLikeDataAdapter,
    hdf5_format,
    losses_utils,
)
from tfdist.keras import scalar_losses
from tfdist.keras.hooks import row_weights, tf_keras_scopes, variable_roles
from tfdist.keras.hooks.saving import refuse_tables
from tfdist.keras.hooks.shuffling import common_seed, global_seed
from tfdist.keras.registry import hooks
from tfdist.keras.shown_metrics import noting
from tfdist.keras.variables_of_others import refuse_variables_of_others
from tfdist.keras.workers import has_peers, replica_with_peers, trains_on_servers


@hooks(TensorLikeDataAdapter, "__init__")
def shuffle_alike(original, self, *args, shuffle=False, **kwargs):
    """`fit` shuffles arrays in the same order on all workers; see `shuffling.shuffle_alike`."""
    common = common_seed(tf.distribute.get_strategy()) if shuffle else None
    # All epochs are one dataset there, and its seed gives each another order.
    with contextlib.nullcontext() if common is None else global_seed(common.value):
        original(self, *args, shuffle=shuffle, **kwargs)


@hooks(tf_keras.Model, "make_train_function")
def weigh_training_steps(original, self, force=False):
    """In `fit` a replica's loss weighs by its rows of the global batch; see `row_weights`.

    All layers are of the model's scope.
    """
    if self.built:
        refuse_variables_of_others(self)
    if trains_on_servers(self.distribute_strategy):
        tf_keras_scopes.share_step_counts(self)
    if has_peers(self.distribute_strategy) and not row_weights.is_weighted(self.train_step):
        # Not by `setattr`, which would track it. The function that Keras makes looks it up here.
        vars(self)["train_step"] = row_weights.weighted(noting(self, "train", self.train_step))
    return original(self, force)


@hooks(tf_keras.Model, "make_test_function")
def note_shown_metrics(original, self, force=False):
    """An evaluation of the user's own `test_step` logs metrics of all rows under their names."""
    if has_peers(self.distribute_strategy) and "test_step" not in vars(self):
        noted = noting(self, "test", self.test_step)
        if noted != self.test_step:
            vars(self)["test_step"] = noted
    return original(self, force)


@hooks(losses_utils, "scale_loss_for_distribution")
def scale_by_rows(original, loss_value):
    """A training step multiplies a replica's loss by the replica's fraction of the rows."""
    return row_weights.scaled(original, loss_value)


@hooks(tf_keras.losses.Loss, "__call__")
def note_call(original, self, y_true, y_pred, sample_weight=None):
    """A call of a loss knows whether the loss divides by the number of replicas itself."""
    if replica_with_peers() is None:
        return original(self, y_true, y_pred, sample_weight)
    with scalar_losses.called(self, y_true, y_pred):
        return original(self, y_true, y_pred, sample_weight)


@hooks(losses_utils, "compute_weighted_loss")
def add_sums(original, losses, sample_weight=None, reduction="sum_over_batch_size", name=None):
    """A loss that returns a sum, or has divided by all replicas, is not divided by them again."""
    is_scalar = getattr(losses.shape, "rank", None) == 0 and replica_with_peers() is not None
    loss = scalar_losses.of_sums() if is_scalar else None
    if loss is not None:
        # Keras asks it again after the call, to divide.
        loss.reduction = reduction = losses_utils.ReductionV2.SUM
    return original(losses, sample_weight, reduction, name)


@hooks(losses_utils, "apply_valid_mask")
def weigh_by_mask(original, losses, sw, mask, reduction):
    """A loss with a mask weighs by the values that the mask leaves, which divide it."""
    weights = original(losses, sw, mask, reduction)
    is_mean = reduction in (
        losses_utils.ReductionV2.AUTO,
        losses_utils.ReductionV2.SUM_OVER_BATCH_SIZE,
    )
    if mask is None or not is_mean:
        return weights
    factor = row_weights.relative_weight(lambda: tf.reduce_sum(tf.cast(mask, tf.float64)))
    # Where the mask leaves nothing the weights are NaN.
    return (
        weights
        if factor is None
        else tf.math.multiply_no_nan(weights, tf.cast(factor, weights.dtype))
    )


@hooks(BatchNormalizationBase, "_support_zero_size_input")
def update_synchronized_statistics(original, self):
    """A replica without rows updates synchronized statistics, which cover all rows."""
    is_of_all = self.synchronized and has_peers(tf.distribute.get_strategy())
    return original(self) and not is_of_all


@hooks(hdf5_format, "_legacy_weights")
def refuse_whole_hdf5(original, layer):
    """HDF5 files are refused for models with embedding tables; see `saving`."""
    weights = original(layer)
    refuse_tables(layer, weights)
    return weights


@hooks(tf_keras.metrics.Metric, "add_weight")
def keep_metrics_local(original, self, *args, **kwargs):
    """The state of metrics stays with the worker; see `variable_roles.keep_local`."""
    return variable_roles.keep_local(original, self, *args, **kwargs)
