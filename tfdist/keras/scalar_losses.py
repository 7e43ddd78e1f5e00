"""Losses of `compile` that return one number for a batch, instead of one for each row.

Keras takes such a number as it is. How the numbers of several replicas make the number of the whole
batch depends on the function:

    mean    tf.reduce_mean(...)                        weighed by the replica's rows
    sum     tf.reduce_sum(...), also / GLOBAL_BATCH    added as they are
    own     tf.nn.compute_average_loss(...), a loss    added as they are: the function has
            of Keras, strategy.num_replicas_in_sync    divided by all replicas itself

The last kind is known from the functions it calls. The others are told apart by a batch in which
each row occurs twice: a mean stays the same, and a sum doubles. Where that cannot be tried, or the
number does neither, it is taken for a mean, as in one process.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tfdist._types import KerasLoss, Nested

_log = logging.getLogger("tfdist")
_thread = threading.local()
_ROWS, _UNKNOWN = 3, 4  # of the batch that is tried, and other sizes that are not known
# Whether a loss is a mean, by loss.
_means: weakref.WeakKeyDictionary[KerasLoss, bool] = weakref.WeakKeyDictionary()


class _Call:
    """A running call of a loss.

    Attributes:
      loss: a Keras loss.
      inputs: its targets and predictions.
      outer: the call that makes this one, if any.
      is_divided: whether it has divided by all replicas itself.
    """

    def __init__(self, loss: KerasLoss, inputs: tuple[Nested, Nested], outer: _Call | None) -> None:
        self.loss = loss
        self.inputs = inputs
        self.outer = outer
        self.is_divided = False


@contextlib.contextmanager
def called(loss: KerasLoss, y_true: Nested, y_pred: Nested) -> Iterator[None]:
    """Within it `loss` is called."""
    before = getattr(_thread, "call", None)
    _thread.call = _Call(loss, (y_true, y_pred), before)
    try:
        yield
    finally:
        _thread.call = before


def note_division() -> None:
    """Notes that the loss that is called asks for the number of replicas, or divides by it."""
    call = getattr(_thread, "call", None)
    while call is not None:
        call.is_divided = True
        call = call.outer


def is_mean() -> bool:
    """Whether the number that the called loss has returned is a mean of the replica's rows."""
    call = getattr(_thread, "call", None)
    if call is None or call.is_divided:
        return False
    if call.loss not in _means:
        _means[call.loss] = _is_mean(call)
    return _means[call.loss]


def of_sums() -> KerasLoss | None:
    """The called loss, if the number that it has returned is to be added as it is; else `None`."""
    call = getattr(_thread, "call", None)
    return None if call is None or is_mean() else call.loss


def _is_mean(call: _Call) -> bool:
    try:
        # Not of the step: the trial adds nothing to it.
        with tf.init_scope():
            once, twice = _tried(call)
    except Exception as error:
        _warn(call.loss, f"it cannot be tried ({type(error).__name__}: {str(error)[:200]})")
        return True
    if np.isfinite(once) and np.isclose(once, twice, rtol=1e-4, atol=1e-7):
        return True
    if np.isfinite(once) and np.isclose(2 * once, twice, rtol=1e-4, atol=1e-7):
        return False
    _warn(call.loss, f"for a batch it is {once:.4g}, and with each row twice {twice:.4g}")
    return True


def _tried(call: _Call) -> tuple[float, float]:
    """The loss of a batch of drawn numbers, and of the batch in which each row occurs twice."""
    random = np.random.default_rng(1)
    batch = tf.nest.map_structure(lambda tensor: _drawn(random, tensor), call.inputs)
    twice = tf.nest.map_structure(lambda array: np.concatenate([array, array]), batch)
    outside, _thread.call = _thread.call, None
    try:
        once, again = (
            float(call.loss.call(*tf.nest.map_structure(tf.constant, arrays)))
            for arrays in (batch, twice)
        )
        return once, again
    finally:
        _thread.call = outside


def _drawn(random: np.random.Generator, tensor: tf.Tensor) -> np.ndarray:
    sizes = tensor.shape.as_list()[1:]  # fails where the rank is unknown
    shape = (_ROWS, *(_UNKNOWN if size is None else size for size in sizes))
    dtype = tensor.dtype.as_numpy_dtype
    if tensor.dtype.is_floating:
        return random.uniform(0.1, 0.9, shape).astype(dtype)
    return np.zeros(shape, dtype)


def _warn(loss: KerasLoss, why: str) -> None:
    _log.warning(
        "compile: loss %r returns one number for a batch, and %s: it is taken for a mean over the "
        "rows of a replica. A loss that returns one number for each row is exact on any number of "
        "replicas",
        loss.name,
        why,
    )
