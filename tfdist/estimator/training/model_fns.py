"""What model_fns need around them beside Keras 3."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf


def surround(context: Callable[[], AbstractContextManager[list[Any]]]) -> None:
    """Has `Estimator` call model_fns in a context that keeps their graphs right.

    Args:
      context: returns it. It yields a list that in the end has the operations which the `train_op`
        must run as well.
    """
    from tensorflow_estimator.python.estimator.estimator import Estimator

    original = Estimator._call_model_fn

    @functools.wraps(original)
    def _call_model_fn(self, features, labels, mode, config):
        with context() as updates:
            spec = original(self, features, labels, mode, config)
            if spec.train_op is None or not updates:
                return spec
            return spec._replace(train_op=tf.group(spec.train_op, *updates))

    Estimator._call_model_fn = _call_model_fn
