"""Which variables a graph lists."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.distribute.ps_values import AggregatingVariable
from tensorflow.python.distribute.values import DistributedVariable


def list_whole(variable: tf.Variable) -> tf.Variable:
    """Sees that a variable just made is listed in its graph, and what it consists of is not.

    TensorFlow does so for `tf.compat.v1.get_variable` alone, not for `tf.Variable`, with which
    Keras's optimizers and layers make theirs. An Estimator saves what is listed: its checkpoints
    would hold the parts too, and fit this number of replicas only.

    Args:
      variable: a strategy's, or an ordinary one.

    Returns:
      `variable`.
    """
    if isinstance(variable, DistributedVariable):
        parts = variable.values
    else:
        parts = [variable.get()] if isinstance(variable, AggregatingVariable) else []
    if parts and not tf.executing_eagerly():
        graph = tf.compat.v1.get_default_graph()
        listed = graph.get_collection_ref(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        listed[:] = [v for v in listed if not any(v is part for part in parts)]
    return variable
