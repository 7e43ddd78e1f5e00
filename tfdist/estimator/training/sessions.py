"""Sessions whose variables are initialized, and their error messages."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import tensorflow as tf

# Public only as a base class of TensorFlow's own creators.
from tfdist.internals.tensorflow import SessionCreator, SessionManager

__all__ = ["SessionCreator", "brief_failures", "initialized_session", "restore"]


def initialized_session(
    scaffold: tf.compat.v1.train.Scaffold,
    config: tf.compat.v1.ConfigProto | None,
    init_fn: Callable[[tf.compat.v1.Session], None] | None = None,
) -> tf.compat.v1.Session:
    """Makes a session of the default graph, and initializes its variables.

    Args:
      scaffold: a `tf.compat.v1.train.Scaffold`; it is finalized, and the graph with it. Its own
        `init_fn` is not called.
      config: a `ConfigProto`.
      init_fn: called with the session before the check that all variables have values.
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
        init_fn=init_fn,
        config=config,
    )


def restore(
    scaffold: tf.compat.v1.train.Scaffold, session: tf.compat.v1.Session, checkpoint: str
) -> None:
    """Restores a checkpoint; the saver then manages, and deletes, earlier ones.

    Args:
      scaffold: has been finalized.
      session: of its graph.
      checkpoint: the latest one of its directory.
    """
    scaffold.saver.restore(session, checkpoint)
    state = tf.train.get_checkpoint_state(os.path.dirname(checkpoint))
    if state is not None:
        scaffold.saver.recover_last_checkpoints(state.all_model_checkpoint_paths)


@contextlib.contextmanager
def brief_failures() -> Iterator[None]:
    """Shortens the message of a peer's failure: no stack of each operation."""
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.DeadlineExceededError) as error:
        plain = error.__context__ if isinstance(error.__context__, tf.errors.OpError) else error
        raise type(error)(None, None, plain.message.partition("\n")[0]) from None
