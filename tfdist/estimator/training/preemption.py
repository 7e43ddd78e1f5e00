"""SIGTERM during the training of an `Estimator`: it ends like any training, and then the program.

Synchronous workers end at the same step, by `EndTogether`. Asynchronous ones end their own step.
The hook that saves checkpoints saves at the end, as always.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import tensorflow as tf

from tfdist.estimator.training.end_together import EndTogether
from tfdist.preemption.notice import notice
from tfdist.preemption.saved import NothingSavedError
from tfdist.preemption.training import StoppableSteps


class StopAtNotice(tf.compat.v1.train.SessionRunHook):
    """Ends the training of one asynchronous worker when any worker was told to end.

    Args:
      training: this worker's.

    Attributes:
      is_preempted: it has ended the training.
    """

    def __init__(self, training: StoppableSteps) -> None:
        self._training = training
        self.is_preempted = False

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        """Requests the end after the step in which the notice has come."""
        if self._training.ends_after_step():
            self.is_preempted = True
            run_context.request_stop()


@contextlib.contextmanager
def until_notice(training: StoppableSteps) -> Iterator[None]:
    """Takes SIGTERM as a notice within; the failure of another worker is none then."""
    try:
        with notice.expected():
            yield
    except (tf.errors.UnavailableError, tf.errors.DeadlineExceededError) as error:
        if not training.is_to_end:
            raise
        training.lost_peers(error)


def end_if_preempted(
    training: StoppableSteps,
    hooks: Sequence[tf.compat.v1.train.SessionRunHook],
    saved_to: str | None,
) -> None:
    """Ends the program if a training has ended because a worker was told to end.

    Args:
      training: this worker's.
      hooks: the hooks of the training.
      saved_to: where this worker, or the chief, has saved a checkpoint; `None`: nowhere.

    Raises:
      Preempted: it has.
    """
    kinds = (EndTogether, StopAtNotice)
    if any(isinstance(hook, kinds) and hook.is_preempted for hook in hooks):
        training.stop("the Estimator", lambda: _what_was_saved(saved_to))


def _what_was_saved(saved_to: str | None) -> str:
    if saved_to is None:
        raise NothingSavedError("the RunConfig saves no checkpoints")
    return f"saved to {saved_to}"
