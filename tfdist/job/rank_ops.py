"""A process's rank and the number of ranks as tensors, looked up whenever they are computed.

`tfdist.rank()` in a `tf.function` is a Python number, which becomes a constant of the graph. These
stay right when a graph outlives what it was traced in. They call back into Python: a SavedModel
that holds one runs in this process only.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfdist import ops
from tfdist.job import process
from tfdist.ops.collectives.calls import resolve


def rank_op(communicator: ops.Communicator | None = None) -> tf.Tensor:
    """Returns this process's rank, looked up at each execution.

    Args:
      communicator: the ranks; `None` means those of the job.

    Returns:
      An int32 scalar.

    Raises:
      TypeError: `communicator` is no `tfdist.ops.Communicator`.
      tfdist.errors.NotInitializedError: executed before `tfdist.init()` or a strategy, or in a task
        that does not train; in a graph a `tf.errors.OpError` with its text.

    Example:
      >>> _ = tfdist.init()
      >>> int(tfdist.rank_op())
      0
    """
    return _looked_up(process.rank if communicator is None else _attribute(communicator, "rank"))


def size_op(communicator: ops.Communicator | None = None) -> tf.Tensor:
    """Returns the number of ranks, looked up at each execution.

    Args:
      communicator: the ranks; `None` means those of the job.

    Returns:
      An int32 scalar.

    Raises:
      As `rank_op`.
    """
    return _looked_up(process.size if communicator is None else _attribute(communicator, "size"))


def local_rank_op() -> tf.Tensor:
    """Returns this process's number on its host, looked up at each execution.

    Returns:
      An int32 scalar; see `tfdist.local_rank`.

    Raises:
      As `rank_op`.
    """
    return _looked_up(process.local_rank)


def local_size_op() -> tf.Tensor:
    """Returns the number of ranks on this host, looked up at each execution.

    Returns:
      An int32 scalar; see `tfdist.local_size`.

    Raises:
      As `rank_op`.
    """
    return _looked_up(process.local_size)


def _attribute(communicator: ops.Communicator, name: str) -> Callable[[], int]:
    known = resolve(communicator, f"tfdist.{name}_op")
    return lambda: getattr(known, name)


def _looked_up(find: Callable[[], int]) -> tf.Tensor:
    # Stateful, so that TensorFlow does not compute it once and for all.
    number = tf.numpy_function(lambda: np.int32(find()), [], tf.int32, stateful=True)
    if tf.is_symbolic_tensor(number):
        number.set_shape([])
    return number
