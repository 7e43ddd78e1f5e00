"""Optimizers of tf_keras that a script makes outside of the scope of parameter servers."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf
import tf_keras

from tfdist._types import KerasModel
from tfdist.internals.tf_keras import Optimizer
from tfdist.keras.workers import is_on_servers


def share_step_counts(model: KerasModel) -> None:
    """Makes the step counts of a model's optimizers variables of the servers.

    An optimizer makes its slots in its first step, in the scope, but its step count when it is made
    itself. Else each worker would count its own steps, and correct the bias of Adam by them.

    Args:
      model: all workers call it with equal models.

    Raises:
      ValueError: an optimizer has made its slots outside of the scope.
    """
    attributes = [model.optimizer, *vars(model).values()]
    for optimizer in dict.fromkeys(map(_inner, _optimizers_of(attributes))):
        count = optimizer._iterations
        if is_on_servers(count):
            continue
        if getattr(optimizer, "_built", False):
            raise ValueError(
                f"model {model.name!r}: its optimizer {optimizer.name!r} was made and built "
                "outside of strategy.scope(): expected it to be built by `fit`, or made in the "
                "scope"
            )
        with model.distribute_strategy.scope():
            shared = tf.Variable(count, trainable=False, dtype=count.dtype, name="iteration")
        variables = optimizer._variables
        variables[next(i for i, one in enumerate(variables) if one is count)] = shared
        optimizer._iterations = shared


def _optimizers_of(values: Iterable[object]) -> list[Optimizer]:
    kinds = (Optimizer, tf_keras.mixed_precision.LossScaleOptimizer)
    return [value for value in values if isinstance(value, kinds)]


def _inner(optimizer: Optimizer) -> Optimizer:
    return getattr(optimizer, "inner_optimizer", optimizer)
