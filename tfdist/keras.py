"""Every repair of Keras lives here: what is wrong upstream, in which versions, and what we put in its place.

Repairs are applied when one of our strategies is made, never by an import, and each only once. Each has a test that fails
once Keras no longer needs it (tests/parallel/test_keras_repairs.py).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import tempfile
from collections.abc import Iterator
from typing import Any

from tfdist import ops

_log = logging.getLogger("tfdist")

# The Keras releases that the repairs were written and tested for, both ends included.
_FIRST, _LAST = (3, 0), (3, 15)


@functools.cache
def apply_repairs() -> None:
    """Repairs the installed Keras 3 where our strategies need it; later calls do nothing."""
    import keras

    version = tuple(int(part) for part in keras.__version__.split(".")[:2])
    if version[0] < 3 or keras.backend.backend() != "tensorflow":
        return
    if not _FIRST <= version <= _LAST:
        _log.warning(
            "tfdist's repairs of Keras were written for %d.%d to %d.%d; Keras %s is left as it is",
            *_FIRST, *_LAST, keras.__version__,
        )
        return
    for repair in (_build_from_local_batch, _checkpoint_on_chief, _back_up_on_chief):
        repair()


def _build_from_local_batch() -> None:
    """keras-team/keras#20585, tensorflow/tensorflow#72388: `fit` and `evaluate` under a multi-worker strategy fail.

    To learn the shapes of a batch, `_maybe_symbolic_build` reduces the whole nested batch over all workers, which
    `tf.distribute.Strategy.reduce` does not take, and which would average strings and labels. The first local replica's batch
    has the same shapes.
    """
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    original = TensorFlowTrainer._maybe_symbolic_build

    @functools.wraps(original)
    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        if self._distribute_strategy is not None and iterator is not None:
            data_batch = _first_local_batch(self._distribute_strategy, iterator)
            iterator = None
        return original(self, iterator=iterator, data_batch=data_batch)

    TensorFlowTrainer._maybe_symbolic_build = _maybe_symbolic_build


def _first_local_batch(strategy, epoch_iterator):
    import tensorflow as tf
    from keras import tree

    for _, _, iterator in epoch_iterator:
        return tree.map_structure(
            lambda value: strategy.experimental_local_results(value)[0]
            if isinstance(value, tf.distribute.DistributedValues)
            else value,
            next(iterator),
        )
    return None


def _checkpoint_on_chief() -> None:
    """tensorflow/tensorflow#38635, mended in Keras 2 and lost in Keras 3: all workers write the same checkpoint file at once.

    Every worker must go through the motions, because reading some variables is a collective, but only the chief's file counts.
    """
    from keras.callbacks import ModelCheckpoint

    original = ModelCheckpoint._save_model

    @functools.wraps(original)
    def _save_model(self, epoch, batch, logs):
        if _rank(self.model) == 0:
            return original(self, epoch, batch, logs)
        with tempfile.TemporaryDirectory() as scratch:
            path = os.path.join(scratch, os.path.basename(self.filepath))
            with _replaced(self, filepath=path):
                return original(self, epoch, batch, logs)

    ModelCheckpoint._save_model = _save_model


def _back_up_on_chief() -> None:
    """tensorflow/tensorflow#38635 again, for `BackupAndRestore`: the chief keeps the backup, and all workers resume from it.

    Workers that restored on their own would start at different epochs where they share no file system.
    """
    from keras.callbacks import BackupAndRestore

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
            found = os.path.exists(self._weights_path)
            begin(self, logs)
        _resume_as_chief(self.model, found)

    @functools.wraps(end)
    def on_train_end(self, logs=None):
        if _rank(self.model) == 0:
            end(self, logs)

    BackupAndRestore._save_model = _save_model
    BackupAndRestore.on_train_begin = on_train_begin
    BackupAndRestore.on_train_end = on_train_end


@contextlib.contextmanager
def _paths_of_rank(callback) -> Iterator[None]:
    """Lets every worker but the chief find an empty directory, and lose what it writes there."""
    if _rank(callback.model) == 0:
        yield
        return
    with tempfile.TemporaryDirectory() as scratch:
        names = [
            "_weights_path",
            "_training_metadata_path",
            "_prev_weights_path",
            "_prev_training_metadata_path",
        ]
        paths = {n: os.path.join(scratch, os.path.basename(getattr(callback, n))) for n in names}
        with _replaced(callback, backup_dir=scratch, **paths):
            yield


def _resume_as_chief(model, found: bool) -> None:
    """Gives every worker the chief's weights, optimizer state and epoch, if the chief has found a backup."""
    communicator = _communicator(model)
    if communicator is None:
        return
    epoch = model._initial_epoch or 0
    found, epoch = ops.broadcast([int(found), epoch], communicator, label="backup's epoch").numpy()
    if not found:
        return
    model._initial_epoch = int(epoch)
    optimizer = model.optimizer
    if optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)
    for variable in model.weights + (optimizer.variables if optimizer is not None else []):
        value = ops.broadcast(variable.value, communicator, label=f"restored {variable.path}")
        variable.assign(value)


def _communicator(model) -> ops.Communicator | None:
    return getattr(model.distribute_strategy, "communicator", None)


def _rank(model) -> int:
    communicator = _communicator(model)
    return 0 if communicator is None else communicator.rank


@contextlib.contextmanager
def _replaced(target, **attributes: Any) -> Iterator[None]:
    """Sets attributes for the time of a `with` block."""
    before = {name: getattr(target, name) for name in attributes}
    vars(target).update(attributes)
    try:
        yield
    finally:
        vars(target).update(before)
