"""`tfdist.elastic.run`: a user's training loop that survives the loss of members."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from tfdist import ops
from tfdist.elastic.job import ElasticJob, LeftBehindError
from tfdist.elastic.states import HostsUpdatedInterrupt, ObjectState, elastic_job
from tfdist.errors import brief
from tfdist.preemption.notice import notice

_log = logging.getLogger("tfdist.elastic")

_Result = TypeVar("_Result")
Function = TypeVar("Function", bound=Callable)


def run(function: Function) -> Function:
    """Makes a training loop continue when members of an elastic job die, leave or join.

    The result takes the same arguments. It calls `state.sync()` and then the function, again and
    again until the function returns on all members:

    - A collective fails because a member was lost: the others form the next generation, and
      continue from the newest commit. Later work is done again.
    - A member joins or leaves: `state.commit` or `state.check_host_updates` ends the function on
      all members. They continue from there.

    So the function begins where the state says, and makes values that depend on the members, such
    as a share of the data, each time it is called. `tfdist.rank()` and `tfdist.size()` count the
    living members; functions that were traced before need no new trace. All members return
    together.

    From the first call on SIGTERM ends this process at its next commit.

    In a job that is not elastic all ranks begin with the values of rank 0, and a failure ends the
    program.

    Args:
      function: its first argument is a state, such as a `tfdist.elastic.TensorFlowKerasState`.

    Returns:
      The function that trains. It raises what `function` raises for another reason than a lost
      member, and

        TypeError: its first argument is no state.
        tfdist.errors.RendezvousTimeoutError: too few members are left.
        tfdist.errors.Preempted: as `state.commit`.

    Example:

    ```python
    @tfdist.elastic.run
    def train(state):
        data = batches().shard(tfdist.size(), tfdist.rank())
        for batch in data.skip(state.batch):
            step(batch)
            state.batch += 1
            state.commit()
    ```
    """

    @functools.wraps(function)
    def until_all_return(state: ObjectState, *args: object, **kwargs: object) -> Any:
        if not isinstance(state, ObjectState):
            raise TypeError(
                f"tfdist.elastic.run: expected a state as first argument of "
                f"{function.__qualname__}, such as a tfdist.elastic.TensorFlowKerasState, received "
                f"{state!r}"
            )
        job = elastic_job()
        if job is None:
            state.sync()
            return function(state, *args, **kwargs)
        with notice.expected():
            return _run(job, state, functools.partial(function, state, *args, **kwargs))

    return until_all_return  # type: ignore[return-value]


def _run(job: ElasticJob, state: ObjectState, function: Callable[[], _Result]) -> _Result:
    while True:
        with contextlib.suppress(HostsUpdatedInterrupt, LeftBehindError):
            try:
                state.sync()
                result = function()
                _end_together(job)
                return result
            except tf.errors.OpError as error:
                if not job.has_lost_members(error):
                    raise
                name = job.cluster.task_name
                _log.warning("%s: continues from the last commit: %s", name, brief(error))
                job.recoveries += 1
                state.restore()


def _end_together(job: ElasticJob) -> None:
    """No member leaves before all have ended: it alone may have the last commit."""
    with tf.device("/device:CPU:0"):
        ops.all_reduce(tf.constant(0), job.communicator, label="the end of the function")
