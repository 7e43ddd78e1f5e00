"""Ends synchronous workers at the same step.

A worker whose input has ended, or whose hook requests a stop, cannot stop by itself: the others
would wait for its gradients. Therefore each step begins with a check that all workers continue, and
each worker fetches its next batch before the check. A worker that was told to end (SIGTERM) says so
in the check.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tfdist._types import Nested
from tfdist.preemption.notice import notice

v1 = tf.compat.v1


class BatchAhead:
    """An iterator whose next batch is fetched before the step that uses it.

    Args:
      iterator: of a distributed dataset.
    """

    def __init__(self, iterator: tf.distribute.DistributedIterator) -> None:
        self._iterator = iterator
        self.fetch: tf.Operation | None = None

    def get_next(self) -> Nested:
        """Returns the batch that `fetch` has fetched, once."""
        batch = self._iterator.get_next()
        tensors = tf.nest.flatten(batch, expand_composites=True)
        name = v1.get_default_graph().unique_name("batch_ahead", mark_as_used=True)
        with tf.device("/device:CPU:0"):
            self.fetch = tf.raw_ops.Stage(values=tensors, shared_name=name)
            fetched = tf.raw_ops.Unstage(dtypes=[t.dtype for t in tensors], shared_name=name)
        for result, tensor in zip(fetched, tensors, strict=True):
            result.set_shape(tensor.shape)
        return tf.nest.pack_sequence_as(batch, fetched, expand_composites=True)


class EndTogether(tf.compat.v1.train.SessionRunHook):
    """Ends the training on all workers before the step that one of them cannot make.

    It comes after all hooks that may stop at a step of their own choice.

    Args:
      batches: this worker's batches.
      total: sums a tensor over all workers.

    Attributes:
      is_preempted: the training has ended because a worker was told to end.
    """

    def __init__(self, batches: BatchAhead, total: Callable[[tf.Tensor], tf.Tensor]) -> None:
        self._batches = batches
        self._sum = total
        self._wants_to_stop = False
        self.is_preempted = False

    def begin(self) -> None:
        """Adds the check to the graph."""
        self._ends = v1.placeholder(tf.float32, [2])
        self._total = self._sum(self._ends)

    def before_run(self, run_context: tf.compat.v1.train.SessionRunContext) -> None:
        """Raises the error that ends a training session, if a worker has ended."""
        session = run_context.session
        ends = self._wants_to_stop or not self._fetch(session)
        told = notice.at is not None
        at_end, told_to_end = session.run(self._total, {self._ends: [float(ends), float(told)]})
        # Of a training that is at its end nothing is left to be done.
        self.is_preempted = bool(told_to_end) and not at_end
        if at_end or told_to_end:
            raise tf.errors.OutOfRangeError(None, None, "a worker has come to its end")

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        """Keeps a request to stop until the next step begins."""
        if run_context.stop_requested:
            self._wants_to_stop = True
            run_context._stop_requested = False

    def _fetch(self, session: tf.compat.v1.Session) -> bool:
        try:
            session.run(self._batches.fetch)
        except tf.errors.OutOfRangeError:
            return False
        return True


def agreed_and_others(
    hooks: list[tf.compat.v1.train.SessionRunHook],
) -> tuple[list[tf.compat.v1.train.SessionRunHook], list[tf.compat.v1.train.SessionRunHook]]:
    """Splits hooks into hooks that stop all workers at the same step anyway, and the others."""
    agreed = [h for h in hooks if type(h) is v1.train.StopAtStepHook]
    return agreed, [h for h in hooks if h not in agreed]
