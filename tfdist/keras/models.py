"""The parts of models of Keras 3 and of tf_keras."""

from __future__ import annotations

import inspect

import keras
import tensorflow as tf

from tfdist._types import KerasModel, KerasVariable, Nested


def is_variable(value: object) -> bool:
    """Whether a value is a variable of either Keras."""
    return isinstance(value, keras.Variable | tf.Variable)


def tf_variable(variable: KerasVariable) -> tf.Variable:
    """The `tf.Variable` of a variable of either Keras."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def read_results(outputs: Nested) -> Nested:
    """The outputs of a step in a replica, with values in place of variables (metrics' results)."""
    return keras.tree.map_structure(
        lambda value: tf.convert_to_tensor(value) if is_variable(value) else value, outputs
    )


def model_variables(model: KerasModel) -> list[KerasVariable]:
    """The variables of a model's layers; none if it has not made them yet."""
    try:
        return list(model.variables)
    except ValueError:  # by which tf_keras says so
        return []


def optimizer_variables(model: KerasModel) -> list[KerasVariable]:
    """The variables of a model's optimizer; none if it has no optimizer."""
    variables = getattr(getattr(model, "optimizer", None), "variables", ())
    # Of the legacy optimizers of tf_keras.
    return list(variables() if inspect.ismethod(variables) else variables)


def metrics_variables(model: KerasModel) -> list[KerasVariable]:
    """The variables of a model's metrics."""
    return [variable for metric in model.metrics for variable in metric.variables]
