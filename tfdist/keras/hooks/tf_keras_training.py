"""`fit` of tf_keras: order of arrays, weights of rows, own batches, metrics, SIGTERM, saving."""

from __future__ import annotations

import contextlib

import tensorflow as tf
import tf_keras
from tf_keras.src.callbacks import CallbackList
from tf_keras.src.distribute.worker_training_state import WorkerTrainingState
from tf_keras.src.engine.data_adapter import DataHandler, TensorLikeDataAdapter
from tf_keras.src.layers.normalization.batch_normalization import BatchNormalizationBase
from tf_keras.src.saving.legacy import hdf5_format
from tf_keras.src.utils import losses_utils

from tfdist.keras import scalar_losses
from tfdist.keras.hooks import epoch_metrics, preemption, progress, row_weights
from tfdist.keras.hooks.epoch_lengths import lengths_vary
from tfdist.keras.hooks.saving import refuse_tables
from tfdist.keras.hooks.shuffling import common_seed, global_seed
from tfdist.keras.registry import hooks
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
    if has_peers(self.distribute_strategy) and not row_weights.is_weighted(self.train_step):
        # Not by `setattr`, which would track it. The function that Keras makes looks it up here.
        vars(self)["train_step"] = row_weights.weighted(self.train_step)
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
    """A replica without rows updates synchronized statistics, which are those of all rows."""
    is_of_all = self.synchronized and has_peers(tf.distribute.get_strategy())
    return original(self) and not is_of_all


@hooks(hdf5_format, "_legacy_weights")
def refuse_whole_hdf5(original, layer):
    """HDF5 files are refused for models with embedding tables; see `saving`."""
    weights = original(layer)
    refuse_tables(layer, weights)
    return weights


@hooks(DataHandler, "_infer_steps")
def count_own_batches(original, self, steps, dataset):
    """`fit` expects this worker's number of batches where batches are dealt to the workers.

    tf_keras counts a dataset's batches before its strategy deals them out, and would end training
    when this worker's are over.
    """
    batches = original(self, steps, dataset)
    strategy = tf.distribute.get_strategy()
    if steps is not None or batches is None or not trains_on_servers(strategy):
        return batches
    if not strategy.extended.deals_out(dataset):
        return batches
    if self._adapter.should_recreate_iterator():
        return strategy.extended.own_batches(batches)
    # Arrays are repeated before they are dealt out: this worker's share differs by epoch.
    return max(1, batches // strategy.extended.config.workers)


@hooks(DataHandler, "catch_stop_iteration")
@contextlib.contextmanager
def end_with_the_data(original, self):
    """In a job with data workers each epoch lasts until its data ends; see `epoch_lengths`."""
    known = self._inferred_steps
    with original(self):
        yield
    if lengths_vary(tf.distribute.get_strategy()):
        self._inferred_steps = known


@hooks(tf_keras.metrics.Metric, "add_weight")
def keep_metrics_local(original, self, *args, **kwargs):
    """The state of metrics stays with the worker; see `epoch_metrics.keep_local`."""
    return epoch_metrics.keep_local(original, self, *args, **kwargs)


@hooks(tf_keras.Model, "fit")
def fit_together(original, self, *args, **kwargs):
    """The epochs of `fit` end on all workers together; see `epoch_metrics.fit_together`."""
    return epoch_metrics.fit_together(original, self, *args, **kwargs)


@hooks(tf_keras.Model, "evaluate")
def evaluate_in_fit(original, self, *args, **kwargs):
    """`fit` logs the mean of the workers' evaluations; see `epoch_metrics.evaluate_in_fit`."""
    return epoch_metrics.evaluate_in_fit(original, self, *args, **kwargs)


@hooks(tf_keras.Model, "_validate_and_get_metrics_result")
def result_of_all(original, self, logs):
    """`fit` logs the metrics of all workers; see `epoch_metrics.result_of_all`."""
    return epoch_metrics.result_of_all(original, self, logs)


@hooks(tf_keras.Model, "fit")
def stop_at_notice(original, self, *args, **kwargs):
    """SIGTERM ends `fit` after a step; see `preemption.stop_at_notice`."""
    return preemption.fit_until_notice(original, _Fit, self, *args, **kwargs)


@hooks(CallbackList, "on_train_begin")
def note_callbacks(original, self, logs=None):
    """`fit` knows its callbacks, which save after SIGTERM."""
    preemption.note_callbacks_of_fit(self)
    return original(self, logs)


@hooks(CallbackList, "on_epoch_begin")
def note_epoch(original, self, epoch, logs=None):
    """What is saved after SIGTERM has the number of the epoch."""
    preemption.note_epoch_of_fit(self, epoch)
    return original(self, epoch, logs)


@hooks(CallbackList, "on_train_batch_end")
def stop_after_step(original, self, batch, logs=None):
    """After the callbacks of a step `fit` may stop."""
    original(self, batch, logs)
    preemption.stop_after_step_of_fit(self, batch)


@hooks(CallbackList, "on_train_end")
def stop_at_end(original, self, logs=None):
    """Before `fit` ends, all workers may stop; see `preemption.stop_at_end`."""
    preemption.stop_at_end_of_fit(self)
    return original(self, logs)


@hooks(CallbackList, "on_train_batch_end")
def note_loss(original, self, batch, logs=None):
    """The dashboard shows the loss of each step of `fit`."""
    progress.note_loss_of_fit(self, logs)
    return original(self, batch, logs)


@hooks(CallbackList, "on_train_end")
def report_stragglers(original, self, logs=None):
    """At the end of `fit` the log says for whom this worker has waited."""
    progress.report_stragglers_of_fit(self)
    return original(self, logs)


class _Fit(preemption.Fit):
    """One `fit` of tf_keras."""

    backup_type = tf_keras.callbacks.BackupAndRestore

    def _save_with(self, backup, epoch, batch):
        state = getattr(backup, "_training_state", None)
        if state is None:
            state = WorkerTrainingState(self.model, backup.backup_dir, backup.save_freq)
        # It goes on with the batch after the saved one, or only with the epoch after it.
        if backup.save_freq == "epoch":
            epoch, batch = epoch - 1, state.CKPT_SAVED_BATCH_UNUSED_VALUE
        elif batch is None:
            epoch, batch = epoch - 1, self.batch
        state._ckpt_saved_epoch.assign(epoch)
        state._ckpt_saved_batch.assign(batch)
        state.back_up(epoch, batch)
