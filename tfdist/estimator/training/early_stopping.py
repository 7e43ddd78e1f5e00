"""Stops training early, on all workers.

In the package's own hook for strategies all workers make a step of their own to add up who wants to
stop. But each finds the time for it in a global step that it reads while it changes, so that they
may wait for each other in different steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow_estimator.python.estimator import early_stopping

from tfdist.estimator.training.worker_states import SharedNumber
from tfdist.strategies import ParameterServerStrategy

v1 = tf.compat.v1


def stop_all_workers() -> None:
    """Lets the package make the hook below if there is a strategy."""
    early_stopping._MultiWorkerEarlyStoppingHook = EarlyStoppingHook


class EarlyStoppingHook(v1.train.SessionRunHook):
    """Ends the training on all workers when one of them says so.

    Those that are synchronous end together anyway. Those that are not see on the parameter servers
    that one has stopped, and stop too.

    Args:
      should_stop_fn: whether to stop; each worker asks its own.
      run_every_steps: how many global steps after the last question the next one is asked.
    """

    def __init__(
        self, should_stop_fn: Callable[[], bool], run_every_steps: int | None = None
    ) -> None:
        if not callable(should_stop_fn):
            raise TypeError(f"should_stop_fn: expected a function, received {should_stop_fn!r}")
        self._should_stop = should_stop_fn
        self._timer = v1.train.SecondOrStepTimer(every_steps=run_every_steps)
        self._signal: SharedNumber | None = None

    def begin(self) -> None:
        """Adds to the graph what is read at each step."""
        self._step = v1.train.get_global_step()
        # Of no use here, but checkpoints of an Estimator that stops early have it.
        early_stopping._get_or_create_stop_var()
        strategy = tf.distribute.get_strategy()
        self._is_chief = strategy.extended.should_checkpoint
        if isinstance(strategy, ParameterServerStrategy):
            self._signal = SharedNumber(strategy, "stops_early")

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Asks if it is time, and listens to the others."""
        session = run_context.session
        step = session.run(self._step)
        if self._signal is not None and session.run(self._signal.value):
            run_context.request_stop()
        elif self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            if self._should_stop():
                run_context.request_stop()
                if self._signal is not None:
                    self._signal.tell(session, 1)

    def end(self, session: Any) -> None:
        """After all workers have ended: takes the signal back, for a training that follows."""
        if self._signal is not None and self._is_chief:
            self._signal.tell(session, 0)
