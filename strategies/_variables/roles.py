"""Which variables the workers share, and what they are called in all of them."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from tfdist.ps.variable_scopes import Role, current_path, current_role

# Variables that are each worker's own, whose creators tell a strategy only their names. The names
# are exact, without the scopes before them. Creators in Keras 3 say it by a role
# (tfdist/keras/hooks/variable_roles.py), except the learning rate: its optimizer makes it together
# with the step count, which is shared.
_UNSHARED_NAMES = {
    "learning_rate": "a shared one would undo what a schedule or a callback sets",
    "current_learning_rate": "tf_keras: the value of a schedule at the worker's own step",
    "StateVar": "tf.random.Generator: each worker draws numbers of its own",
}
_SHARED_DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)


def full_name(name: str | None) -> str:
    """Returns the name of a variable that is about to be made, with the scopes it is made in."""
    path = current_path()
    if path is not None:
        return path
    name = (name or "Variable").partition(":")[0]
    scope = tf.get_current_name_scope()
    return f"{scope}/{name}" if scope else name


def is_table() -> bool:
    """Whether the variable that is about to be made stands for a table."""
    return current_role() is Role.TABLE


def is_shared(name: str, arguments: Mapping[str, object]) -> bool:
    """Whether workers share a variable.

    Args:
      name: from `full_name`.
      arguments: of `tf.Variable`.
    """
    if current_role() is Role.UNSHARED:
        return False
    on_read = arguments.get("synchronization") == tf.VariableSynchronization.ON_READ
    if on_read and arguments.get("aggregation") != tf.VariableAggregation.MEAN:
        return False  # metrics; variables that are read as a mean are moving statistics
    if name.rpartition("/")[2] in _UNSHARED_NAMES:
        return False
    dtype = arguments.get("dtype")
    if dtype is None:
        value = arguments.get("initial_value")
        # A variable of the TensorFlow 2 API with a function says its dtype, or makes a float.
        dtype = tf.float32 if callable(value) else tf.convert_to_tensor(value).dtype
    return tf.as_dtype(dtype) in _SHARED_DTYPES
