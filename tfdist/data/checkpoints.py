"""The state of the data tasks in a checkpoint of the job."""

from __future__ import annotations

import tensorflow as tf

from tfdist import ops
from tfdist.data import feed as feeds
from tfdist.job import process


def is_needed() -> bool:
    """Whether this process has made a data set of tasks."""
    return bool(feeds.current.all())


def state() -> str:
    """Returns the state of all queues, with the records that all workers have trained by now.

    Under all-reduce all workers must call it, between the same two steps.
    """
    feeds.current.report()
    _meet("the state of the data tasks")
    return feeds.current.client().state()


def own_state() -> str:
    """Returns the state of all queues, with the records that this worker has trained by now.

    It lacks the records that other workers have trained since their last report.
    """
    feeds.current.report()
    return feeds.current.client().state()


def restore_own(text: str) -> None:
    """Gives the queues a state, as rank 0, before any worker reads; "" changes nothing.

    Raises:
      CheckpointError: it is damaged, or one of other data.
    """
    if text:
        feeds.current.client().restore(text)


def restore(text: str) -> None:
    """Gives the queues a state from `state`; "" changes nothing.

    Under all-reduce all workers must call it, before they read; the state of rank 0 counts.

    Args:
      text: the state.

    Raises:
      CheckpointError: it is damaged, or one of other data.
    """
    feeds.current.client()
    if feeds.current.is_first:
        restore_own(text)
    _meet("the restored data tasks")


class TaskState(tf.train.experimental.PythonState):
    """The state of the data tasks, as a part of a `tf.train.Checkpoint`.

    Parameter servers with a `checkpoint_dir` save and restore it themselves.

    Example:

    ```python
    checkpoint = tf.train.Checkpoint(model=model, tasks=tfdist.data.TaskState())
    ```
    """

    def serialize(self) -> str:
        """Returns the state; TensorFlow calls it when a checkpoint is written."""
        return state()

    def deserialize(self, string_value: str | bytes) -> None:
        """Takes up a state; TensorFlow calls it when a checkpoint is restored."""
        text = string_value if isinstance(string_value, str) else string_value.decode()
        restore(text)


def _meet(why: str) -> None:
    job = process.current.job
    if job is not None and not feeds.current.is_on_servers and job.cluster.world_size > 1:
        ops.barrier(job.communicator, label=why)
