"""Checkpoint files that Keras writes, completed by the training's state, and replaced at once.

The state is within the file of the weights, so that a process killed at any time leaves the former
file or the new one, and never weights with another position than theirs. Keras reads such files as
its own: a `.keras` file is an archive with one member more, the others are HDF5 with one dataset
more.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import zipfile
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from tfdist.data.position import InputPosition
from tfdist.keras import exchange
from tfdist.keras.own_state import OwnState
from tfdist.keras.training import TrainingState, training_of
from tfdist.keras.workers import rank_of
from tfdist.ops.trace import events

_MEMBER = "tfdist_training_state"
_HDF5 = b"\x89HDF\r\n\x1a\n"  # how such files begin
# Errors of TensorFlow's files that come of the content; others come of the file system.
_OF_WRONG_OFFSETS = (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError)
_MIN_ARCHIVE = 22  # bytes; TensorFlow's files raise an error where zipfile looks before the first


class CompletingSaver:
    """Stands for a model in a callback: its files hold the training's state too.

    Args:
      model: the model, which answers everything but its saving.
      state: the training's state.
    """

    def __init__(self, model: Any, state: TrainingState) -> None:
        self._model = model
        self._state = state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def save(self, filepath: Any, overwrite: bool = True, **options: Any) -> None:
        """As `keras.Model.save`."""
        _replace(filepath, self._state, lambda path: self._model.save(path, **options))

    def save_weights(self, filepath: Any, overwrite: bool = True, **options: Any) -> None:
        """As `keras.Model.save_weights`."""
        _replace(filepath, self._state, lambda path: self._model.save_weights(path, **options))


def read_state(path: Any) -> bytes | None:
    """Returns the state in a checkpoint file, for `unpacked`; `None` if there is none.

    Raises:
      ValueError: the file is damaged; names it.
      tf.errors.OpError: it cannot be read; NotFoundError: there is no such file.
    """
    try:
        with tf.io.gfile.GFile(os.fspath(path), "rb") as file:
            # Not `is_zipfile`, which finds the state's own archive in an HDF5 file.
            is_hdf5 = file.read(len(_HDF5)) == _HDF5
            file.seek(0)
            if is_hdf5:
                with h5py.File(file, "r") as weights:
                    return weights[_MEMBER][()].tobytes() if _MEMBER in weights else None
            if file.size() < _MIN_ARCHIVE or not zipfile.is_zipfile(file):
                return None
            with zipfile.ZipFile(file) as archive:
                return archive.read(_MEMBER) if _MEMBER in archive.namelist() else None
    except Exception as error:  # zipfile and h5py raise many types for wrong bytes
        if isinstance(error, tf.errors.OpError) and not isinstance(error, _OF_WRONG_OFFSETS):
            raise
        raise ValueError(f"{os.fspath(path)} is damaged: {error}") from error


def go_on_from_file(model: Any, path: Any) -> None:
    """Lets the running `fit` of a model go on from a checkpoint file, which the chief reads.

    Raises:
      ValueError: the file has no state, or the model is not in `fit` of Keras 3, or no strategy of
        tfdist has been made before `fit`.
      tf.errors.OpError: it cannot be read; NotFoundError: there is no such file.
    """
    running = training_of(model)
    if running is None:
        raise ValueError(
            f"ResumeFrom({os.fspath(path)!r}): expected a fit of Keras 3 that began after a "
            f"strategy of tfdist was made, received one of {type(model).__module__}"
        )
    content = exchange.broadcast(model, read_state(path) if rank_of(model) == 0 else None)
    if content is None:
        raise ValueError(
            f"ResumeFrom({os.fspath(path)!r}): expected a file that ModelCheckpoint or "
            "BackupAndRestore wrote in fit, after a strategy of tfdist was made, received one "
            "without a position in the data"
        )
    running.go_on_from(unpacked(content))


def _replace(filepath: Any, state: TrainingState, save: Callable[[str], None]) -> None:
    path = os.fspath(filepath)
    folder, name = os.path.split(path)
    is_remote = "://" in path
    with tempfile.TemporaryDirectory() as scratch:
        # Its name ends as the other's, by which Keras knows the format.
        new = os.path.join(scratch if is_remote else folder, f".incomplete-{name}")
        with events.span("checkpoint", path):
            save(new)
            _add(new, state)
        if is_remote:
            tf.io.gfile.copy(new, path, overwrite=True)
            return
    with open(new, "rb") as file:
        os.fsync(file.fileno())
    os.replace(new, path)


def _add(path: str, state: TrainingState) -> None:
    content = _packed(state)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(_MEMBER, content)
    else:
        with h5py.File(path, "a") as weights:
            weights[_MEMBER] = np.frombuffer(content, np.uint8)


def _packed(state: TrainingState) -> bytes:
    names = list(state.own.values)
    arrays: dict[str, Any] = {f"value_{i}": state.own.values[name] for i, name in enumerate(names)}
    buffer = io.BytesIO()
    np.savez(
        buffer,
        position=np.array(state.position.to_json()),
        names=np.array(json.dumps(names)),
        **arrays,
    )
    return buffer.getvalue()


def unpacked(content: bytes) -> TrainingState:
    """Returns the state that `read_state` has read.

    Raises:
      ValueError: it is damaged, or not tfdist's.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as found:
            names = json.loads(str(found["names"]))
            own = OwnState({name: found[f"value_{i}"] for i, name in enumerate(names)})
            return TrainingState(InputPosition.from_json(str(found["position"])), own)
    except Exception as error:  # zipfile and NumPy raise many types for wrong bytes
        raise ValueError(f"the state of a training is damaged: {error}") from error
