"""Converts the losses and metrics of a compiled model of Keras 3 to tf_keras."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

import tf_keras

from tfdist._types import Nested
from tfdist.estimator.keras3.layers import BUILD_WITH_TF_KERAS, common_config

if TYPE_CHECKING:
    import keras

# They contain a function of the user's.
_WRAPPERS = ("MeanMetricWrapper", "LossFunctionWrapper")
# The metric that they stand for depends on the shapes.
_SHORT = ("accuracy", "acc", "crossentropy", "ce")
_REDUCTIONS = ("sum_over_batch_size", "sum")


def convert_compiled(model: keras.Model) -> dict[str, object]:
    """Returns the arguments of tf_keras's `compile`, without the optimizer, for a model.

    Args:
      model: a compiled model of Keras 3.

    Raises:
      TypeError: a loss or metric is of a class that tf_keras does not have.
      ValueError: its config has no counterpart in tf_keras.
    """
    given = model._compile_config.config
    return {
        "loss": _convert(given["loss"], "loss", tf_keras.losses),
        "loss_weights": given["loss_weights"],
        "metrics": _convert(given["metrics"], "metric", tf_keras.metrics),
        "weighted_metrics": _convert(given["weighted_metrics"], "metric", tf_keras.metrics),
    }


def _convert(given: Nested, what: str, counterparts: types.ModuleType) -> Nested:
    """Converts one object or a structure of them."""
    if isinstance(given, dict):
        return {key: _convert(value, what, counterparts) for key, value in given.items()}
    if isinstance(given, list | tuple):
        return [_convert(value, what, counterparts) for value in given]
    of_keras = type(given).__module__.startswith("keras.src.")
    if not of_keras and getattr(given, "__module__", "").startswith("keras.src."):
        given = given.__name__  # one of Keras's functions
    if isinstance(given, str):
        return _known(given, what, counterparts)
    if given is None:
        return None
    if callable(given) and not hasattr(given, "get_config"):
        return given  # the user's own function of tensors
    return _convert_object(given, what, counterparts)


def _known(name: str, what: str, counterparts: types.ModuleType) -> str:
    if name not in _SHORT:
        try:
            counterparts.get(name)
        except ValueError as error:
            raise TypeError(
                f"expected a {what} of Keras that tf_keras has too, received "
                f"{name!r}: {BUILD_WITH_TF_KERAS}"
            ) from error
    return name


def _convert_object(
    given: keras.Loss | keras.Metric, what: str, counterparts: types.ModuleType
) -> tf_keras.losses.Loss | tf_keras.metrics.Metric:
    name = f"{type(given).__module__}.{type(given).__name__}"
    counterpart = getattr(counterparts, type(given).__name__, None)
    if (
        type(given).__name__ in _WRAPPERS
        or counterpart is None
        or not type(given).__module__.startswith("keras.src.")
    ):
        raise TypeError(
            f"expected a {what} of Keras that tf_keras has too, or a function, "
            f"received {name}: {BUILD_WITH_TF_KERAS}"
        )
    config = given.get_config()
    if config.get("reduction", _REDUCTIONS[0]) not in _REDUCTIONS:
        raise ValueError(
            f"{what} {name}: expected as reduction one of "
            f"{', '.join(_REDUCTIONS)}, received {config['reduction']!r}: {BUILD_WITH_TF_KERAS}"
        )
    if what == "loss":
        config.pop("dtype", None)  # the data type of the model's outputs
    return counterpart(**common_config(config, type(given), counterpart, f"{what} {name}"))
