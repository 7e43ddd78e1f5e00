"""The states of the workers in an `Estimator`'s training, shared through the parameter servers.

Each worker has a variable on the servers that is in no checkpoint. Workers wait for the chief to
begin, since it may restore a checkpoint; the chief waits for the workers before it saves the last
checkpoint, which then contains all their updates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow as tf

from tfdist.control.waiting import Wait
from tfdist.errors import RendezvousTimeoutError

if TYPE_CHECKING:
    from tfdist.strategies import ParameterServerStrategy

v1 = tf.compat.v1
_PAUSE = 0.05


class WorkerStates:
    """This worker's state and the states it waits for, for the default graph's model.

    A state is a number that grows: 2n - 1 during the n-th training, and 2n when it has ended.

    Args:
      strategy: the `ParameterServerStrategy`, in whose scope this is made.
      training: the number of this training of the model, counted from 1.
    """

    def __init__(self, strategy: ParameterServerStrategy, training: int) -> None:
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
        self._pull = self._client.parameters.pull(variables, begins_step=False)

    def begin(self, session: tf.compat.v1.Session, timeout: float) -> None:
        """Publishes that this worker has begun; if it is not the chief, waits until the chief has.

        Raises:
          RendezvousTimeoutError: it has not begun within `timeout` seconds.
        """
        self._mine.tell(session, self._trains)
        if self._rank == 0:
            return
        wait = Wait(timeout, pause=_PAUSE)
        while self._states(session)[0] < self._trains:
            if wait.is_over:
                raise RendezvousTimeoutError(
                    f"rank {self._rank}: the chief did not give the parameter servers the model's "
                    f"first values within {timeout:g} s"
                )
            wait.pause()

    def end(
        self, session: tf.compat.v1.Session, progress: Callable[[], int], last_step: float
    ) -> None:
        """Publishes that this worker has ended; if it is the chief, waits until all have.

        Once all steps have been made it does not wait for workers that have not begun. Dead workers
        end the wait too: it stops after `worker_timeout` of the strategy without progress.

        Args:
          session: of this worker.
          progress: pulls this worker's values, and returns the global step.
          last_step: the last step of the training.
        """
        self._client.flush(self._patience)
        self._mine.tell(session, self._ended)
        if self._rank > 0:
            return
        step, wait = progress(), Wait(self._patience, pause=_PAUSE)
        while True:
            states = self._states(session).values()
            waits = [
                s for s in states if s < self._ended and (s >= self._trains or step < last_step)
            ]
            if not waits or wait.is_over:
                break
            wait.pause()
            now = progress()
            if now != step:
                step = now
                wait.heard()
        progress()  # includes the last steps of workers that have ended since

    def _states(self, session: tf.compat.v1.Session) -> dict[int, int]:
        session.run(self._pull)
        return session.run(self._others)


class SharedNumber:
    """An int64 on the servers, at first 0, that is in no checkpoint.

    Args:
      strategy: the `ParameterServerStrategy`, in whose scope this is made.
      name: the same in all workers.

    Attributes:
      variable: has the value of the last pull.
      value: the tensor that reads it.
    """

    def __init__(self, strategy: ParameterServerStrategy, name: str) -> None:
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
            self._set = client.parameters.set([self.variable], write=True)

    def tell(self, session: tf.compat.v1.Session, value: int) -> None:
        """Sets the value for all workers, from any worker."""
        session.run(self._set, {self._new: value})


class BeginHook(tf.compat.v1.train.SessionRunHook):
    """Calls a function when the session is created, after the hooks before it."""

    def __init__(self, begin: Callable[[tf.compat.v1.Session], None]) -> None:
        self._begin = begin

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        self._begin(session)


class EndHook(tf.compat.v1.train.SessionRunHook):
    """Calls a function when the training ends without an error, before the hooks after it."""

    def __init__(self, end: Callable[[tf.compat.v1.Session], None]) -> None:
        self._end = end

    def end(self, session: tf.compat.v1.Session) -> None:
        self._end(session)
