"""Counts training steps where they are executed: in graphs, in loops of graphs, and eagerly."""

from __future__ import annotations

import ctypes

import tensorflow as tf

from tfdist.ops import library

_FUNCTIONS = library.CFunctions(
    "tfdist_",
    returning={"steps_counted": ([], ctypes.c_int64), "rows_counted": ([], ctypes.c_int64)},
)


def count_step(rows: tf.Tensor) -> None:
    """Counts a step of this process when it is executed.

    In an elastic step it is executed once all collectives of the step have ended.

    Args:
      rows: the number of rows of the step's batch, int64[].
    """
    with tf.device("/device:CPU:0"):
        library.graph_ops().tfdist_count_step(rows)


def counted() -> tuple[int, int]:
    """Returns the number of steps that this process has executed, and of their rows."""
    return _FUNCTIONS.steps_counted(), _FUNCTIONS.rows_counted()
