"""The files of `BackupAndRestore` and `ModelCheckpoint` of tf_keras, and their writers.

See `files_of_keras_3`, which does the same for Keras 3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow as tf
from tf_keras.callbacks import BackupAndRestore, ModelCheckpoint

from tfdist._types import KerasCallback
from tfdist.data.position import InputPosition
from tfdist.keras import rank_zero
from tfdist.keras.callback import replaced
from tfdist.keras.session.positions import positions_of
from tfdist.keras.session.positions_of_tf_keras import TfKerasPositions
from tfdist.keras.tf_keras_backups import Backups
from tfdist.keras.workers import elastic_job_of, local_updates_of, rank_of, term_of
from tfdist.observe.pauses import pauses

if TYPE_CHECKING:
    from tfdist.internals.tf_keras import WorkerTrainingState

_log = logging.getLogger("tfdist")
_DECIDE = ("on_epoch_begin", "on_epoch_end", "on_train_batch_end")


class _SavedPosition(tf.train.experimental.PythonState):
    """The position in the data, as a part of tf_keras's checkpoints.

    Attributes:
      value: the position; `None` before it was saved or restored.
    """

    def __init__(self) -> None:
        super().__init__()
        self.value: InputPosition | None = None

    def serialize(self) -> str:
        """See `PythonState`."""
        return "" if self.value is None else self.value.to_json()

    def deserialize(self, string_value: bytes) -> None:
        """See `PythonState`."""
        text = tf.compat.as_str(string_value)
        self.value = InputPosition.from_json(text) if text else None


def keep_former(state: WorkerTrainingState) -> None:
    """Makes a `WorkerTrainingState`, which was made, keep the backup before the newest one."""
    if state._enable_save_before_preemption:
        return
    reads, writes = state.read_checkpoint_manager, state.write_checkpoint_manager
    backups = Backups(reads.checkpoint, reads.directory, lambda: term_of(state._model))
    state.read_checkpoint_manager = backups
    if writes is reads or _is_elastic(state):
        state.write_checkpoint_manager = backups
    if _is_elastic(state):
        state.tfdist_position = _SavedPosition()
        reads.checkpoint.tfdist_position = state.tfdist_position


def is_left_to_begin_of_fit(state: WorkerTrainingState) -> bool:
    """Whether a `WorkerTrainingState` is restored when all members are together, not now."""
    return _is_elastic(state) and not getattr(state, "tfdist_restores_for_all", False)


@pauses.noted()
def back_up(state: WorkerTrainingState, epoch: int, batch: int, save: Callable[..., None]) -> None:
    """Saves a backup.

    Args:
      state: a `WorkerTrainingState`.
      epoch: the epoch that was trained last.
      batch: the batch of it that was trained last.
      save: calls tf_keras's own, with an epoch and a batch.
    """
    if not _is_elastic(state):
        save(epoch, batch)
        return

    def back_up_here() -> None:
        positions = positions_of(state._model)
        at = epoch, batch
        if isinstance(positions, TfKerasPositions):
            at = positions.last_batch
            state._ckpt_saved_epoch.assign(at[0])
            state._ckpt_saved_batch.assign(at[1])
            state.tfdist_position.value = positions.position
        save(*at)

    what = f"a backup in {state.read_checkpoint_manager.directory}"
    rank_zero.by_rank_0(state._model, what, back_up_here)


def delete(state: WorkerTrainingState, delete_backup: Callable[[], None]) -> None:
    """Deletes the backup of a `WorkerTrainingState` when `fit` has ended."""

    def delete_own() -> None:
        backups = state.read_checkpoint_manager
        if not (isinstance(backups, Backups) and backups.is_superseded()):
            delete_backup()

    rank_zero.by_rank_0(state._model, "the end of the backup", delete_own)


@pauses.noted()
def save_checkpoint(callback: KerasCallback, path: str, save: Callable[[], None]) -> None:
    """Saves the checkpoint of a `ModelCheckpoint`."""
    rank_zero.by_rank_0(callback.model, path, save)


def meet_after_save(callback: KerasCallback, save: Callable[[], None]) -> None:
    """Lets a `ModelCheckpoint` decide, and save, and waits for the members."""
    is_silent = rank_zero.is_left_to_rank_0(callback.model)
    with replaced(callback, verbose=0 if is_silent else callback.verbose):
        save()
    meet(callback)


def meet(callback: KerasCallback) -> None:
    """Waits until rank 0 has made the callback's call, or its successor has made it again."""
    rank_zero.meet(callback)


def warn_within_round(callback: KerasCallback, epoch: int, batch: int) -> None:
    """Warns once if a backup is made within a round of `LocalUpdateStrategy`."""
    local = local_updates_of(callback.model.distribute_strategy)
    is_told = getattr(callback, "_tfdist_is_told", False)
    if local is None or is_told or rank_of(callback.model) != 0 or not local.is_within_round:
        return
    callback._tfdist_is_told = True
    _log.warning(
        "BackupAndRestore of tf_keras: expected a backup between two rounds of "
        "LocalUpdateStrategy, received one within a round, at batch %d of epoch %d. It holds "
        "nothing of the other workers and of the round: a fit that continues from it ends with "
        "other values. Use Keras 3, whose backups hold both",
        *(batch + 1, epoch + 1),
    )


def _is_elastic(state: WorkerTrainingState) -> bool:
    return elastic_job_of(state._model.distribute_strategy) is not None


rank_zero.meets(ModelCheckpoint, *_DECIDE, "_should_save_on_batch", "_save_model")
rank_zero.meets(BackupAndRestore, *_DECIDE, "_backup")
