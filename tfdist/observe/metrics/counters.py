"""Counts training steps and their rows.

In a loop that calls `strategy.run`, a run is a training step if it updates a trainable variable.
That is known when the run's function is traced, or runs eagerly: the strategy's `extended` calls
`note_update` then. An op behind the run counts its executions. A function that was traced before is
remembered, since a later trace of its caller does not trace it again.

Without a strategy a reduction of gradients by the Horovod interface is a step. Its rows are told
apart from it: by `fit`, or by the loop. Sessions of an `Estimator` count what they have run
(tfdist/estimator/training/step_counts.py).
"""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import tensorflow as tf

from tfdist._types import AnyTensor, Gradient, Nested

# There is no public way to tell whether XLA must compile the function that is being traced.
from tfdist.internals.tensorflow import GraphOrParentsInXlaContext
from tfdist.job import process
from tfdist.ops.local.step_counter import count_step

_Result = TypeVar("_Result")
_log = logging.getLogger("tfdist.observe.metrics")
_thread = threading.local()


class StepCounter:
    """Counts the training steps of one strategy."""

    def __init__(self) -> None:
        # The functions whose runs are training steps.
        self._training: weakref.WeakSet = weakref.WeakSet()

    def run(
        self,
        strategy: tf.distribute.Strategy,
        fn: Callable,
        args: Sequence,
        kwargs: Mapping[str, object],
        run: Callable[[], _Result],
    ) -> _Result:
        """Runs a function, and counts that if it is a training step.

        Args:
          strategy: the strategy.
          fn: the function that each replica calls.
          args, kwargs: its arguments; the rows of the step are counted in the first tensor among
          them that is no scalar, over all replicas of this process.
          run: calls it.

        Returns:
          The result of `run`.
        """
        before = getattr(_thread, "updates", None)
        _thread.updates = 0
        try:
            result = run()
            trains = _thread.updates > 0
        finally:
            _thread.updates = before
        name = _identity(fn)
        if trains:
            self._training.add(name)
        if name in self._training and _can_count():
            # The outputs of the replicas: a step that fails is not counted.
            ends = [leaf for leaf in _local_leaves(strategy, result) if tf.is_tensor(leaf)]
            with tf.control_dependencies(ends):
                count_step(_rows(strategy, (args, kwargs)))
        return result


def note_update() -> None:
    """Notes that the function that runs, or is being traced, updates a trainable variable."""
    updates = getattr(_thread, "updates", None)
    if updates is not None:
        _thread.updates = updates + 1


def count_reduction(reduced: Sequence[Gradient]) -> None:
    """Counts a step that has reduced its gradients; its rows are counted by `count_samples`.

    Args:
      reduced: the gradients; the step is counted once they exist.
    """
    if process.current.counts_steps and _can_count():
        dense = [gradient for gradient in reduced if tf.is_tensor(gradient)]
        with tf.control_dependencies(dense):
            count_step(tf.constant(0, tf.int64))


def count_samples(batch: Nested) -> None:
    """Counts the rows of a batch, for the metrics of a loop with `tfdist.DistributedGradientTape`.

    Call it in each step. `fit` and `strategy.run` count rows by themselves. It does nothing in a
    process without metrics (docs/operate/metrics.md).

    Args:
      batch: a tensor, or a structure of tensors; the rows are counted in the first tensor that is
        no scalar.

    Example:

    ```python
    @tf.function
    def step(x, y):
        tfdist.count_samples(x)
        with tf.GradientTape() as tape:
            loss = loss_of(model(x), y)
        tape = tfdist.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
    ```
    """
    if process.current.counts_steps and _can_count():
        count_step(_rows(tf.distribute.get_strategy(), batch), steps=0)


def _identity(fn: Callable) -> object:
    """Returns what is the same object for each run of the same function."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    # A bound method is a new object each time.
    return getattr(fn, "__func__", fn)


def _can_count() -> bool:
    if not tf.compat.v1.executing_eagerly_outside_functions():
        return False
    if GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        _warn_of_xla()
        return False
    return True


@functools.cache
def _warn_of_xla() -> None:
    _log.warning(
        "training steps are not counted: strategy.run is called within a function that XLA "
        "compiles (jit_compile=True), which cannot contain tfdist's ops"
    )


def _rows(strategy: tf.distribute.Strategy, arguments: Nested) -> tf.Tensor:
    """Returns the number of rows of the first batch in `arguments`, int64[]; 0 without one."""
    for leaf in tf.nest.flatten(arguments):
        parts = strategy.experimental_local_results(leaf)
        if all(_has_rows(part) for part in parts):
            return tf.add_n([_rows_of(part) for part in parts])
    return tf.constant(0, tf.int64)


def _has_rows(value: object) -> bool:
    shape = getattr(value, "shape", None)
    return shape is not None and bool(tf.TensorShape(shape).rank)


def _rows_of(value: AnyTensor) -> tf.Tensor:
    if isinstance(value, tf.RaggedTensor):
        return value.nrows(tf.int64)
    if isinstance(value, tf.SparseTensor):
        return value.dense_shape[0]
    return tf.shape(value, tf.int64)[0]


def _local_leaves(strategy: tf.distribute.Strategy, result: Nested) -> list:
    return [
        part
        for leaf in tf.nest.flatten(result)
        for part in strategy.experimental_local_results(leaf)
    ]
