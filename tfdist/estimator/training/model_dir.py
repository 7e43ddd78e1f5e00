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
    end = EndOfTraining(step_of(path), uuid.uuid4().hex)
    with tf.io.gfile.GFile(os.path.join(model_dir, _END), "w") as file:
        json.dump(dataclasses.asdict(end), file)


def step_of(path: str) -> int:
    """Returns the global step of a checkpoint.

    Raises:
      ModelDirError: neither the checkpoint nor its name has it.
    """
    name = tf.compat.v1.GraphKeys.GLOBAL_STEP
    if tf.train.load_checkpoint(path).has_tensor(name):
        return int(tf.train.load_variable(path, name))
    # An object-based checkpoint, as from `model_to_estimator`, names its values otherwise.
    number = path.rpartition("-")[2]
    if not number.isdecimal():
        raise ModelDirError(
            f"{path}: expected a checkpoint with the variable {name!r}, or a name that ends with "
            f"the global step, received {os.path.basename(path)!r}"
        )
    return int(number)


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
