"""A signature of a SavedModel: the names, types and shapes of its inputs and outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef

from tfdist.serving.model_server.call_error import invalid

PREDICT = "tensorflow/serving/predict"
CLASSIFY = "tensorflow/serving/classify"
REGRESS = "tensorflow/serving/regress"
# Unknown names of a request that an error has.
_TOLD = 10


@dataclasses.dataclass(frozen=True)
class Signature:
    """A function of a model that clients may call.

    Args:
      name: by which they ask for it.
      method: its kind, such as "tensorflow/serving/predict".
      inputs, outputs: the types and shapes by name.
    """

    name: str
    method: str
    inputs: Mapping[str, tf.TensorSpec]
    outputs: Mapping[str, tf.TensorSpec]

    @classmethod
    def of(cls, name: str, definition: SignatureDef) -> Signature:
        """Returns the signature that a SavedModel describes."""
        return cls(
            name, definition.method_name, _specs(definition.inputs), _specs(definition.outputs)
        )

    def check_names(self, received: Iterable[str]) -> None:
        """Raises `CallError` unless these are the names of its inputs."""
        names = set(received)
        missing, extra = sorted(self.inputs.keys() - names), sorted(names - self.inputs.keys())
        if missing or extra:
            # A request may have a million of them.
            more = f" and {len(extra) - _TOLD} more" if len(extra) > _TOLD else ""
            raise invalid(
                f"signature {self.name!r}: expected the inputs {sorted(self.inputs)}, received "
                f"others; missing: {missing}, unknown: {extra[:_TOLD]}{more}"
            )

    def check(self, inputs: Mapping[str, np.ndarray]) -> None:
        """Raises `CallError` unless the inputs have its names, types and shapes."""
        self.check_names(inputs)
        for name, spec in self.inputs.items():
            values = inputs[name]
            if dtype_of(values) != spec.dtype or not spec.shape.is_compatible_with(values.shape):
                raise invalid(
                    f"signature {self.name!r}, input {name!r}: expected {described(spec)}, "
                    f"received {dtype_of(values).name}{list(values.shape)}"
                )

    @property
    def may_batch(self) -> bool:
        """Whether all inputs and outputs can have one row for each example."""
        specs = [*self.inputs.values(), *self.outputs.values()]
        return all(s.shape.rank is not None and s.shape.rank and s.shape[0] is None for s in specs)


def dtype_of(values: np.ndarray) -> tf.DType:
    """Returns the type that an array has as a tensor; strings are arrays of objects."""
    return tf.string if values.dtype == object else tf.dtypes.as_dtype(values.dtype)


def described(spec: tf.TensorSpec) -> str:
    """Returns a type and a shape, such as "float32[?, 3]"."""
    if spec.shape.rank is None:
        return f"{spec.dtype.name} of any shape"
    sizes = ", ".join("?" if size is None else str(size) for size in spec.shape)
    return f"{spec.dtype.name}[{sizes}]"


def _specs(infos: Mapping[str, Any]) -> dict[str, tf.TensorSpec]:
    return {
        name: tf.TensorSpec(tf.TensorShape(info.tensor_shape), tf.dtypes.as_dtype(info.dtype))
        for name, info in infos.items()
    }
