"""Counts the steps of an `Estimator` and their rows, for the metrics of its task."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tfdist._types import Nested
from tfdist.ops.local.step_counter import count_step_now

if TYPE_CHECKING:
    from tensorflow_estimator.python.estimator.api._v2.estimator import EstimatorSpec


class StepCounts(tf.compat.v1.train.SessionRunHook):
    """Counts each step that a session has made."""

    def __init__(self) -> None:
        # Of each replica's batch.
        self._rows: list[tf.Tensor] = []
        self._total: tf.Tensor | None = None

    def call_model_fn(self, call: Callable, features: Nested, *arguments: Any) -> EstimatorSpec:
        """Calls a model_fn, and notes the rows of its features.

        Args:
          call: calls it.
          features: of a replica, as the model_fn receives them.
          *arguments: the others of `call`.
        """
        for leaf in tf.nest.flatten(features):
            if isinstance(leaf, tf.SparseTensor):
                self._rows.append(leaf.dense_shape[0])
                break
            if tf.is_tensor(leaf) and leaf.shape.rank != 0:
                self._rows.append(tf.shape(leaf, tf.int64)[0])
                break
        return call(features, *arguments)

    def begin(self) -> None:
        self._total = tf.add_n(self._rows) if self._rows else tf.constant(0, tf.int64)

    def before_run(
        self, run_context: tf.compat.v1.train.SessionRunContext
    ) -> tf.compat.v1.train.SessionRunArgs:
        return tf.compat.v1.train.SessionRunArgs(self._total)

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        count_step_now(int(run_values.results))
