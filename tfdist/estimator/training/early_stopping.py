"""Stops training early, on all workers.

The package's own hook for strategies lets all workers run an extra step that sums their wishes to
stop. Each worker decides when to run it from a global step that it reads while others change it, so
workers may wait for each other in different steps.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf
from tensorflow_estimator.python.estimator import early_stopping

from tfdist.estimator.training.worker_states import SharedNumber
from tfdist.strategies import ParameterServerStrategy

v1 = tf.compat.v1


def stop_all_workers() -> None:
    """Makes the package use the hook below if there is a strategy."""
    early_stopping._MultiWorkerEarlyStoppingHook = EarlyStoppingHook


class EarlyStoppingHook(tf.compat.v1.train.SessionRunHook):
    """Ends the training on all workers when one of them stops.

    Synchronous workers end together anyway. Asynchronous workers read on the parameter servers that
    one has stopped, and stop too.

    Args:
      should_stop_fn: returns whether to stop; each worker calls its own.
      run_every_steps: the number of global steps between two calls.
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
        """Adds the tensors that are read in each step to the graph."""
        self._step = v1.train.get_global_step()
        # Unused here, but checkpoints of an Estimator that stops early contain it.
        early_stopping._get_or_create_stop_var()
        strategy = tf.distribute.get_strategy()
        self._is_chief = strategy.extended.should_checkpoint
        if isinstance(strategy, ParameterServerStrategy):
            self._signal = SharedNumber(strategy, "stops_early")

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        """Calls `should_stop_fn` if it is time, and reads the other workers' signal."""
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

    def end(self, session: tf.compat.v1.Session) -> None:
        """Resets the signal, after all workers have ended, for a later training."""
        if self._signal is not None and self._is_chief:
            self._signal.tell(session, 0)
