"""Which variables the workers share, and under which names."""

from __future__ import annotations

import contextlib
import contextvars
import re
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

_counts_own: contextvars.ContextVar[bool] = contextvars.ContextVar("counts_own", default=False)
_of_metric: contextvars.ContextVar[bool] = contextvars.ContextVar("of_metric", default=False)
_path: contextvars.ContextVar[str | None] = contextvars.ContextVar("path", default=None)

# Variables that each worker has for itself, whatever their type. A shared learning rate would undo
# what a schedule or callback sets. Changes of a loss scale, which is doubled and halved, cannot be
# summed over workers; nor can gradients accumulated for a later step, or states of random
# generators.
_OWN = re.compile(
    "(.*[/_])?(learning_rate|dynamic_scale|step_counter|gradient_accumulator|seed_generator_state"
    "|StateVar)(_[0-9]+)?"
)
_SHARED_DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)


@contextlib.contextmanager
def called(path: str) -> Iterator[None]:
    """Names the variables made within: Keras 3 does not tell TensorFlow their full paths."""
    token = _path.set(path)
    try:
        yield
    finally:
        _path.reset(token)


@contextlib.contextmanager
def own_iterations() -> Iterator[None]:
    """Optimizers made within count this worker's steps, not those of all workers."""
    token = _counts_own.set(True)
    try:
        yield
    finally:
        _counts_own.reset(token)


@contextlib.contextmanager
def of_metric() -> Iterator[None]:
    """Variables made within belong to a metric: each worker has its own until they are reduced."""
    token = _of_metric.set(True)
    try:
        yield
    finally:
        _of_metric.reset(token)


def full_name(name: str | None) -> str:
    """Returns the name of a new variable, including the current name scopes."""
    if _path.get() is not None:
        return _path.get()
    name = (name or "Variable").partition(":")[0]
    scope = tf.get_current_name_scope()
    return f"{scope}/{name}" if scope else name


def is_shared(name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether workers share a variable.

    Args:
      name: from `full_name`.
      arguments: of `tf.Variable`.
    """
    if _of_metric.get():
        return False
    on_read = arguments.get("synchronization") == tf.VariableSynchronization.ON_READ
    if on_read and arguments.get("aggregation") != tf.VariableAggregation.MEAN:
        return False  # metrics; variables that are read as a mean are moving statistics
    if _OWN.fullmatch(name) or (_counts_own.get() and name.endswith("iterations")):
        return False
    dtype = arguments.get("dtype")
    if dtype is None:
        value = arguments.get("initial_value")
        # With a function as initial value, a TensorFlow 2 variable has a `dtype` or is float32.
        dtype = tf.float32 if callable(value) else tf.convert_to_tensor(value).dtype
    return tf.as_dtype(dtype) in _SHARED_DTYPES
