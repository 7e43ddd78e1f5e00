"""Repairs of callbacks that write files: `ModelCheckpoint` and `BackupAndRestore`."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf
from keras.callbacks import BackupAndRestore, ModelCheckpoint

from tfdist import ops
from tfdist._types import KerasCallback
from tfdist.keras.callback import replaced
from tfdist.keras.registry import repairs
from tfdist.keras.workers import communicator_of, elastic_job_of, rank_of

_ISSUE = "tensorflow/tensorflow#38635"


@repairs(ModelCheckpoint, "_save_model", issue=_ISSUE)
def checkpoint_on_chief(original, self, epoch, batch, logs):
    """All workers write the same checkpoint file at once.

    Keras 2 had this corrected, Keras 3 lost it. Every worker must save, because reading some
    variables is a collective, but only the chief's file is kept.
    """
    # In an elastic job no variable needs the others; see `hooks.elastic.files`.
    if rank_of(self.model) == 0 or elastic_job_of(self.model.distribute_strategy) is not None:
        return original(self, epoch, batch, logs)
    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, os.path.basename(self.filepath))
        with replaced(self, filepath=path, verbose=0):
            return original(self, epoch, batch, logs)


@repairs(BackupAndRestore, "_save_model", issue=_ISSUE)
def back_up_on_chief(original, self):
    """All workers write the same backup files at once; here the chief alone keeps them."""
    with _paths_of_rank(self):
        original(self)


@repairs(BackupAndRestore, "on_train_begin", issue=_ISSUE)
def restore_from_chief(original, self, logs=None):
    """Workers that share no file system resume from backups of different epochs.

    Here all workers resume from the chief's.
    """
    with _paths_of_rank(self):
        _copy_from_chief(self)
        # Keras would continue from an older backup on the workers that cannot load this one.
        with replaced(self, _prev_weights_path=f"{self._prev_weights_path}.ignored"):
            original(self, logs)


@repairs(BackupAndRestore, "on_train_end", issue=_ISSUE)
def delete_on_chief(original, self, logs=None):
    """All workers delete the same backup; here the chief does."""
    if rank_of(self.model) == 0:
        original(self, logs)


_FILES = ("_weights_path", "_training_metadata_path")
_FILES_BEFORE = ("_prev_weights_path", "_prev_training_metadata_path")


@contextlib.contextmanager
def _paths_of_rank(callback: KerasCallback) -> Iterator[None]:
    """Gives every worker but the chief an empty directory, which is deleted afterwards."""
    if rank_of(callback.model) == 0:
        yield
        return
    with tempfile.TemporaryDirectory() as scratch:
        names = (*_FILES, *_FILES_BEFORE)
        paths = {n: os.path.join(scratch, os.path.basename(getattr(callback, n))) for n in names}
        with replaced(callback, backup_dir=scratch, **paths):
            yield


def _copy_from_chief(callback: KerasCallback) -> None:
    """Copies the chief's files to every worker, so that all load the same."""
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
