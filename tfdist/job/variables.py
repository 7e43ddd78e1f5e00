"""Broadcast of variables from one rank to all."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from tfdist import ops
from tfdist._types import KerasVariable


def broadcast_variables(
    variables: Iterable[KerasVariable],
    root_rank: int = 0,
    *,
    communicator: ops.Communicator | None = None,
    timeout: float | None = None,
) -> tf.Operation | None:
    """Assigns the values of rank `root_rank` to the variables of every rank.

    Call it when all variables exist, an optimizer's after `optimizer.build`, on every rank with the
    same variables in the same order. All values are sent as one message.

    Args:
      variables: `tf.Variable`s or Keras variables, such as `model.variables` and
        `optimizer.variables`, of any dtype.
      root_rank: the rank whose values all ranks get.
      communicator: the ranks; `None` means the job's ranks.
      timeout: seconds; `None` means 600, 0 means for ever.

    Returns:
      None; in a TensorFlow 1 graph the operation that assigns the values.

    Raises:
      TypeError: an element of `variables` is no variable.
      tf.errors.InvalidArgumentError: the ranks have different variables, or the root does not
        exist.
      tf.errors.UnavailableError: a rank died or left.
      tf.errors.DeadlineExceededError: a rank did not come in time.

    Example:

    ```python
    tfdist.init()
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    tfdist.broadcast_variables(model.variables)
    ```
    """
    variables = list(variables)
    for position, variable in enumerate(variables):
        if not callable(getattr(variable, "assign", None)):
            raise TypeError(
                f"broadcast_variables: expected variables, received {type(variable).__name__} at "
                f"position {position}"
            )
    if not variables:
        return None
    first = getattr(variables[0], "path", None) or variables[0].name
    rest = f" and {len(variables) - 1} more" if len(variables) > 1 else ""
    values = ops.broadcast(
        [tf.convert_to_tensor(variable) for variable in variables],
        communicator,
        root_rank,
        label=f"{first}{rest}",
        timeout=timeout,
    )
    done = [variable.assign(value) for variable, value in zip(variables, values, strict=True)]
    if tf.executing_eagerly() or tf.inside_function():
        return None
    return tf.group(*done)
