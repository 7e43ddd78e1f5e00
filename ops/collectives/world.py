"""The ranks of a communicator as tensors."""

from __future__ import annotations

import tensorflow as tf

from tfdist.ops import library
from tfdist.ops.collectives.communicator import Communicator


def world(communicator: Communicator) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns this process's rank and the number of ranks, int32[] each, at each execution.

    In a function they follow `Communicator.reconfigure`.

    Args:
      communicator: the ranks.

    Raises:
      tf.errors.FailedPreconditionError: it was closed.
    """
    rank, size = library.graph_ops().tfdist_world(communicator=communicator.handle)
    return rank, size
