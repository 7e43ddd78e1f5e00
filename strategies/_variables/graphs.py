"""The graph that is being built, and which variables it lists."""

from __future__ import annotations

import tensorflow as tf

from tfdist.internals.tensorflow import AggregatingVariable, DistributedVariable


def current_graph() -> tf.Graph | None:
    """Returns the graph that is being built; `None` if operations run at once."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def outermost_graph() -> tf.Graph | None:
    """Returns the TensorFlow 1 graph that is being built, or `None`."""
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
    """Returns a variable's TensorFlow 1 graph, or `None`."""
    handle = variable.handle
    return None if isinstance(handle, tf.__internal__.EagerTensor) else handle.graph


def unlist_components(variable: tf.Variable) -> tf.Variable:
    """Removes the components of a new variable from its graph's list of variables.

    The graph then lists the variable once, as a whole. TensorFlow does so only for variables of
    `tf.compat.v1.get_variable`, not for `tf.Variable`, which Keras's optimizers and layers use. An
    Estimator saves the listed variables: with components its checkpoints would fit this number of
    replicas only.

    Args:
      variable: a strategy's, or an ordinary one.

    Returns:
      `variable`.
    """
    if isinstance(variable, DistributedVariable):
        components = variable.values
    else:
        components = [variable.get()] if isinstance(variable, AggregatingVariable) else []
    if components and not tf.executing_eagerly():
        graph = tf.compat.v1.get_default_graph()
        listed = graph.get_collection_ref(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        listed[:] = [v for v in listed if not any(v is c for c in components)]
    return variable
