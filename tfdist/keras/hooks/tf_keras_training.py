"""`fit` of tf_keras: the order of arrays, own batches, metrics of an epoch; and saving."""

from __future__ import annotations

import contextlib

import tensorflow as tf
import tf_keras
from tf_keras.src.engine.data_adapter import DataHandler, TensorLikeDataAdapter
from tf_keras.src.saving.legacy import hdf5_format

from tfdist.keras.hooks import epoch_metrics
from tfdist.keras.hooks.saving import refuse_tables
from tfdist.keras.hooks.shuffling import common_seed, global_seed
from tfdist.keras.registry import hooks
from tfdist.keras.workers import trains_on_servers


@hooks(TensorLikeDataAdapter, "__init__")
def shuffle_alike(original, self, *args, shuffle=False, **kwargs):
    """`fit` shuffles arrays in the same order on all workers; see `shuffling.shuffle_alike`."""
    common = common_seed(tf.distribute.get_strategy()) if shuffle else None
    # All epochs are one dataset there, and its seed gives each another order.
    with contextlib.nullcontext() if common is None else global_seed(common[0]):
        original(self, *args, shuffle=shuffle, **kwargs)


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
