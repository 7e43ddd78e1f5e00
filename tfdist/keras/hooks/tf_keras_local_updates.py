"""`LocalUpdateStrategy` with tf_keras; see `local_updates`."""

from __future__ import annotations

import tensorflow as tf

from tfdist.internals.tf_keras import Optimizer, training
from tfdist.keras.hooks import local_updates as of_keras_3
from tfdist.keras.registry import hooks
from tfdist.keras.workers import local_updates


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
