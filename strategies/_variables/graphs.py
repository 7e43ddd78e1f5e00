"""Where operations go that are made now."""

from __future__ import annotations

import tensorflow as tf


def current_graph() -> tf.Graph | None:
    """Returns the graph that is being built; `None` if operations run at once."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def outermost_graph() -> tf.Graph | None:
    """The TensorFlow 1 graph that is being built, if one is."""
    if tf.compat.v1.executing_eagerly_outside_functions():
        return None
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "outer_graph", None) is not None:
        graph = graph.outer_graph
    return graph


def in_graph_of_tensorflow_1() -> bool:
    """Whether operations are added to a TensorFlow 1 graph itself, not to a function in it."""
    graph = tf.compat.v1.get_default_graph()
    return not tf.executing_eagerly() and graph is outermost_graph()


def graph_of(variable: tf.Variable) -> tf.Graph | None:
    """The TensorFlow 1 graph that a variable is of, if it is of one."""
    handle = variable.handle
    return None if isinstance(handle, tf.__internal__.EagerTensor) else handle.graph
