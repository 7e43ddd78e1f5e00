"""Examples of classification and regression requests, and what a model says about each."""

from __future__ import annotations

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis.input_pb2 import Input

from tfdist.serving.model_server.call_error import CallError, invalid
from tfdist.serving.model_server.requests import Answer

# The names that TensorFlow Serving gives to the outputs.
_CLASSES, _SCORES, _VALUES = "classes", "scores", "outputs"


def serialized(given: Input) -> list[bytes]:
    """Returns each example of a request with the features of its context.

    Raises:
      CallError: the request has no examples.
    """
    kind = given.WhichOneof("kind")
    if kind == "example_list":
        examples = given.example_list.examples
        return [example.SerializeToString() for example in examples]
    if kind == "example_list_with_context":
        part = given.example_list_with_context
        return [joined(part.context, example).SerializeToString() for example in part.examples]
    raise invalid("Input is empty: expected an example_list or an example_list_with_context")


def joined(context: tf.train.Example, example: tf.train.Example) -> tf.train.Example:
    """Returns an example that also has the features of the context which it lacks."""
    whole = tf.train.Example()
    whole.CopyFrom(context)
    for name, feature in example.features.feature.items():
        whole.features.feature[name].CopyFrom(feature)
    return whole


def classes_of(answer: Answer) -> list[list[tuple[str, float]]]:
    """Returns the label and the score of each class, for each example.

    Labels are empty, or scores 0, if the signature has no such output.

    Raises:
      CallError: the outputs do not have one row for each example.
    """
    classes, scores = answer.outputs.get(_CLASSES), answer.outputs.get(_SCORES)
    given = [values for values in (classes, scores) if values is not None]
    if not given or any(v.ndim != 2 or v.shape != given[0].shape for v in given):
        raise _unfit(answer, f"{_CLASSES} and {_SCORES} of the same shape [examples, classes]")
    labels = np.full(given[0].shape, b"", object) if classes is None else classes
    numbers = np.zeros(given[0].shape, np.float32) if scores is None else scores
    return [
        [(_text(label), float(number)) for label, number in zip(*row, strict=True)]
        for row in zip(labels, numbers, strict=True)
    ]


def values_of(answer: Answer) -> list[float]:
    """Returns the value of each example.

    Raises:
      CallError: the output does not have one value for each example.
    """
    values = answer.outputs.get(_VALUES)
    if values is None or values.ndim not in (1, 2) or values.size != len(values):
        raise _unfit(answer, f"{_VALUES} of the shape [examples] or [examples, 1]")
    return [float(value) for value in values.ravel()]


def _text(label: object) -> str:
    return label.decode("utf-8", "replace") if isinstance(label, bytes) else str(label)


def _unfit(answer: Answer, expected: str) -> CallError:
    shapes = {name: list(values.shape) for name, values in answer.outputs.items()}
    return CallError(
        grpc.StatusCode.FAILED_PRECONDITION,
        f"signature {answer.signature.name!r}: expected the outputs {expected}, received {shapes}",
    )
