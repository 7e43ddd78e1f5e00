"""Converts layers of Keras 3 to layers of tf_keras that compute the same.

Both libraries describe a layer by its class and its config, which mostly agree. If they do not, the
layer is refused.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import keras
import tf_keras

BUILD_WITH_TF_KERAS = (
    "build the model with tf_keras, or set TF_USE_LEGACY_KERAS=1 so that tf.keras is tf_keras"
)
# Their results differ between the libraries, or depend on more than the config.
_DIFFERENT = (
    *("IntegerLookup", "Lambda", "SpectralNormalization", "StringLookup", "TextVectorization"),
    *("RandomBrightness", "RandomContrast", "RandomCrop", "RandomFlip", "RandomRotation"),
    *("RandomTranslation", "RandomZoom"),
)
_ACTIVATIONS = (
    *("elu", "exponential", "gelu", "linear", "mish", "relu", "selu", "sigmoid", "silu"),
    *("softmax", "softplus", "softsign", "swish", "tanh"),
)
_RENAMED = {"LeakyReLU": {"negative_slope": "alpha"}}
# Arguments that layers take although their constructors do not name them.
_OF_ALL = ("name", "trainable", "dtype", "zero_output_for_mask")
# Values that have no effect, of arguments that tf_keras's layers do not have.
_HARMLESS = (None, False, "channels_last")


def convert_layer(layer: keras.Layer, custom_objects: dict[str, type]) -> tf_keras.layers.Layer:
    """Makes the layer of tf_keras for a layer of Keras 3, without its weights.

    Args:
      layer: a `keras.layers.Layer`.
      custom_objects: classes of tf_keras by the names of the user's own classes of Keras 3.

    Raises:
      TypeError: the layer's class has no counterpart.
      ValueError: the counterpart cannot take the layer's config.
    """
    what = f"layer {layer.name!r} of {type(layer).__module__}.{type(layer).__name__}"
    return _make(type(layer), layer.get_config(), what, custom_objects)


def _make(
    kind: type, config: dict[str, object], what: str, custom_objects: dict[str, type]
) -> object:
    target, renamed = _class(kind, what, custom_objects), _RENAMED.get(kind.__name__, {})
    # The weights are there already: no initializers.
    converted = {
        renamed.get(key, key): _value(key, value, what, custom_objects)
        for key, value in config.items()
        if not key.endswith("initializer") and key != "build_config"
    }
    return target(**common_config(converted, kind, target, what))


def _class(kind: type, what: str, custom_objects: dict[str, type]) -> type:
    own = custom_objects.get(kind.__name__)
    if isinstance(own, type) and issubclass(own, tf_keras.layers.Layer):
        return own
    theirs = getattr(keras.layers, kind.__name__, None) is kind
    counterpart = getattr(tf_keras.layers, kind.__name__, None) if theirs else None
    if counterpart is None or kind.__name__ in _DIFFERENT:
        raise TypeError(
            "expected layers of keras.layers that tf_keras has too, or their tf_keras classes in "
            f"custom_objects, received {what}: {BUILD_WITH_TF_KERAS}"
        )
    return counterpart


def common_config(
    config: dict[str, object], kind: type, target: type, what: str
) -> dict[str, object]:
    """Returns the part of a config that another class accepts.

    Args:
      config: of `kind`.
      kind: a class of Keras 3.
      target: the one of tf_keras.
      what: the object that has the config, for messages.

    Raises:
      ValueError: the rest has values other than the defaults of `kind`.
    """
    accepted, defaults = {*_parameters(target), *_OF_ALL}, _parameters(kind)
    for key, value in config.items():
        if key not in accepted and value not in (*_HARMLESS, defaults.get(key)):
            raise ValueError(
                f"{what}: expected {key}={defaults.get(key)!r}, for tf_keras "
                f"has no {key}, received {value!r}: {BUILD_WITH_TF_KERAS}"
            )
    return {key: value for key, value in config.items() if key in accepted}


@functools.cache
def _parameters(kind: type) -> dict[str, object]:
    """The arguments of the constructors of a class and its bases, with their defaults."""
    found: dict[str, object] = {}
    each: Any
    for each in kind.__mro__:
        if each.__init__ is not object.__init__:
            for name, parameter in inspect.signature(each.__init__).parameters.items():
                found.setdefault(name, parameter.default)
    return found


def _value(key: str, value: Any, what: str, custom_objects: dict[str, type]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_value(key, each, what, custom_objects) for each in value)
    if key.endswith("activation") and value is not None and value not in _ACTIVATIONS:
        raise ValueError(
            f"{what}: expected as {key} one of {', '.join(_ACTIVATIONS)}, "
            f"which tf_keras computes equally, received {value!r}: {BUILD_WITH_TF_KERAS}"
        )
    if not isinstance(value, dict) or "class_name" not in value:
        return value
    name, module = value["class_name"], value.get("module")
    if key == "dtype" and name == "DTypePolicy":
        return value["config"]["name"]
    if module == "keras.layers":
        kind = getattr(keras.layers, name)
        return _make(kind, value["config"], f"{what}, its {key} {name}", custom_objects)
    if module in ("keras.regularizers", "keras.constraints"):
        return {"class_name": name, "config": value["config"]}
    raise TypeError(
        f"{what}: expected as {key} what Keras itself defines, received "
        f"{value.get('config') if name == 'function' else name}: {BUILD_WITH_TF_KERAS}"
    )
