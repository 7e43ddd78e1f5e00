"""Repairs of callbacks that write files: `ModelCheckpoint` and `BackupAndRestore`."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from keras.callbacks import BackupAndRestore, ModelCheckpoint

from tfdist import ops
from tfdist.keras.workers import communicator_of, rank_of


def checkpoint_on_chief() -> None:
    """tensorflow/tensorflow#38635: all workers write the same checkpoint file at once.

    Mended in Keras 2, lost in Keras 3. Every worker must go through the motions, because reading
    some variables is a collective, but only the chief's file counts.
    """
    original = ModelCheckpoint._save_model

    @functools.wraps(original)
    def _save_model(self, epoch, batch, logs):
        if rank_of(self.model) == 0:
            return original(self, epoch, batch, logs)
        with tempfile.TemporaryDirectory() as scratch:
            path = os.path.join(scratch, os.path.basename(self.filepath))
            with _replaced(self, filepath=path):
                return original(self, epoch, batch, logs)

    ModelCheckpoint._save_model = _save_model


def back_up_on_chief() -> None:
    """tensorflow/tensorflow#38635 again, for `BackupAndRestore`.

    The chief keeps the backup and all workers resume from it: where they share no file system,
    workers that restored on their own would start at different epochs.
    """
    save, begin, end = (
        BackupAndRestore._save_model,
        BackupAndRestore.on_train_begin,
        BackupAndRestore.on_train_end,
    )

    @functools.wraps(save)
    def _save_model(self):
        with _paths_of_rank(self):
            save(self)

    @functools.wraps(begin)
    def on_train_begin(self, logs=None):
        with _paths_of_rank(self):
            _copy_from_chief(self)
            begin(self, logs)

    @functools.wraps(end)
    def on_train_end(self, logs=None):
        if rank_of(self.model) == 0:
            end(self, logs)

    BackupAndRestore._save_model = _save_model
    BackupAndRestore.on_train_begin = on_train_begin
    BackupAndRestore.on_train_end = on_train_end


_FILES = (
    "_weights_path",
    "_training_metadata_path",
    "_prev_weights_path",
    "_prev_training_metadata_path",
)


@contextlib.contextmanager
def _paths_of_rank(callback) -> Iterator[None]:
    """Gives every worker but the chief an empty directory, and throws away what it writes there."""
    if rank_of(callback.model) == 0:
        yield
        return
    with tempfile.TemporaryDirectory() as scratch:
        paths = {n: os.path.join(scratch, os.path.basename(getattr(callback, n))) for n in _FILES}
        with _replaced(callback, backup_dir=scratch, **paths):
            yield


def _copy_from_chief(callback) -> None:
    """Gives every worker the chief's files, for all to load the same."""
    communicator = communicator_of(callback.model)
    if communicator is None:
        return
    paths = [Path(getattr(callback, name)) for name in _FILES]
    is_chief = communicator.rank == 0
    sizes = [p.stat().st_size if is_chief and p.exists() else -1 for p in paths]
    sizes = ops.broadcast(tf.constant(sizes, tf.int64), communicator, label="backup").numpy()
    for path, size in zip(paths, sizes, strict=True):
        if size < 0:
            continue
        content = np.fromfile(path, np.uint8) if is_chief else np.zeros(size, np.uint8)
        content = ops.broadcast(content, communicator, label=f"backup {path.name}").numpy()
        if not is_chief:
            content.tofile(path)


@contextlib.contextmanager
def _replaced(target, **attributes: Any) -> Iterator[None]:
    """Sets attributes for the time of a `with` block."""
    before = {name: getattr(target, name) for name in attributes}
    vars(target).update(attributes)
    try:
        yield
    finally:
        vars(target).update(before)
