"""`LocalUpdateStrategy`: workers apply their own gradients; epochs end with a synchronization."""

from __future__ import annotations

import threading
from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow import trainer
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.optimizers.base_optimizer import BaseOptimizer

from tfdist.keras.elastic_local_steps import LocalElasticStep
from tfdist.keras.hooks.preemption import stop_after_round_of_fit
from tfdist.keras.registry import hooks
from tfdist.keras.workers import local_updates, local_updates_of

_thread = threading.local()


@hooks(BaseOptimizer, "apply")
def train_alone(original, self, grads, trainable_variables=None):
    """With `LocalUpdateStrategy` a step trains the worker's own variables."""
    local = local_updates()
    if local is None or len(grads) == 0:
        return original(self, grads, trainable_variables)
    if trainable_variables is not None and not self.built:
        self.build(list(trainable_variables))
    variables = list(
        self._trainable_variables if trainable_variables is None else trainable_variables
    )
    return local.apply(self, variables, lambda: original(self, grads, trainable_variables))


@hooks(TFOptimizer, "_all_reduce_sum_gradients")
def keep_own_gradients(original, self, grads_and_vars):
    """Workers of `LocalUpdateStrategy` do not exchange gradients."""
    local = local_updates()
    if local is None:
        return original(self, grads_and_vars)
    return local.own_gradients(list(grads_and_vars))


@hooks(trainer, "reduce_per_replica")
def log_own_steps(original, values, strategy, reduction):
    """After a batch `fit` with `LocalUpdateStrategy` logs the worker's own metrics.

    Keras would average them over the workers, which is a collective in each step.
    """
    local = local_updates_of(strategy)
    if reduction != "auto" or local is None or not local.has_trained:
        return original(values, strategy, reduction)
    return tf.nest.map_structure(lambda v: strategy.experimental_local_results(v)[0], values)


@hooks(TensorFlowTrainer, "evaluate")
def note_evaluation(original, self, *args, **kwargs):
    """An evaluation in the middle of an epoch is that of the workers' own variables."""
    before = getattr(_thread, "evaluates", False)
    _thread.evaluates = True
    try:
        return original(self, *args, **kwargs)
    finally:
        _thread.evaluates = before


@hooks(TensorFlowTrainer, "_get_metrics_result_or_logs")
def synchronize_epoch(original, self, logs):
    """An epoch of `fit` with `LocalUpdateStrategy` ends with a synchronization.

    Its logs have the residuals of the rule, if it has some.
    """
    local: Any = local_updates_of(self.distribute_strategy)
    if local is None or getattr(_thread, "evaluates", False):
        return original(self, logs)
    step = getattr(self.train_function, "elastic_step", None)
    if isinstance(step, LocalElasticStep):
        step.end_round()
        stop_after_round_of_fit(self)
    else:
        local.synchronize()
    return {**original(self, logs), **local.residuals()}
