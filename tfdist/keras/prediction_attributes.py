"""The mask of a prediction, and the logits of its probabilities, which losses look for.

Keras keeps both as attributes of tensors. In a graph it also looks for the operation that has made
probabilities from logits. A tensor that takes a prediction's place needs the same.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

MASK, LOGITS = "_keras_mask", "_keras_logits"
_OF_LOGITS = {"Softmax": tf.nn.softmax, "Sigmoid": tf.sigmoid}


def changed(prediction: tf.Tensor, change: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Returns a changed prediction of which losses find the changed mask and logits.

    Args:
      prediction: the output of a model.
      change: of a tensor with a row for each example.
    """
    result = changed_values(prediction, change)
    for name in (MASK, LOGITS):
        attribute = getattr(prediction, name, None)
        if attribute is not None:
            setattr(result, name, change(attribute))
    return result


def changed_values(prediction: tf.Tensor, change: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Returns a changed prediction without attributes; if logits made it, changed ones do."""
    if not tf.executing_eagerly() and not hasattr(prediction, LOGITS):
        function = _OF_LOGITS.get(prediction.op.type)
        if function is not None:
            return function(change(prediction.op.inputs[0]))
    return change(prediction)
