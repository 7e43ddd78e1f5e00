"""The rank and the number of ranks as tensors, which are evaluated at each execution.

`tfdist.rank()` in a `tf.function` is a Python number, which becomes a constant of the graph. These
ops stay correct when a graph outlives the job in which it was traced. They call Python: a
SavedModel with such an op runs in this process only.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfdist import ops
from tfdist.job import process
from tfdist.ops.collectives.calls import resolve


def rank_op(communicator: ops.Communicator | None = None) -> tf.Tensor:
    """Returns this process's rank, evaluated at each execution.

    Args:
      communicator: the ranks; `None` means the job's ranks.

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
    return _evaluated(process.rank if communicator is None else _attribute(communicator, "rank"))


def size_op(communicator: ops.Communicator | None = None) -> tf.Tensor:
    """Returns the number of ranks, evaluated at each execution.

    Args:
      communicator: the ranks; `None` means the job's ranks.

    Returns:
      An int32 scalar.

    Raises the errors of `rank_op`.
    """
    return _evaluated(process.size if communicator is None else _attribute(communicator, "size"))


def local_rank_op() -> tf.Tensor:
    """Returns this process's rank on its host, evaluated at each execution.

    Returns:
      An int32 scalar; see `tfdist.local_rank`.

    Raises the errors of `rank_op`.
    """
    return _evaluated(process.local_rank)


def local_size_op() -> tf.Tensor:
    """Returns the number of ranks on this host, evaluated at each execution.

    Returns:
      An int32 scalar; see `tfdist.local_size`.

    Raises the errors of `rank_op`.
    """
    return _evaluated(process.local_size)


def _attribute(communicator: ops.Communicator, name: str) -> Callable[[], int]:
    known = resolve(communicator, f"tfdist.{name}_op")
    return lambda: getattr(known, name)


def _evaluated(find: Callable[[], int]) -> tf.Tensor:
    # Stateful, so that TensorFlow does not fold it into a constant.
    value = tf.numpy_function(lambda: np.int32(find()), [], tf.int32, stateful=True)
    if tf.is_symbolic_tensor(value):
        value.set_shape([])
    return value
