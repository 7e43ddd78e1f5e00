"""Collectives that may start in any order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf


@contextlib.contextmanager
def independent_collectives() -> Iterator[None]:
    """Exempts the collectives made within from TensorFlow's order of stateful ops.

    In a function each would start only after the previous one has ended. Ours match by key (see
    collective_keys.py), so they may start in any order.
    """
    if tf.executing_eagerly():
        yield
        return
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    yield
    if graph.experimental_acd_manager is not None:
        for op in graph.get_operations()[before:]:
            if op.op_def.is_distributed_communication:
                graph.experimental_acd_manager.run_independently(op)
