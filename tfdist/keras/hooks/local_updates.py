"""`LocalUpdateStrategy`: workers apply their own gradients."""

from __future__ import annotations

import tensorflow as tf

from tfdist.internals.keras_3 import BaseOptimizer, TFOptimizer, trainer
from tfdist.keras.registry import hooks
from tfdist.keras.workers import local_updates, local_updates_of


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
