"""The files of `BackupAndRestore` and `ModelCheckpoint`: their contents and their writers.

In elastic training rank 0 writes, and the next rank 0 writes again what it may not have ended.
`rank_zero` describes the other members' part.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import tensorflow as tf
from keras.callbacks import BackupAndRestore, ModelCheckpoint

from tfdist import atomic_files
from tfdist._types import FilePath, KerasCallback, Logs
from tfdist.data import checkpoints
from tfdist.keras import backups, exchange, rank_zero
from tfdist.keras.callback import replaced
from tfdist.keras.noted_saves import NotedSaves
from tfdist.keras.session.positions import Positions, positions_of
from tfdist.keras.state_file import CompletingSaver, is_of_later_term, read_state, unpacked
from tfdist.keras.training_state import TrainingState
from tfdist.keras.workers import elastic_job_of, local_updates_of, rank_of, trains_on_servers
from tfdist.observe.pauses import pauses
from tfdist.ops.collectives.alone import is_alone

_DECIDE = ("on_epoch_begin", "on_epoch_end", "on_train_batch_end", "_should_save_on_batch")
# States of data tasks: of the weights, of the weights before them, and of the weights being
# written.
_KEPT = 3


@pauses.noted()
def back_up(callback: KerasCallback, save: Callable[[], None]) -> None:
    """Saves a backup.

    Args:
      callback: a `BackupAndRestore`.
      save: calls Keras's own, which is left to the chief.
    """

    def write() -> None:
        with _with_tasks(callback), _backup_with_position(callback):
            save()

    _by_rank_0_here(callback, f"a backup in {callback.backup_dir}", write)
    rank_zero.meet(callback)


@pauses.noted()
def save_checkpoint(
    callback: KerasCallback,
    epoch: int,
    batch: int | None,
    logs: Logs | None,
    save: Callable[[], None],
) -> None:
    """Saves a checkpoint.

    Args:
      callback: a `ModelCheckpoint`.
      epoch: of its file's name.
      batch: of its file's name.
      logs: by which it decides, and of its file's name.
      save: calls Keras's own.
    """

    def write() -> None:
        with _with_position(callback, lambda positions: positions.checkpoints_of_all):
            save()

    if rank_zero.is_left_to_rank_0(callback.model):
        _note_save(callback, epoch, batch, logs, write)
    else:
        write()
    rank_zero.meet(callback)


def restore(callback: KerasCallback, begin: Callable[[], None]) -> None:
    """Restores a backup when `fit` begins, or leaves it to the beginning of an elastic one.

    Args:
      callback: a `BackupAndRestore`.
      begin: calls its `on_train_begin`.
    """
    job = elastic_job_of(callback.model.distribute_strategy)
    if job is not None and not getattr(callback, "restores_for_all", False):
        return
    if rank_of(callback.model) == 0:
        metadata = (callback._training_metadata_path, callback._prev_training_metadata_path)
        backups.choose(callback._weights_path, callback._prev_weights_path, beside=[metadata])
    begin()


def load(callback: KerasCallback, load_model: Callable[[], None]) -> None:
    """Loads a backup, and lets `fit` and the data tasks continue from it.

    Args:
      callback: a `BackupAndRestore`.
      load_model: calls its `_load_model`.
    """
    _load_with_position(callback, load_model)
    if trains_on_servers(callback.model.distribute_strategy) or not checkpoints.is_needed():
        return
    is_chief = rank_of(callback.model) == 0
    path = _path_of_tasks(callback)
    checkpoints.restore(path.read_text() if is_chief and path.exists() else "")


def delete(callback: KerasCallback, end: Callable[[], None]) -> None:
    """Deletes a backup when `fit` has ended.

    Args:
      callback: a `BackupAndRestore`.
      end: calls its `on_train_end`.
    """

    def end_if_own() -> None:
        # A worker that an elastic job has left behind keeps the backup of the others.
        if not is_of_later_term(callback._weights_path, callback.model):
            end()

    if elastic_job_of(callback.model.distribute_strategy) is None:
        end_if_own()
        return
    what = f"the end of the backup in {callback.backup_dir}"
    rank_zero.by_rank_0(callback.model, what, end_if_own)


def _load_with_position(callback: KerasCallback, load_model: Callable[[], None]) -> None:
    positions = positions_of(callback.model)
    if positions is None:
        load_model()
        return
    path, metadata = callback._weights_path, callback._training_metadata_path
    content = read_state(path) if tf.io.gfile.exists(path) else None
    if content is not None:
        # Keras's file of the epoch is not replaced together with the file of the weights.
        callback._training_metadata_path = f"{metadata}.ignored"
    try:
        load_model()
    finally:
        callback._training_metadata_path = metadata
    # With parameter servers, whose values are the chief's backup now, the others have no file.
    content = exchange.broadcast(callback.model, content)
    if content is not None:
        state = unpacked(content)
        callback._current_epoch = state.position.epoch
        positions.go_on_from(state)


@contextlib.contextmanager
def _with_tasks(callback: KerasCallback) -> Iterator[None]:
    """Within it a backup also has the state of the data tasks; servers' snapshots have it, too."""
    if trains_on_servers(callback.model.distribute_strategy) or not checkpoints.is_needed():
        yield
        return
    state = checkpoints.state()
    path = _path_of_tasks(callback)
    is_chief = rank_of(callback.model) == 0
    if is_chief:
        # Before the weights, and by the number of the step, which is among them.
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.replace(str(path), lambda new: Path(new).write_text(state))
    yield
    if is_chief:
        kept = sorted(path.parent.glob("tasks-*.json"), key=lambda p: p.stat().st_mtime_ns)
        for old in kept[:-_KEPT]:
            old.unlink(missing_ok=True)


