"""Where a training stands in its input, beside each checkpoint of an `Estimator`.

`input_fn` makes its dataset again in each process, and a training that was killed would read it
from its beginning. Here it continues with the batch after the checkpoint's last one. A training
that has ended leaves no position: the next call of `train` begins the input again, as it always
did.
"""

from __future__ import annotations

import logging

import tensorflow as tf

from tfdist._types import Nested
from tfdist.data.order import unknown_order
from tfdist.data.pipeline import feed_of
from tfdist.data.position import InputPosition

v1 = tf.compat.v1
_log = logging.getLogger("tfdist")
_SUFFIX = ".input.json"


def position_of(checkpoint: str | None) -> InputPosition:
    """Returns the position of a checkpoint: the beginning if there is none, or no checkpoint."""
    try:
        with tf.io.gfile.GFile(f"{checkpoint}{_SUFFIX}") as file:
            return InputPosition.from_json(file.read())
    except tf.errors.NotFoundError:
        return InputPosition()


def without_first(result: Nested, batches: int) -> Nested:
    """Returns what an `input_fn` has returned, without the batches that were read before.

    The queue of data tasks leaves out by itself what has been trained.

    Args:
      result: of the `input_fn`.
      batches: how many were read.
    """
    if not batches or feed_of(result) is not None:
        return result
    if not isinstance(result, tf.data.Dataset | v1.data.Dataset):
        reasons = ["input_fn returns tensors, not a dataset"]
    else:
        reasons = unknown_order(result, 1)
        result = result.skip(batches)
    if reasons:
        _log.warning(
            "the training continues after %d batches of its input, which cannot be positioned "
            "exactly: %s. The batches that follow are others than without the interruption",
            batches,
            "; ".join(reasons),
        )
    return result


class PositionSaver(tf.compat.v1.train.CheckpointSaverListener):
    """Writes the position before each checkpoint, under its name.

    Args:
      prefix: the path of the checkpoints up to the step, such as "model/model.ckpt".
      batches: how many batches of its input were read before this training began.
    """

    def __init__(self, prefix: str, batches: int) -> None:
        self._prefix = prefix
        self._batches = batches
        self._first_step: int | None = None

    def before_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        """Writes the position; the first checkpoint is from the training's beginning."""
        if self._first_step is None:
            self._first_step = int(global_step_value)
        read = self._batches + int(global_step_value) - self._first_step
        position = InputPosition(batches=read)
        path = f"{self._prefix}-{global_step_value}{_SUFFIX}"
        with tf.io.gfile.GFile(f"{path}.new", "w") as file:
            file.write(position.to_json())
        tf.io.gfile.rename(f"{path}.new", path, overwrite=True)

    def after_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        """Removes the positions of checkpoints that are gone."""
        for path in tf.io.gfile.glob(f"{self._prefix}-*{_SUFFIX}"):
            if not tf.io.gfile.exists(f"{path.removesuffix(_SUFFIX)}.index"):
                tf.io.gfile.remove(path)

    def end(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        """Removes all positions: the training has ended without an error."""
        for path in tf.io.gfile.glob(f"{self._prefix}-*{_SUFFIX}"):
            tf.io.gfile.remove(path)
