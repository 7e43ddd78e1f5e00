"""Repairs of models that a script makes, builds or compiles outside of `strategy.scope()`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import keras
import numpy as np
import tensorflow as tf
from keras import Model, tree
from keras.optimizers import Optimizer

from tfdist._types import KerasModel, KerasOptimizer, KerasVariable, Nested
from tfdist.internals.keras_3 import compute_output_spec, unpack_x_y_sample_weight
from tfdist.internals.keras_3_trainer import TensorFlowTrainer, Trainer
from tfdist.keras.registry import repairs
from tfdist.keras.workers import has_copies, has_peers, is_ours, trains_on_servers


@repairs(Model, "_open_name_scope")
def build_in_scope_of_model(original, self):
    """A model that was made in a scope, and is called or built outside it, cannot be trained.

    Variables made then belong to no strategy.
    """
    strategy = getattr(self, "_distribute_strategy", None)
    if strategy is None or tf.distribute.has_strategy() or not is_ours(strategy):
        return original(self)
    if are_built(self):
        return original(self)
    scopes = contextlib.ExitStack()
    scopes.enter_context(strategy.scope())
    scopes.enter_context(original(self))
    return scopes


@repairs(Trainer, "compile")
def compile_in_scope_of_model(original, self, *args, **kwargs):
    """An optimizer that is made outside the model's scope counts all replicas' steps, or fails.

    A model that was made outside, or in another scope, is refused: it fails in its first step with
    an assertion, or trains on one device.
    """
    strategy = getattr(self, "_distribute_strategy", None)
    current = tf.distribute.get_strategy() if tf.distribute.has_strategy() else None
    if strategy is not current and (has_peers(current) or trains_on_servers(current)):
        made = "outside of any scope" if strategy is None else f"in the scope of {strategy!r}"
        raise ValueError(
            f"model {self.name!r}: was made {made}, and is compiled in the scope of {current!r}: "
            "expected both in one `with strategy.scope():`"
        )
    if strategy is None or not is_ours(strategy):
        return original(self, *args, **kwargs)
    with contextlib.nullcontext() if current is strategy else strategy.scope():
        result = original(self, *args, **kwargs)
    _adopt_optimizer(self.optimizer, strategy)
    return result


@repairs(TensorFlowTrainer, "make_predict_function")
def build_before_prediction(original, self, force=False):
    """`predict` and `predict_on_batch` make a model's variables in its replicas, if nothing else
    has, as `fit` does not.
    """
    result = original(self, force)
    if is_ours(self._distribute_strategy) and not are_built(self):
        predict = self.predict_function

        def build_first(data):
            self.predict_function = predict
            _build_for(self, data[0])
            return predict(data)

        self.predict_function = build_first
    return result


def _build_for(model: KerasModel, batch: Nested) -> None:
    """Makes a model's variables for a batch that it is to predict."""
    strategy = model._distribute_strategy

    def of_replica(value: tf.Tensor | tf.distribute.DistributedValues) -> keras.KerasTensor:
        if isinstance(value, tf.distribute.DistributedValues):
            value = strategy.experimental_local_results(value)[0]
        return keras.KerasTensor(value.shape, keras.backend.standardize_dtype(value.dtype))

    # Data without a shape, such as ragged tensors, is left to the first step.
    with contextlib.suppress(Exception), strategy.scope():
        inputs, _, _ = unpack_x_y_sample_weight(batch)
        compute_output_spec(model, tree.map_structure(of_replica, inputs), training=False)


def are_built(model: KerasModel, include_self: bool = True) -> bool:
    """Whether a model, or all that it consists of, has its variables."""
    return all(layer.built for layer in model._flatten_layers(include_self=include_self))


def adopt_metrics(model: KerasModel) -> None:
    """Makes the variables of metrics anew that were made outside of the model's scope.

    Each worker would log what it has counted itself.
    """
    for metric in model.metrics:
        _adopt(metric.variables, model.distribute_strategy)


def _adopt_optimizer(optimizer: KerasOptimizer, strategy: tf.distribute.Strategy) -> None:
    """Makes the variables of an optimizer anew that were made outside of the model's scope."""
    if not isinstance(optimizer, Optimizer) or not has_copies(strategy):
        return
    optimizer._distribution_strategy = strategy  # in which it makes and updates its slots
    _adopt(optimizer.variables, strategy)
    _adopt_optimizer(getattr(optimizer, "inner_optimizer", None), strategy)


def _adopt(variables: Iterable[KerasVariable], strategy: tf.distribute.Strategy) -> None:
    """Makes variables of Keras, which keep their values, variables of a strategy with copies."""
    if not has_copies(strategy):
        return
    for variable in variables:
        if not hasattr(variable._value, "distribute_strategy"):
            with strategy.scope():
                variable._initialize(np.asarray(variable))
