"""`fit` with parameter servers: which data is shared, and when it ends."""

from __future__ import annotations

import logging
from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer, TFEpochIterator
from keras.src.optimizers.base_optimizer import BaseOptimizer

from tfdist.job import process
from tfdist.keras.hooks.prefetching import with_prefetch
from tfdist.keras.registry import hooks
from tfdist.keras.workers import trains_on_servers

_log = logging.getLogger("tfdist")


@hooks(BaseOptimizer, "finalize_variable_values")
def wait_for_final_averages(original, self, var_list):
    """With "sync" the workers wait for the moving averages that end `fit`.

    `fit` ends by replacing variables by their moving averages, outside any step. Servers take such
    values from the chief alone. A faster worker would go on with the variables of the last step.
    """
    original(self, var_list)
    strategy = self._distribution_strategy
    if self.use_ema and trains_on_servers(strategy) and strategy.extended.shares_batches:
        strategy.extended.parameters.all_reduce(tf.zeros([]), None)


# The model whose `fit` has begun and has not yet prepared its training data; one or none.
_in_fit: list = []


@hooks(TensorFlowTrainer, "fit")
def note_fit(original, self, *args, **kwargs):
    """`fit` says that the next data to be prepared is training data."""
    _warn_of_training_alone(self)
    _in_fit.append(self)
    try:
        return original(self, *args, **kwargs)
    finally:
        _in_fit.clear()


@hooks(TFEpochIterator, "__init__")
def share_training_data_only(original, self, distribute_strategy=None, *args, **kwargs):
    """The workers of parameter servers share training data; each sees all rows of other data.

    Keras distributes the data of `evaluate` and `predict` as that of `fit`, but these workers'
    metrics and predictions are their own. `fit` prepares its training data first, and its
    validation data, if any, afterwards.
    """
    trained = _in_fit.pop() if _in_fit else None
    if not trains_on_servers(distribute_strategy):
        return original(self, distribute_strategy, *args, **kwargs)
    extended = distribute_strategy.extended
    if trained is not None:
        with extended.input(shared=True, prepare=with_prefetch(trained)):
            original(self, distribute_strategy, *args, **kwargs)
        _count_own_batches(self, extended)
        return None
    with extended.input(shared=False):
        return original(self, distribute_strategy, *args, **kwargs)


def _warn_of_training_alone(model: Any) -> None:
    worker = process.current.ps_worker
    if worker is None or worker.cluster.is_local or not process.current.has_server_variables:
        return
    if trains_on_servers(model.distribute_strategy):
        return
    _log.warning(
        "%s: fit trains model %r by itself: it was neither made nor compiled in the scope of "
        "ParameterServerStrategy, so its variables are not on the servers",
        worker.cluster.task_name,
        model.name,
    )


class _DealtAdapter:
    """A data adapter whose batches are dealt to several workers."""

    def __init__(self, adapter: Any, extended: Any) -> None:
        self._adapter = adapter
        self._extended = extended

    def __getattr__(self, name):
        return getattr(self._adapter, name)

    @property
    def num_batches(self):
        batches = self._adapter.num_batches
        return None if batches is None else self._extended.own_batches(batches)


def _count_own_batches(iterator: Any, extended: Any) -> None:
    """Otherwise `fit` would warn, after this worker's batches, that the data ended early."""
    if extended.deals_out(getattr(iterator.data_adapter, "_dataset", None)):
        iterator.data_adapter = _DealtAdapter(iterator.data_adapter, extended)
        iterator._num_batches = iterator.data_adapter.num_batches
