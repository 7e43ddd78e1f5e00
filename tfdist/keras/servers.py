"""What Keras must know of parameter servers: names of variables, and who trains on which data."""

from __future__ import annotations

import contextlib
import functools
import logging

import tensorflow as tf
from keras.src.backend import Variable
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer, TFEpochIterator
from keras.src.optimizers.base_optimizer import BaseOptimizer

from tfdist.job import process
from tfdist.keras.prefetching import with_prefetch
from tfdist.keras.workers import trains_on_servers
from tfdist.strategies._input import worker_input
from tfdist.strategies._variables.roles import called, own_iterations

_log = logging.getLogger("tfdist")


def tell_paths() -> None:
    """Keras 3 names a `tf.Variable` "kernel", whatever layer it is of.

    Its path, such as "sequential/dense/kernel", says which variable is the same in all workers.
    """
    original = Variable._initialize

    @functools.wraps(original)
    def _initialize(self, value):
        with called(self.path):
            original(self, value)

    Variable._initialize = _initialize


def accumulate_own_steps() -> None:
    """`gradient_accumulation_steps` acts on every n-th of the optimizer's `iterations`.

    Where each worker makes steps of its own, that is every n-th of all their steps, which may never
    be one of this worker's. There such an optimizer counts its own.
    """
    original = BaseOptimizer.__init__

    @functools.wraps(original)
    def __init__(self, *args, gradient_accumulation_steps=None, **kwargs):
        strategy = tf.distribute.get_strategy()
        own = (
            gradient_accumulation_steps
            and trains_on_servers(strategy)
            and not strategy.extended.shares_batches
        )
        with own_iterations() if own else contextlib.nullcontext():
            original(self, *args, gradient_accumulation_steps=gradient_accumulation_steps, **kwargs)

    BaseOptimizer.__init__ = __init__


def wait_for_final_averages() -> None:
    """`fit` ends by replacing variables by their moving averages, in no step of any worker.

    Servers take such values from the chief alone. With "sync" the others wait for it: a faster one
    would go on with the variables of the last step.
    """
    original = BaseOptimizer.finalize_variable_values

    @functools.wraps(original)
    def finalize_variable_values(self, var_list):
        original(self, var_list)
        strategy = self._distribution_strategy
        if self.use_ema and trains_on_servers(strategy) and strategy.extended.shares_batches:
            strategy.extended.parameters.all_reduce(tf.zeros([]), None)

    BaseOptimizer.finalize_variable_values = finalize_variable_values


def share_training_data_only() -> None:
    """Keras distributes the data of `evaluate` and `predict` as that of `fit`.

    But the metrics and predictions of parameter servers' workers are their own: each must see all
    rows. `fit` prepares its training data first, and its validation data, if any, afterwards.
    """
    prepare, fit = TFEpochIterator.__init__, TensorFlowTrainer.fit
    in_fit = []

    @functools.wraps(fit)
    def fit_with_share(self, *args, **kwargs):
        _warn_of_training_alone(self)
        in_fit.append(self)
        try:
            return fit(self, *args, **kwargs)
        finally:
            in_fit.clear()

    @functools.wraps(prepare)
    def __init__(self, distribute_strategy=None, *args, **kwargs):
        trained = in_fit.pop() if in_fit else None
        if not trains_on_servers(distribute_strategy):
            return prepare(self, distribute_strategy, *args, **kwargs)
        extended = distribute_strategy.extended
        if trained is not None:
            with extended.input(shared=True, prepare=with_prefetch(trained)):
                prepare(self, distribute_strategy, *args, **kwargs)
            _count_own_batches(self, extended)
            return None
        with extended.input(shared=False):
            return prepare(self, distribute_strategy, *args, **kwargs)

    TensorFlowTrainer.fit = fit_with_share
    TFEpochIterator.__init__ = __init__


def _warn_of_training_alone(model) -> None:
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

    def __init__(self, adapter, extended) -> None:
        self._adapter = adapter
        self._extended = extended

    def __getattr__(self, name):
        return getattr(self._adapter, name)

    @property
    def num_batches(self):
        batches = self._adapter.num_batches
        return None if batches is None else self._extended.own_batches(batches)


def _count_own_batches(iterator, extended) -> None:
    """`fit` would warn that the data ended early, after the batches of this worker."""
    dataset = getattr(iterator.data_adapter, "_dataset", None)
    whole = isinstance(dataset, tf.data.Dataset) and worker_input.is_whole(dataset)
    if not (whole or extended.shares_batches):
        iterator.data_adapter = _DealtAdapter(iterator.data_adapter, extended)
        iterator._num_batches = iterator.data_adapter.num_batches