def _path_of_tasks(callback: KerasCallback) -> Path:
    """The file of the data tasks' state at the model's step."""
    step = int(callback.model.optimizer.iterations.numpy())
    return Path(callback.backup_dir, f"tasks-{step}.json")


@contextlib.contextmanager
def _backup_with_position(callback: KerasCallback) -> Iterator[None]:
    """Within it a backup has the training's state, and the one before it is kept, not copied."""
    if positions_of(callback.model) is None:
        yield
        return
    copies, callback.double_checkpoint = callback.double_checkpoint, False
    former = callback._prev_weights_path if rank_of(callback.model) == 0 else None
    try:
        with _with_position(callback, lambda positions: True, former):
            yield
    finally:
        callback.double_checkpoint = copies


@contextlib.contextmanager
def _with_position(
    callback: KerasCallback, of_all: Callable[[Positions], bool], former: FilePath | None = None
) -> Iterator[None]:
    """Within it a callback saves its model with the training's state, of all workers if told so.

    Args:
      callback: the callback.
      of_all: whether the state covers all workers.
      former: where the file that is replaced is kept.
    """
    positions = positions_of(callback.model)
    if positions is None or isinstance(callback._model, NotedSaves):
        yield
        return
    model = callback._model
    # `OnRankZero` calls the callback on one worker.
    is_of_all = of_all(positions) and not is_alone()
    callback._model = CompletingSaver(model, positions.state(is_of_all), former)
    try:
        yield
    finally:
        callback._model = model


def _note_save(
    callback: KerasCallback,
    epoch: int,
    batch: int | None,
    logs: Logs | None,
    decide: Callable[[], None],
) -> None:
    """Lets a `ModelCheckpoint` decide whether to save, and notes what rank 0 saves."""
    saves = NotedSaves(callback.model)
    # A folder that exists: the callback makes the folder of its file, which is rank 0's business.
    name = os.path.join(tempfile.gettempdir(), os.path.basename(callback.filepath))
    with replaced(callback, _model=saves, filepath=name, verbose=0):
        decide()
    if not saves.noted:
        return
    path = callback._get_file_path(epoch, batch, logs)
    state = _state_here(callback)

    def save() -> None:
        saver = callback.model if state is None else CompletingSaver(callback.model, state())
        tf.io.gfile.makedirs(os.path.dirname(path) or ".")
        for method, options in saves.noted:
            getattr(saver, method)(path, **options)

    _by_rank_0_here(callback, path, save)


def _state_here(callback: KerasCallback) -> Callable[[], TrainingState] | None:
    """Returns a function that returns the training's state at this place."""
    positions = positions_of(callback.model)
    if positions is None:
        return None
    if rank_zero.will_meet(callback) is not None:
        return lambda: positions.state(of_all=False)
    state = positions.state(of_all=False)
    return lambda: state


def _by_rank_0_here(callback: KerasCallback, what: str, save: Callable[[], None]) -> None:
    """Lets rank 0 of an elastic job save what a model is now.

    Workers that train alone between two rounds make further steps before they meet. A save that
    rank 0 was making there is lost with it. In a job that is not elastic all workers save: a value
    may need all of them, and the chief alone keeps its file.
    """
    model = callback.model
    if elastic_job_of(model.distribute_strategy) is None:
        save()
        return
    trains_alone = local_updates_of(model.distribute_strategy) is not None
    if not trains_alone or rank_zero.will_meet(callback) is not None or rank_of(model) == 0:
        rank_zero.by_rank_0(model, what, save)


rank_zero.meets(ModelCheckpoint, *_DECIDE, "_save_model")
rank_zero.meets(BackupAndRestore, *_DECIDE, "_save_model")
