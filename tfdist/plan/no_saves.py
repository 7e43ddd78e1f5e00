"""A measured script writes no files of its training, with which a real job would continue.

`tfdist plan --model` runs some steps of a script and ends it. Callbacks that write files, or read
the files of an earlier job, take no part in its `fit`: the steps would belong to another epoch, and
a backup or a log of the real job would be replaced. Functions that save a model or a
checkpoint do nothing. Files that the script writes by other means are written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.keras.registry import hooks

_WRITING = tuple(
    getattr(keras.callbacks, name)
    for name in (
        *("BackupAndRestore", "CSVLogger", "ModelCheckpoint", "OrbaxCheckpoint", "RemoteMonitor"),
        "TensorBoard",
    )
    if hasattr(keras.callbacks, name)
)


@contextlib.contextmanager
def without_files(given: Any) -> Iterator[Any]:
    """Yields the user's callbacks of `fit` without the callbacks that write files."""
    if isinstance(given, list | tuple):
        yield [callback for callback in given if not isinstance(callback, _WRITING)]
    elif isinstance(given, _WRITING):
        yield None
    elif not hasattr(given, "callbacks"):
        yield given
    else:  # a CallbackList, which is the user's
        before = given.callbacks
        given.callbacks = [one for one in before if not isinstance(one, _WRITING)]
        try:
            yield given
        finally:
            given.callbacks = before


@hooks(keras.Model, "save")
def save_no_model(original: Callable, self: keras.Model, *args: Any, **kwargs: Any) -> None:
    """A script that is measured saves no model."""


@hooks(keras.models, "save_model")
@hooks(keras.saving, "save_model")
def save_not_this_model(original: Callable, model: keras.Model, *args: Any, **kwargs: Any) -> None:
    """A script that is measured saves no model by the function."""


@hooks(tf.saved_model, "save")
def save_no_object(original: Callable, obj: Any, *args: Any, **kwargs: Any) -> None:
    """A script that is measured saves no SavedModel."""


@hooks(keras.Model, "save_weights")
def save_no_weights(original: Callable, self: keras.Model, *args: Any, **kwargs: Any) -> None:
    """A script that is measured saves no weights."""


@hooks(keras.Model, "export")
def export_no_model(original: Callable, self: keras.Model, *args: Any, **kwargs: Any) -> None:
    """A script that is measured exports no model."""


@hooks(tf.train.Checkpoint, "save")
@hooks(tf.train.Checkpoint, "write")
def write_no_checkpoint(
    original: Callable, self: tf.train.Checkpoint, file_prefix: Any, *args: Any, **kwargs: Any
) -> str:
    """A script that is measured writes no checkpoint."""
    return str(file_prefix)


@hooks(tf.train.CheckpointManager, "save")
def keep_no_checkpoint(
    original: Callable, self: tf.train.CheckpointManager, *args: Any, **kwargs: Any
) -> None:
    """A script that is measured keeps no checkpoint."""
