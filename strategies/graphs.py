"""Where operations go that are made now."""

from __future__ import annotations

import tensorflow as tf


def current_graph() -> tf.Graph | None:
    """Returns the graph that is being built; `None` if operations run at once."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
