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
_ABSENT, _TRAINS, _ENDED = 0, 1, 2
_PAUSE = 0.05


class WorkerStates:
    """Knows, of the default graph's model, this worker's state and those it waits for.

    Args:
      strategy: the `ParameterServerStrategy`, in whose scope this is made.
    """

    def __init__(self, strategy: Any) -> None:
        extended = strategy.extended
        self._rank, workers = extended.rank, extended.config.workers
        self._client = extended.parameters.client
        self._patience = extended.config.worker_timeout
        others = range(1, workers) if self._rank == 0 else [0]
        states = {rank: _variable(rank) for rank in {self._rank, *others}}
        self._others = {rank: states[rank].read_value() for rank in others}
        mine = states[self._rank]
        self._new_state = v1.placeholder(mine.dtype, [])
        store = tf.raw_ops.AssignVariableOp(resource=mine.handle, value=self._new_state)
        with tf.control_dependencies([store]):
            self._tell = self._client.set([mine], write=True)
        self._pull = self._client.pull(list(states.values()), of_step=False)

    def begin(self, session: v1.Session, timeout: float) -> None:
        """Says that this worker has begun; if it is not the chief, waits until the chief has.

        Raises:
          RendezvousTimeoutError: it has not begun within `timeout` seconds.
        """
        session.run(self._tell, {self._new_state: _TRAINS})
        if self._rank == 0:
            return
        deadline = time.monotonic() + timeout
        while self._states(session)[0] == _ABSENT:
            if time.monotonic() > deadline:
                raise RendezvousTimeoutError(
                    f"rank {self._rank}: the chief did not give the parameter servers the model's "
                    f"first values within {timeout:g} s"
                )
            time.sleep(_PAUSE)

    def end(self, session: v1.Session, progress: Callable[[], Any]) -> None:
        """Says that this worker has ended; if it is the chief, waits until all have.

        It does not wait for those that have died: until `progress` has given the same for the
        strategy's `worker_timeout`.
        """
        self._client.flush(self._patience)
        session.run(self._tell, {self._new_state: _ENDED})
        if self._rank > 0:
            return
        last, since = progress(), time.monotonic()
        while _TRAINS in self._states(session).values():
            now = progress()
            if now != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > self._patience:
                break
            time.sleep(_PAUSE)

    def _states(self, session: v1.Session) -> dict[int, int]:
        session.run(self._pull)
        return session.run(self._others)


def _variable(rank: int) -> tf.Variable:
    return v1.get_variable(
        f"tfdist_state_of_rank_{rank}",
        initializer=tf.zeros([], tf.int64) + _ABSENT,
        trainable=False,
        collections=[v1.GraphKeys.LOCAL_VARIABLES],
    )


class EndHook(v1.train.SessionRunHook):
    """Calls a function when the training ends in order, before the hooks that follow."""

    def __init__(self, end: Callable[[v1.Session], None]) -> None:
        self._end = end

    def end(self, session: v1.Session) -> None:
        self._end(session)
