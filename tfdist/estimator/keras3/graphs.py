"""Converts the graph of layers of a Keras 3 model to a tf_keras model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import tf_keras

from tfdist._types import Nested
from tfdist.estimator.keras3.layers import BUILD_WITH_TF_KERAS, convert_layer
from tfdist.internals.keras_3 import Functional

if TYPE_CHECKING:
    import tensorflow as tf


def convert_graph(model: keras.Model, custom_objects: dict[str, type]) -> tf_keras.Model:
    """Makes a tf_keras model of the same layers, connected in the same way, with equal weights.

    Args:
      model: of Keras 3.
      custom_objects: classes of tf_keras by the names of the user's own layers of Keras 3.

    Raises:
      TypeError: the model, or one of its layers, is of a class that tf_keras does not have.
      ValueError: a layer's config has no counterpart, or the shape of the inputs is not known.
    """
    converted = _Conversion(custom_objects).model(model)
    _copy_weights(model, converted)
    return converted


class _Conversion:
    """Converts each layer once, even if it is called several times."""

    def __init__(self, custom_objects: dict[str, type]) -> None:
        self._custom_objects = custom_objects
        self._layers: dict[int, tf_keras.layers.Layer] = {}

    def model(self, model: keras.Model) -> tf_keras.Model:
        graph = _functional(model)
        inputs = [
            tf_keras.Input(
                batch_shape=tensor.shape,
                dtype=tensor.dtype,
                sparse=tensor.sparse,
                name=tensor._keras_history.operation.name,
            )
            for tensor in graph.inputs
        ]
        converted = dict(zip(map(id, graph.inputs), inputs, strict=True))
        for depth in sorted(graph._nodes_by_depth, reverse=True):
            for node in graph._nodes_by_depth[depth]:
                if not node.is_input and isinstance(node.operation, keras.layers.Layer):
                    outputs = self._call(node, converted)
                    converted.update(zip(map(id, node.outputs), outputs, strict=True))
        outputs = [_known(tensor, converted) for tensor in graph.outputs]
        return tf_keras.Model(
            keras.tree.pack_sequence_as(graph._inputs_struct, inputs),
            keras.tree.pack_sequence_as(graph._outputs_struct, outputs),
            name=model.name,
            trainable=model.trainable,
        )

    def _call(self, node: Any, converted: dict[int, tf.Tensor]) -> list[tf.Tensor]:
        layer = node.operation
        if id(layer) not in self._layers:
            self._layers[id(layer)] = self._convert(layer)
        masks = {id(getattr(tensor, "_keras_mask", None)) for tensor in node.input_tensors}
        arguments = node.arguments
        # tf_keras finds masks that Keras passed on itself.
        given = {
            name: value
            for name, value in arguments.kwargs.items()
            if value is None or not {id(leaf) for leaf in keras.tree.flatten(value)} <= masks
        }
        args, kwargs = keras.tree.map_structure(
            lambda leaf: _known(leaf, converted), (arguments.args, given)
        )
        return keras.tree.flatten(self._layers[id(layer)](*args, **kwargs))

    def _convert(self, layer: keras.Layer) -> tf_keras.layers.Layer:
        if isinstance(layer, keras.Model):
            return self.model(layer)
        return convert_layer(layer, self._custom_objects)


def _known(leaf: Nested, converted: dict[int, tf.Tensor]) -> Nested:
    """Returns the tf_keras tensor for a Keras 3 tensor, and any other value unchanged."""
    if not isinstance(leaf, keras.KerasTensor):
        return leaf
    if id(leaf) not in converted:
        operation = leaf._keras_history.operation
        raise TypeError(
            "expected a model of layers only, received the operation "
            f"{operation.name!r} of {type(operation).__module__}.{type(operation).__name__}: "
            f"use a layer for it, or {BUILD_WITH_TF_KERAS}"
        )
    return converted[id(leaf)]


def _functional(model: keras.Model) -> Functional:
    graph = model._functional if type(model) is keras.Sequential else model
    if graph is None:
        raise ValueError(
            f"expected a model that knows the shape of its inputs, received "
            f"{model.name!r}, which does not: begin it with keras.Input"
        )
    if type(graph) is not Functional:
        raise TypeError(
            "expected a keras.Sequential or a keras.Model(inputs, outputs), "
            f"received {model.name!r} of {type(model).__module__}.{type(model).__name__}: "
            f"{BUILD_WITH_TF_KERAS}"
        )
    return graph


def _copy_weights(model: keras.Model, converted: tf_keras.Model) -> None:
    for layer in model.layers:
        if isinstance(layer, keras.layers.InputLayer):
            continue
        counterpart = converted.get_layer(layer.name)
        if isinstance(layer, keras.Model):
            _copy_weights(layer, counterpart)
            continue
        weights = layer.get_weights()
        shapes, expected = ([w.shape for w in ws] for ws in (weights, counterpart.weights))
        if shapes != [tuple(shape) for shape in expected]:
            raise ValueError(
                f"layer {layer.name!r} of {type(layer).__name__}: expected "
                f"weights of the shapes that tf_keras's has, {expected}, received {shapes}: "
                f"{BUILD_WITH_TF_KERAS}"
            )
        counterpart.set_weights(weights)
