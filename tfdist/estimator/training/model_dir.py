"""The files in an `Estimator`'s `model_dir` besides checkpoints and summaries."""

from __future__ import annotations

import dataclasses
import json
import os
import uuid

import tensorflow as tf

from tfdist.errors import ModelDirError

_END = "training_end.json"


@dataclasses.dataclass(frozen=True)
class EndOfTraining:
    """A note that a training has ended.

    Args:
      global_step: the step of the last checkpoint.
      training: an id that distinguishes the ends of several trainings.
    """

    global_step: int
    training: str


def end_of_training(model_dir: str) -> EndOfTraining | None:
    """Returns the chief's note that its training has ended, if there is one."""
    try:
        with tf.io.gfile.GFile(os.path.join(model_dir, _END)) as file:
            return EndOfTraining(**json.load(file))
    except (tf.errors.NotFoundError, json.JSONDecodeError):  # not written yet, or not completely
        return None


def note_end_of_training(model_dir: str) -> None:
    """Writes the note that no checkpoint follows the latest one."""
    path = tf.train.latest_checkpoint(model_dir)
    if path is None:
        return
    step = int(tf.train.load_variable(path, tf.compat.v1.GraphKeys.GLOBAL_STEP))
    end = EndOfTraining(step, uuid.uuid4().hex)
    with tf.io.gfile.GFile(os.path.join(model_dir, _END), "w") as file:
        json.dump(dataclasses.asdict(end), file)


def check_writable(model_dir: str, task: str) -> None:
    """Checks that the chief can write checkpoints.

    Raises:
      ModelDirError: it cannot; says why.
    """
    probe = os.path.join(model_dir, f".{uuid.uuid4().hex}")
    try:
        tf.io.gfile.makedirs(model_dir)
        with tf.io.gfile.GFile(probe, "w") as file:
            file.write("can be written")
        tf.io.gfile.remove(probe)
    except tf.errors.OpError as error:
        raise ModelDirError(
            f"{task}: model_dir {model_dir!r} cannot be written: {error.message}"
        ) from None
