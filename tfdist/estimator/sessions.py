"""Sessions that begin with initialized variables, and how they fail."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

# Public only as a base class of TensorFlow's own creators.
from tensorflow.python.training.monitored_session import SessionCreator
from tensorflow.python.training.session_manager import SessionManager

__all__ = ["SessionCreator", "brief_failures", "initialized_session"]


def initialized_session(scaffold: Any, config: Any, restores: bool = False) -> tf.compat.v1.Session:
    """Makes a session of the default graph, and initializes its variables.

    Args:
      scaffold: a `tf.compat.v1.train.Scaffold`; it is finalized, and the graph with it.
      config: a `ConfigProto`.
      restores: a checkpoint follows, so that the scaffold's `init_fn` is not called.
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
        init_fn=None if restores else scaffold.init_fn,
        config=config,
    )


@contextlib.contextmanager
def brief_failures() -> Iterator[None]:
    """Within, what a peer's failure did is told without how each operation came to be."""
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.DeadlineExceededError) as error:
        plain = error.__context__ if isinstance(error.__context__, tf.errors.OpError) else error
        raise type(error)(None, None, plain.message.partition("\n")[0]) from None
