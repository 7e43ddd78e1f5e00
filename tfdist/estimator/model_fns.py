"""What model_fns need around them, in whichever graph and on whichever replica."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1


@contextlib.contextmanager
def _no_updates() -> Iterator[list[Any]]:
    yield []


def surround(keras: Callable[[], AbstractContextManager[list[Any]]] = _no_updates) -> None:
    """Has `Estimator` call model_fns in a context that keeps their graphs right.

    Args:
      keras: returns a context for the call. It yields a list that in the end has the operations
        which the `train_op` must run as well.
    """
    from tensorflow_estimator.python.estimator.estimator import Estimator

    original = Estimator._call_model_fn

    @functools.wraps(original)
    def _call_model_fn(self, features, labels, mode, config):
        with _only_whole_variables(), keras() as updates:
            spec = original(self, features, labels, mode, config)
            if spec.train_op is None or not updates:
                return spec
            return spec._replace(train_op=tf.group(spec.train_op, *updates))

    Estimator._call_model_fn = _call_model_fn


def _only_whole_variables() -> AbstractContextManager[None]:
    """Keeps what a strategy makes a variable of out of the graph's collections.

    For each `tf.Variable`, such as an optimizer's slot, the strategy asks for its parts with
    `collections=[]` and lists the whole itself. TensorFlow heeds that for `tf.compat.v1.Variable`
    only: checkpoints would have all replicas' slots, and could not be read with fewer replicas.
    """
    # The lowest priority: called last, for the parts.
    return v1.get_default_graph()._variable_creator_scope(_make_unlisted, priority=0)


def _make_unlisted(next_creator: Callable, **kwargs: Any) -> Any:
    variable = next_creator(**kwargs)
    if kwargs.get("collections") == []:
        listed = v1.get_default_graph().get_collection_ref(v1.GraphKeys.GLOBAL_VARIABLES)
        if listed and listed[-1] is variable:
            listed.pop()
    return variable
