"""Converts optimizers of Keras 3 and tf_keras to the optimizers that the package trains with.

The package trains with tf_keras's legacy optimizers, as in TensorFlow 2.15. Others become the
legacy optimizer that computes the same. Its slots have the same names as in TensorFlow 2.15.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
import tf_keras

from tfdist._types import KerasOptimizer, KerasVariable, Nested
from tfdist.internals.tensorflow import eager_mode

# Nadam, for example, is missing: the legacy optimizer computes something else.
_SAME = ("Adadelta", "Adagrad", "Adam", "Adamax", "Ftrl", "RMSprop", "SGD")
_SCHEDULES = (
    "CosineDecay",
    "CosineDecayRestarts",
    "ExponentialDecay",
    "InverseTimeDecay",
    "PiecewiseConstantDecay",
    "PolynomialDecay",
)
# Settings that legacy optimizers do not have; refused only if they are set.
_LACKING = ("weight_decay", "use_ema", "loss_scale_factor", "gradient_accumulation_steps")
_DROPPED = (
    *_LACKING,
    "name",
    "ema_momentum",
    "ema_overwrite_frequency",
    "jit_compile",
    "is_legacy_optimizer",
)
_INSTEAD = "give such a one, or one of tf_keras.optimizers.legacy"


def convert_optimizers() -> None:
    """Makes canned estimators and heads accept the optimizers that `legacy_optimizer` accepts."""
    from tensorflow_estimator.python.estimator.canned import optimizers
    from tensorflow_estimator.python.estimator.head import base_head

    get_instance = optimizers.get_optimizer_instance_v2
    make_train_op = base_head.create_estimator_spec_train_op

    @functools.wraps(get_instance)
    def get_optimizer_instance_v2(opt, learning_rate=None):
        made = opt if isinstance(opt, str) or not callable(opt) else opt()
        return get_instance(legacy_optimizer(made), learning_rate)

    @functools.wraps(make_train_op)
    def create_estimator_spec_train_op(
        head_name, optimizer=None, trainable_variables=None, *args, **kwargs
    ):
        legacy = legacy_optimizer(optimizer)
        if legacy is not optimizer:
            # No caller can have set the variable that counts its steps.
            legacy.iterations = tf.compat.v1.train.get_or_create_global_step()
        return make_train_op(head_name, legacy, trainable_variables, *args, **kwargs)

    optimizers.get_optimizer_instance_v2 = get_optimizer_instance_v2
    base_head.create_estimator_spec_train_op = create_estimator_spec_train_op


def accept_variables() -> None:
    """Makes the optimizers that train an `Estimator` accept variables of Keras 3.

    Each holds a `tf.Variable`, which the optimizers know.
    """
    old, legacy = tf.compat.v1.train.Optimizer, tf_keras.optimizers.legacy.Optimizer
    for owner, name, position in (
        (old, "compute_gradients", 1),
        (old, "apply_gradients", 0),
        (legacy, "minimize", 1),
        (legacy, "get_updates", 1),
        (legacy, "apply_gradients", 0),
    ):
        setattr(owner, name, _accepting(getattr(owner, name), position))


def _accepting(method: Callable, position: int) -> Callable:
    name = list(inspect.signature(method).parameters)[position + 1]

    @functools.wraps(method)
    def accepting(self, *args, **kwargs):
        if len(args) > position:
            args = (*args[:position], _unwrap(args[position]), *args[position + 1 :])
        elif name in kwargs:
            kwargs[name] = _unwrap(kwargs[name])
        return method(self, *args, **kwargs)

    return accepting


def _unwrap(variables: Nested) -> Nested:
    """Unwraps variables, pairs of gradient and variable, or iterables of either."""
    if isinstance(variables, Iterable) and not tf.is_tensor(variables):
        return [_unwrap(v) if isinstance(v, tuple) else _held(v) for v in variables]
    return variables


def _held(variable: KerasVariable) -> tf.Variable:
    kind = sys.modules["keras.src.backend"].Variable
    return variable.value if isinstance(variable, kind) else variable


def legacy_optimizer(optimizer: KerasOptimizer) -> tf_keras.optimizers.legacy.Optimizer:
    """Returns the legacy optimizer of tf_keras that computes the same as `optimizer`.

    Args:
      optimizer: of Keras 3 or of tf_keras; any other object is returned unchanged.

    Returns:
      A new `tf_keras.optimizers.legacy.Optimizer`, or the given one. RMSprop without
      momentum adds its epsilon to the root, where Keras 3 adds it to the square.

    Raises:
      TypeError: it, or its schedule, is of a class that has no legacy counterpart.
      ValueError: it has a setting that legacy optimizers do not have.
    """
    library = _library(optimizer)
    if library is None:
        return optimizer
    kind = type(optimizer).__name__
    if kind not in _SAME or type(optimizer) is not getattr(library.optimizers, kind):
        raise TypeError(
            f"optimizer: expected one of {', '.join(_SAME)}, received {_name(optimizer)}, which no "
            f"legacy optimizer of tf_keras computes: {_INSTEAD}"
        )
    config = _config(optimizer)
    for setting in _LACKING:
        if config.get(setting):
            raise ValueError(
                f"optimizer: expected {kind} without {setting}, which legacy optimizers of "
                f"tf_keras do not have, received {setting}={config[setting]!r}: {_INSTEAD}"
            )
    settings = {k: v for k, v in config.items() if k not in _DROPPED and v is not None}
    settings["learning_rate"] = _learning_rate(optimizer, config, library)
    if re.sub(r"_(\d+$)?", "", config["name"]).lower() != kind.lower():
        settings["name"] = config["name"]
    return getattr(tf_keras.optimizers.legacy, kind)(**settings)


def _library(optimizer: KerasOptimizer) -> types.ModuleType | None:
    """Returns Keras 3 or tf_keras if `optimizer` is one of its, and not a legacy one."""
    # An optimizer of Keras 3 exists only if Keras 3 was imported.
    for library in filter(None, (sys.modules.get("keras"), tf_keras)):
        if isinstance(optimizer, library.optimizers.Optimizer):
            return None if isinstance(optimizer, tf_keras.optimizers.legacy.Optimizer) else library
    return None


def _config(optimizer: KerasOptimizer) -> dict[str, Any]:
    # In the graph of a model_fn its variables could not be read.
    with eager_mode():
        try:
            return optimizer.get_config()
        except TypeError as error:
            raise ValueError(
                f"optimizer: expected a {_name(optimizer)} made before the model_fn runs, received "
                f"one made by it, with variables of its graph: {_INSTEAD}"
            ) from error


def _learning_rate(
    optimizer: KerasOptimizer, config: dict[str, object], library: types.ModuleType
) -> object:
    given, schedules = optimizer._learning_rate, library.optimizers.schedules
    if not isinstance(given, schedules.LearningRateSchedule):
        return given if callable(given) else config["learning_rate"]
    if library is tf_keras:
        return given
    kind = type(given).__name__
    if kind not in _SCHEDULES or type(given) is not getattr(schedules, kind):
        raise TypeError(
            f"learning_rate: expected a number or one of {', '.join(_SCHEDULES)}, received "
            f"{_name(given)}: make it a subclass of "
            "tf_keras.optimizers.schedules.LearningRateSchedule, for a legacy optimizer of tf_keras"
        )
    return getattr(tf_keras.optimizers.schedules, kind)(**given.get_config())


def _name(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__name__}"
