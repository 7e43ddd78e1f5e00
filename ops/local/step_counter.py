"""Counts training steps where they are executed: in graphs, in loops of graphs, and eagerly."""

from __future__ import annotations

import ctypes
import threading

import tensorflow as tf

from tfdist.ops import library

_FUNCTIONS = library.CFunctions(
    "tfdist_",
    returning={"steps_counted": ([], ctypes.c_int64), "rows_counted": ([], ctypes.c_int64)},
)


_lock = threading.Lock()
# Steps and rows that Python has counted.
_of_python = [0, 0]


def count_step(rows: tf.Tensor, steps: int = 1) -> None:
    """Counts a step of this process when it is executed.

    In an elastic step it is executed once all collectives of the step have ended.

    Args:
      rows: the number of rows of the step's batch, int64[].
      steps: 0 if the step itself is counted elsewhere.
    """
    with tf.device("/device:CPU:0"):
        op = library.graph_ops().tfdist_count_step(rows, steps=steps)
    if op is not None and op.graph.experimental_acd_manager is not None:
        # Else later stateful ops would wait for it: in an elastic step also collectives, for which
        # it waits itself.
        op.graph.experimental_acd_manager.run_independently(op)


def count_step_now(rows: int) -> None:
    """Counts a step of this process, with the number of its rows."""
    with _lock:
        _of_python[0] += 1
        _of_python[1] += rows


def counted() -> tuple[int, int]:
    """Returns the number of steps that this process has executed, and of their rows."""
    with _lock:
        steps, rows = _of_python
    return steps + _FUNCTIONS.steps_counted(), rows + _FUNCTIONS.rows_counted()
