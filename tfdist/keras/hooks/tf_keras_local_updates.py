"""`LocalUpdateStrategy` with tf_keras; see `local_updates`."""

from __future__ import annotations

import logging

import tensorflow as tf
import tf_keras
from tf_keras.callbacks import BackupAndRestore
from tf_keras.src.engine import training
from tf_keras.src.optimizers.optimizer import Optimizer

from tfdist.keras.hooks import local_updates as of_keras_3
from tfdist.keras.registry import hooks
from tfdist.keras.workers import local_updates, local_updates_of, rank_of

_log = logging.getLogger("tfdist")


@hooks(Optimizer, "apply_gradients")
def train_alone(original, self, grads_and_vars, *args, **kwargs):
    """With `LocalUpdateStrategy` a step trains the worker's own variables."""
    local = local_updates()
    pairs = list(grads_and_vars)
    trained = [variable for gradient, variable in pairs if gradient is not None]
    if local is None or not trained:
        return original(self, pairs, *args, **kwargs)
    with tf.init_scope():
        self.build([variable for _, variable in pairs])
    local.apply(self, trained, lambda: original(self, pairs, *args, **kwargs))
    return self.iterations


@hooks(Optimizer, "aggregate_gradients")
def keep_own_gradients(original, self, grads_and_vars):
    """Workers of `LocalUpdateStrategy` do not exchange gradients."""
    local = local_updates()
    if local is None:
        return original(self, grads_and_vars)
    return local.own_gradients([pair for pair in grads_and_vars if pair[0] is not None])


@hooks(training, "reduce_per_replica")
def log_own_steps(original, values, strategy, reduction):
    """After a batch `fit` with `LocalUpdateStrategy` logs the worker's own metrics."""
    return of_keras_3.log_own_steps(original, values, strategy, reduction)


@hooks(tf_keras.Model, "evaluate")
def note_evaluation(original, self, *args, **kwargs):
    """An evaluation within an epoch is that of the workers' own variables."""
    return of_keras_3.note_evaluation(original, self, *args, **kwargs)


@hooks(tf_keras.Model, "_validate_and_get_metrics_result")
def synchronize_epoch(original, self, logs):
    """An epoch of `fit` with `LocalUpdateStrategy` ends with a synchronization."""
    return of_keras_3.synchronize_epoch(original, self, logs)


@hooks(BackupAndRestore, "_backup")
def warn_within_round(original, self, epoch, batch=0):
    """A backup within a round of `LocalUpdateStrategy` says that going on from it is not exact."""
    local = local_updates_of(self.model.distribute_strategy)
    is_told = getattr(self, "_tfdist_is_told", False)
    if local is not None and not is_told and rank_of(self.model) == 0 and local.is_within_round:
        self._tfdist_is_told = True
        _log.warning(
            "BackupAndRestore of tf_keras: expected a backup between two rounds of "
            "LocalUpdateStrategy, received one within a round, at batch %d of epoch %d. It holds "
            "nothing of the other workers and of the round: a fit that goes on from it ends with "
            "other values. Use Keras 3, whose backups hold both",
            *(batch + 1, epoch + 1),
        )
    original(self, epoch, batch)
