"""`tfdist.data` in an `Estimator`'s `input_fn`: commits, and the state beside the checkpoints."""

from __future__ import annotations

import os

import tensorflow as tf

from tfdist.data import checkpoints
from tfdist.data.pipeline import feeds_of_graph

v1 = tf.compat.v1
_SUFFIX = ".tasks.json"


class CommitHook(tf.compat.v1.train.SessionRunHook):
    """Commits the records of each step.

    Args:
      batches: how many batches a step uses.
    """

    def __init__(self, batches: int = 1) -> None:
        self._batches = batches

    def begin(self) -> None:
        """Finds the data tasks of this graph."""
        self._feeds = feeds_of_graph()

    def before_run(self, run_context: tf.compat.v1.train.SessionRunContext) -> None:
        """The push of the step commits, where it can."""
        if len(self._feeds) == 1:
            self._feeds[0].begin_steps(self._batches)

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        """Commits."""
        for feed in self._feeds:
            feed.train(self._batches)

    def end(self, session: tf.compat.v1.Session) -> None:
        """Gives back what was read ahead: other workers may wait for it."""
        for feed in self._feeds:
            feed.end_iteration()


class SaveTasks(tf.compat.v1.train.CheckpointSaverListener):
    """Saves the state of the data tasks with each checkpoint of a hook.

    It is saved first. No worker is a step ahead of the values then, because every step needs the
    chief; what the others have not reported yet is trained again after a restart.

    Args:
      hook: the hook that saves.
    """

    def __init__(self, hook: tf.compat.v1.train.CheckpointSaverHook) -> None:
        self._hook = hook

    def before_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        """Saves."""
        save(f"{self._hook._save_path}-{global_step_value}", state())


def state() -> str:
    """Returns the state of the data tasks; "" if there are none."""
    return checkpoints.own_state() if checkpoints.is_needed() else ""


def save(checkpoint: str, state: str) -> None:
    """Writes a state beside a checkpoint, and removes the states of checkpoints that are gone.

    Args:
      checkpoint: its path, which need not exist yet.
      state: from `state`; "" writes nothing.
    """
    if not state:
        return
    with tf.io.gfile.GFile(f"{checkpoint}{_SUFFIX}.tmp", "w") as file:
        file.write(state)
    tf.io.gfile.rename(f"{checkpoint}{_SUFFIX}.tmp", checkpoint + _SUFFIX, overwrite=True)
    folder = os.path.dirname(checkpoint)
    for name in tf.io.gfile.listdir(folder):
        path = os.path.join(folder, name)
        of = path.removesuffix(_SUFFIX)
        if of not in (path, checkpoint) and not tf.io.gfile.exists(f"{of}.index"):
            tf.io.gfile.remove(path)


def restore(checkpoint: str) -> None:
    """Gives the queues the state beside a checkpoint; only the chief calls it."""
    path = checkpoint + _SUFFIX
    if checkpoints.is_needed() and tf.io.gfile.exists(path):
        with tf.io.gfile.GFile(path) as file:
            checkpoints.restore_own(file.read())
