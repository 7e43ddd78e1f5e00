"""Repairs of models that a script makes, builds or compiles outside of `strategy.scope()`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, ValuesView

import keras
import numpy as np
import tensorflow as tf
from keras import Model, tree
from keras.losses import Loss
from keras.optimizers import LossScaleOptimizer, Optimizer

from tfdist._types import KerasModel, KerasVariable, Nested
from tfdist.internals.keras_3 import Variable, compute_output_spec, unpack_x_y_sample_weight
from tfdist.internals.keras_3_trainer import TensorFlowTrainer, Trainer
from tfdist.keras.registry import repairs
from tfdist.keras.workers import (
    has_copies,
    has_peers,
    is_on_servers,
    is_ours,
    trains_on_servers,
)


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
    _adopt_losses(self.loss, strategy)
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
            obstacle = _build_for(self, data[0])
            try:
                return predict(data)
            except Exception as error:
                if obstacle is None or isinstance(error, tf.errors.OpError):
                    raise
                if str(error) == str(obstacle):
                    raise  # both say it
                kind = ValueError if isinstance(obstacle, ValueError) else RuntimeError
                raise kind(
                    f"{obstacle}\nmodel {self.name!r}: has no variables for this reason, and its "
                    f"first step of predict failed without them: {error}"
                ) from obstacle

        self.predict_function = build_first
    return result


def _build_for(model: KerasModel, batch: Nested) -> Exception | None:
    """Makes a model's variables for a batch that it is to predict.

    Returns:
      Why the model cannot be called with the shapes of the batch. The first step may still make the
      variables, from values. `None` if they are made, or if the batch has values without a shape.
    """
    strategy = model._distribute_strategy
    inputs, _, _ = unpack_x_y_sample_weight(batch)
    values = [
        strategy.experimental_local_results(value)[0]
        if isinstance(value, tf.distribute.DistributedValues)
        else value
        for value in tree.flatten(inputs)
    ]
    if any(value is None or value.shape.rank is None for value in values):
        return None
    try:
        specs = [
            keras.KerasTensor(value.shape, keras.backend.standardize_dtype(value.dtype))
            for value in values
        ]
        with strategy.scope():
            compute_output_spec(model, tree.pack_sequence_as(inputs, specs), training=False)
    except Exception as error:
        return None if are_built(model) else error
    return None


def are_built(model: KerasModel, include_self: bool = True) -> bool:
    """Whether a model, or all that it consists of, has its variables."""
    return all(layer.built for layer in model._flatten_layers(include_self=include_self))


def adopt_metrics(model: KerasModel) -> None:
    """Makes the variables of metrics anew that were made outside of the model's scope.

    Each worker would log what it has counted itself.
    """
    for metric in model.metrics:
        _adopt(metric.variables, model.distribute_strategy)


def adopt_optimizers(model: KerasModel) -> None:
    """Adopts the optimizers that a model of its own step has as attributes, as a GAN does."""
    for value in list(vars(model).values()):
        if isinstance(value, dict):
            value = value.values()
        for one in value if isinstance(value, list | tuple | ValuesView) else (value,):
            _adopt_optimizer(one, model.distribute_strategy)


def _adopt_optimizer(optimizer: object, strategy: tf.distribute.Strategy) -> None:
    """Makes the variables of an optimizer anew that were made outside of the model's scope."""
    if not isinstance(optimizer, Optimizer) or not is_ours(strategy):
        return
    optimizer._distribution_strategy = strategy  # in which it makes and updates its slots
    if trains_on_servers(strategy):
        _share(optimizer, strategy)
    else:
        _adopt(optimizer.variables, strategy)
    _adopt_optimizer(getattr(optimizer, "inner_optimizer", None), strategy)


def _adopt_losses(losses: Nested, strategy: tf.distribute.Strategy) -> None:
    """Makes variables of losses anew where several replicas of a process would change one.

    TensorFlow then asks for the aggregation of such changes, if the variable does not tell it.
    """
    if len(strategy.extended.worker_devices) == 1:
        return
    for loss in tree.flatten(losses):
        if isinstance(loss, Loss):
            of_loss = [v for v in vars(loss).values() if isinstance(v, Variable)]
            _adopt(of_loss, strategy)


def _adopt(variables: Iterable[KerasVariable], strategy: tf.distribute.Strategy) -> None:
    """Makes variables of Keras, which keep their values, variables of a strategy with copies."""
    if not has_copies(strategy):
        return
    for variable in variables:
        if not hasattr(variable._value, "distribute_strategy"):
            with strategy.scope():
                variable._initialize(np.asarray(variable))


def _share(optimizer: Optimizer, strategy: tf.distribute.Strategy) -> None:
    """Makes the step count and the slots of an optimizer variables of the servers.

    The rest stays each worker's own: see `tell_role_of_slot` and `keep_loss_scale`.
    """
    trained = optimizer._trainable_variables
    references = {
        id(slot): of
        for name, slots in vars(optimizer).items()
        if isinstance(slots, list) and len(slots) == len(trained) and name != "_variables"
        for slot, of in zip(slots, trained, strict=True)
    }
    for variable in _shared_of(optimizer):
        of = references.get(id(variable))
        with strategy.scope(), contextlib.ExitStack() as place:
            if of is not None and is_on_servers(of._value):
                place.enter_context(strategy.extended.colocate_vars_with(of._value))
            variable._initialize(np.asarray(variable))


def _shared_of(optimizer: Optimizer) -> list[KerasVariable]:
    """The variables of an optimizer that workers share, and that servers do not hold yet."""
    if isinstance(optimizer, LossScaleOptimizer):
        variables = [optimizer._iterations]
    else:
        own = [optimizer._learning_rate, *getattr(optimizer, "_accumulated_gradients", ())]
        variables = [v for v in optimizer.variables if all(v is not one for one in own)]
    return [v for v in variables if not is_on_servers(v._value)]
