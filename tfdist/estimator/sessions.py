"""Sessions that begin with initialized variables."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

# Public only as a base class of TensorFlow's own creators.
from tensorflow.python.training.monitored_session import SessionCreator
from tensorflow.python.training.session_manager import SessionManager

__all__ = ["SessionCreator", "initialized_session"]


def initialized_session(scaffold: Any, config: Any, run_init_fn: bool) -> tf.compat.v1.Session:
    """Makes a session of the default graph, and initializes its variables.

    Args:
      scaffold: a `tf.compat.v1.train.Scaffold`; it is finalized, and the graph with it.
      config: a `ConfigProto`.
      run_init_fn: whether to call the scaffold's `init_fn`, if it has one.
    """
    scaffold.finalize()
    manager = SessionManager(
        local_init_op=scaffold.local_init_op,
        local_init_feed_dict=scaffold.local_init_feed_dict,
        ready_op=scaffold.ready_op,
        ready_for_local_init_op=scaffold.ready_for_local_init_op,
        graph=tf.compat.v1.get_default_graph(),
    )
    return manager.prepare_session(
        "",
        init_op=scaffold.init_op,
        init_feed_dict=scaffold.init_feed_dict,
        init_fn=scaffold.init_fn if run_init_fn else None,
        config=config,
    )
