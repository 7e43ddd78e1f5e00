"""Calls around a model's `train_step` or `test_step`, which may be a `tf.function`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist._types import Nested, StepFunction
from tfdist.internals.tensorflow import make_decorator

autograph = tf.__internal__.autograph


def around(step: StepFunction, call: Callable[[StepFunction, Nested], Nested]) -> Any:
    """Returns a step that runs within a call of ours.

    Args:
      step: takes a replica's batch.
      call: takes the step and a batch; returns the step's results.
    """
    if isinstance(step, tf.types.experimental.PolymorphicFunction):
        # Strategies take a `tf.function` apart: the replicas meet within it, not around it.
        function = around(step.python_function, call)
        return make_decorator(function, step._clone(python_function=function))

    def run(data: Nested) -> Nested:
        # AutoGraph leaves functions of tfdist out, but not the user's.
        return call(autograph.tf_convert(step, autograph.control_status_ctx()), data)

    return run
