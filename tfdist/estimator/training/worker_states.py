"""How workers of parameter servers tell each other where they are in an `Estimator`'s training.

Each has a variable on the servers, beside the model's, that no checkpoint has. Workers wait for the
chief to begin, since it may have a checkpoint to begin with; the chief waits for the workers before
it saves the last checkpoint, so that it has all they have learnt.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.errors import RendezvousTimeoutError

v1 = tf.compat.v1
_PAUSE = 0.05


class WorkerStates:
    """Knows, of the default graph's model, this worker's state and those it waits for.

    A state is a number that grows: that of the n-th training is 2n - 1 while it lasts, and 2n when
    it has ended.

    Args:
      strategy: the `ParameterServerStrategy`, in whose scope this is made.
      training: which one of the model this is, counted from 1.
    """

    def __init__(self, strategy: Any, training: int) -> None:
        extended = strategy.extended
        self._rank, workers = extended.rank, extended.config.workers
        self._client = extended.parameters.client
        self._patience = extended.config.worker_timeout
        self._trains, self._ended = 2 * training - 1, 2 * training
        others = range(1, workers) if self._rank == 0 else [0]
        numbers = {rank: SharedNumber(strategy, f"state_of_rank_{rank}") for rank in range(workers)}
        self._mine = numbers[self._rank]
        self._others = {rank: numbers[rank].value for rank in others}
        variables = [number.variable for number in numbers.values()]
        self._pull = self._client.pull(variables, begins_step=False)

    def begin(self, session: v1.Session, timeout: float) -> None:
        """Says that this worker has begun; if it is not the chief, waits until the chief has.

        Raises:
          RendezvousTimeoutError: it has not begun within `timeout` seconds.
        """
        self._mine.tell(session, self._trains)
        if self._rank == 0:
            return
        deadline = time.monotonic() + timeout
        while self._states(session)[0] < self._trains:
            if time.monotonic() > deadline:
                raise RendezvousTimeoutError(
                    f"rank {self._rank}: the chief did not give the parameter servers the model's "
                    f"first values within {timeout:g} s"
                )
            time.sleep(_PAUSE)

    def end(self, session: v1.Session, progress: Callable[[], int], last_step: float) -> None:
        """Says that this worker has ended; if it is the chief, waits until all have.

        Those that have not begun need not, once all steps have been made. It does not wait for
        those that have died either: until there has been no progress for the strategy's
        `worker_timeout`.

        Args:
          session: of this worker.
          progress: brings this worker's values up to date, and returns the global step.
          last_step: of the training.
        """
        self._client.flush(self._patience)
        self._mine.tell(session, self._ended)
        if self._rank > 0:
            return
        step, since = progress(), time.monotonic()
        while True:
            states = self._states(session).values()
            waits = [
                s for s in states if s < self._ended and (s >= self._trains or step < last_step)
            ]
            if not waits or time.monotonic() - since > self._patience:
                break
            time.sleep(_PAUSE)
            now = progress()
            if now != step:
                step, since = now, time.monotonic()
        progress()  # with the last steps of those that have ended since

    def _states(self, session: v1.Session) -> dict[int, int]:
        session.run(self._pull)
        return session.run(self._others)


class SharedNumber:
    """An int64 on the servers, at first 0, that is in no checkpoint.

    Args:
      strategy: the `ParameterServerStrategy`, in whose scope this is made.
      name: the same in all workers.

    Attributes:
      variable: whose value is the servers' when it was pulled last.
      value: reads it.
    """

    def __init__(self, strategy: Any, name: str) -> None:
        self.variable = v1.get_variable(
            f"tfdist_{name}",
            initializer=tf.zeros([], tf.int64),
            trainable=False,
            collections=[v1.GraphKeys.LOCAL_VARIABLES],
        )
        self.value = self.variable.read_value()
        self._new = v1.placeholder(self.variable.dtype, [])
        store = tf.raw_ops.AssignVariableOp(resource=self.variable.handle, value=self._new)
        with tf.control_dependencies([store]):
            client = strategy.extended.parameters.client
            self._set = client.set([self.variable], write=True)

    def tell(self, session: v1.Session, value: int) -> None:
        """Gives it a value for all workers, whoever this one is."""
        session.run(self._set, {self._new: value})


class BeginHook(v1.train.SessionRunHook):
    """Calls a function when a session is there, after the hooks before it."""

    def __init__(self, begin: Callable[[v1.Session], None]) -> None:
        self._begin = begin

    def after_create_session(self, session: v1.Session, coord: Any) -> None:
        self._begin(session)


class EndHook(v1.train.SessionRunHook):
    """Calls a function when the training ends in order, before the hooks that follow."""

    def __init__(self, end: Callable[[v1.Session], None]) -> None:
        self._end = end

    def end(self, session: v1.Session) -> None:
        self._end(session)
