"""The session of tf_keras: all functions of `fit`, `evaluate` and `predict` that it replaces."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf
import tf_keras
from tf_keras.callbacks import BackupAndRestore, History, ModelCheckpoint, ProgbarLogger

from tfdist._types import KerasCallback
from tfdist.data.strategies import WorkerInput
from tfdist.internals.tf_keras import CallbackList, DataHandler, WorkerTrainingState
from tfdist.keras.own_state import OwnState
from tfdist.keras.registry import hooks
from tfdist.keras.session import calls, files_of_tf_keras
from tfdist.keras.session.adapter import KerasData
from tfdist.keras.session.elastic import WholeBatches
from tfdist.keras.session.positions import Positions, positions_of
from tfdist.keras.session.positions_of_tf_keras import OpenedWhenRead, TfKerasPositions
from tfdist.keras.session.session import (
    FitSession,
    Session,
    fit_of,
    fit_of_callbacks,
    fit_that_reads,
    newest_fit,
)
from tfdist.keras.training_state import TrainingState
from tfdist.keras.workers import elastic_job_of, trains_on_servers


class TfKeras:
    """tf_keras; see `Adapter`."""

    backup_type = BackupAndRestore
    checkpoint_type = ModelCheckpoint
    history_type = History
    of_each_worker: tuple[type, ...] = (ProgbarLogger,)

    def positions(self, session: Session) -> Positions | None:
        """See `Adapter`."""
        if not isinstance(session, FitSession) or elastic_job_of(session.strategy) is None:
            return None
        return TfKerasPositions(session)

    def feed_of(self, x: object) -> None:
        """See `Adapter`; it knows no data tasks."""
        return None

    def count_own_batches(self, data: KerasData, extended: WorkerInput) -> None:
        """See `Adapter`; `count_own_batches` below does, before the data is distributed."""

    def forget_batches(self, data: KerasData) -> None:
        """See `Adapter`."""

    def reopened_datasets(self, data: KerasData) -> Sequence[object]:
        """See `Adapter`."""
        if not data._adapter.should_recreate_iterator():
            return []
        read = data._dataset
        return read.datasets if isinstance(read, OpenedWhenRead) else [read]

    def known_batches(self, data: KerasData) -> int | None:
        """See `Adapter`."""
        return data._inferred_steps

    def expect_batches(self, data: KerasData, batches: int | None) -> None:
        """See `Adapter`."""
        data._inferred_steps = batches

    def save(self, backup: KerasCallback, epoch: int, batch: int | None) -> None:
        """See `Adapter`."""
        state = getattr(backup, "_training_state", None)
        if state is None:
            state = WorkerTrainingState(backup.model, backup.backup_dir, backup.save_freq)
        # It continues with the batch after the saved one, or only with the epoch after it.
        if backup.save_freq == "epoch":
            epoch, batch = epoch - 1, state.CKPT_SAVED_BATCH_UNUSED_VALUE
        elif batch is None:
            fit = fit_of(backup.model)
            assert fit is not None
            epoch, batch = epoch - 1, fit.last_batch
        state._ckpt_saved_epoch.assign(epoch)
        state._ckpt_saved_batch.assign(batch)
        state.back_up(epoch, batch)

    def save_here(self, backup: KerasCallback, positions: Positions) -> None:
        """See `Adapter`."""
        position = positions.position
        backup._training_state.back_up(position.epoch, position.batch)

    def restore(self, backup: KerasCallback, positions: Positions) -> None:
        """See `Adapter`; continues after the batch that was saved."""
        state = backup._training_state
        state.tfdist_restores_for_all = True
        try:
            state.restore()
        finally:
            state.tfdist_restores_for_all = False
        epoch, batch = int(state._ckpt_saved_epoch.numpy()), int(state._ckpt_saved_batch.numpy())
        assert isinstance(positions, TfKerasPositions)
        if state.tfdist_position.value is not None:
            positions.go_on_from(TrainingState(state.tfdist_position.value, OwnState({})))
        elif epoch >= 0:  # a backup of an older release
            positions.go_on_after(epoch, batch)


TF_KERAS = TfKeras()


@hooks(tf_keras.Model, "fit")
def fit(original, self, *args, **kwargs):
    """`fit` knows where it stands, and calls the participants of its session."""
    return calls.call("fit", TF_KERAS, original, self, args, kwargs)


@hooks(tf_keras.Model, "evaluate")
def evaluate(original, self, *args, **kwargs):
    """`evaluate` calls the participants of its session."""
    return calls.call("evaluate", TF_KERAS, original, self, args, kwargs)


@hooks(tf_keras.Model, "predict")
def predict(original, self, *args, **kwargs):
    """`predict` calls the participants of its session."""
    return calls.call("predict", TF_KERAS, original, self, args, kwargs)


@hooks(tf_keras.Model, "_validate_and_get_metrics_result")
def results(original, self, logs):
    """The logs of an epoch, and of a validation, cover all workers."""
    return calls.results_of(self, logs, lambda own: original(self, own))


@hooks(DataHandler, "_configure_dataset_and_inferred_steps")
def open_data(original, self, strategy, x, steps_per_epoch, class_weight, distribute):
    """In elastic training all workers read the same batches; each step cuts them anew."""
    self.tfdist_is_elastic = distribute and elastic_job_of(strategy) is not None
    if not self.tfdist_is_elastic:
        original(self, strategy, x, steps_per_epoch, class_weight, distribute)
        return

    def make(strategy: tf.distribute.Strategy) -> None:
        original(self, strategy, x, steps_per_epoch, class_weight, distribute)
        WholeBatches.check(self._dataset)

    calls.open_data(TF_KERAS, self, strategy, make)


@hooks(DataHandler, "_infer_steps")
def count_own_batches(original, self, steps, dataset):
    """`fit` expects this worker's number of batches where batches are dealt to the workers.

    tf_keras counts a dataset's batches before its strategy deals them out, and would end training
    when this worker's are over.
    """
    batches = original(self, steps, dataset)
    strategy = tf.distribute.get_strategy()
    if steps is not None or batches is None or not trains_on_servers(strategy):
        return batches
    if not strategy.extended.deals_out(dataset):
        return batches
    if self._adapter.should_recreate_iterator():
        return strategy.extended.own_batches(batches)
    # Arrays are repeated before they are dealt out: this worker's share differs by epoch.
    self.tfdist_shares = SharesOfEpochs(batches, strategy.extended.own_batches)
    return next(iter(self.tfdist_shares))


@hooks(DataHandler, "enumerate_epochs")
def count_own_batches_of_epochs(original, self):
    """`fit` expects this worker's share of each epoch of arrays."""
    shares = getattr(self, "tfdist_shares", None)
    if shares is None:
        yield from original(self)
        return
    for epoch, count in zip(original(self), shares, strict=False):
        self._inferred_steps = count
        yield epoch


class SharesOfEpochs:
    """How many batches a worker trains on in each epoch of data that is dealt out without an end.

    Args:
      batches: of an epoch, of all workers.
      own: returns how many of the first N batches of the data are this worker's.
    """

    def __init__(self, batches: int, own: Callable[[int], int]) -> None:
        self._batches = batches
        self._own = own

    def __iter__(self) -> Iterator[int]:
        read = 0
        for epoch in itertools.count(1):
            # tf_keras refuses an epoch without a batch: this one gets the first of a later epoch.
            count = max(self._own(self._batches * epoch) - read, 1)
            yield count
            read += count


@hooks(DataHandler, "steps")
def begin_at_batch(original, self):
    """In elastic training the first epoch begins with the next batch of the members."""
    session = fit_that_reads(self)
    positions = None if session is None else session.participant(TfKerasPositions)
    return original(self) if positions is None else positions.steps(original(self))


@hooks(DataHandler, "catch_stop_iteration")
def around_steps(original, self):
    """Participants are told of the end of the steps of an epoch, or of an evaluation."""
    return calls.steps_of(self, original(self))


@hooks(tf_keras.Model, "_maybe_load_initial_counters_from_ckpt")
def begin_where_the_members_are(original, self, steps_per_epoch, initial_epoch):
    """In elastic training `fit` begins at the position of rank 0, or of a running job."""
    positions = positions_of(self)
    if not isinstance(positions, TfKerasPositions):
        return original(self, steps_per_epoch, initial_epoch)
    return positions.begins_at


@hooks(CallbackList, "on_train_begin")
def begin_fit(original, self, logs=None):
    """Participants begin the training before and after the callbacks."""
    session = newest_fit()
    if session is None or session.callbacks is not None:
        original(self, logs)
    else:
        session.begin_fit(self, lambda: original(self, logs))


@hooks(CallbackList, "on_epoch_begin")
def begin_epoch(original, self, epoch, logs=None):
    """Participants begin an epoch before the callbacks."""
    session = fit_of_callbacks(self)
    if session is not None:
        session.begin_epoch(epoch)
    original(self, epoch, logs)


@hooks(CallbackList, "on_train_batch_end")
def end_step(original, self, batch, logs=None):
    """Participants end a step after the callbacks."""
    original(self, batch, logs)
    session = fit_of_callbacks(self)
    if session is not None:
        session.end_step(batch, logs)


@hooks(CallbackList, "on_epoch_end")
def end_epoch(original, self, epoch, logs=None):
    """Participants end an epoch before the callbacks, which save the beginning of the next one."""
    session = fit_of_callbacks(self)
    if session is not None:
        session.end_epoch()
    original(self, epoch, logs)


@hooks(CallbackList, "on_train_end")
def end_fit(original, self, logs=None):
    """Participants end the training before the callbacks."""
    session = fit_of_callbacks(self)
    if session is not None:
        session.end_fit()
    original(self, logs)


@hooks(WorkerTrainingState, "__init__")
def save_at_the_users_path(original, self, *args, **kwargs):
    """The backup before the newest one is kept, in case that the newest one is damaged.

    In elastic training each worker may become rank 0, which saves where the others restore.
    """
    original(self, *args, **kwargs)
    files_of_tf_keras.keep_former(self)


@hooks(WorkerTrainingState, "restore")
def restore_backup(original, self):
    """In elastic training rank 0 alone restores the backup, when all members are together."""
    if not files_of_tf_keras.is_left_to_begin_of_fit(self):
        original(self)


@hooks(WorkerTrainingState, "back_up")
def back_up(original, self, epoch, batch=0):
    """In elastic training rank 0 alone saves, with the batch that was trained last."""
    files_of_tf_keras.back_up(self, epoch, batch, lambda *at: original(self, *at))


@hooks(WorkerTrainingState, "delete_backup")
def delete_backup(original, self):
    """In elastic training rank 0 deletes the backup when `fit` has ended, or its successor does."""
    files_of_tf_keras.delete(self, lambda: original(self))


@hooks(BackupAndRestore, "_backup")
def meet_after_backup(original, self, epoch, batch=0):
    """In elastic training no member continues before rank 0, or its successor, has saved a backup.

    A backup within a round of `LocalUpdateStrategy` says that continuing from it is not exact.
    """
    files_of_tf_keras.warn_within_round(self, epoch, batch)
    original(self, epoch, batch)
    files_of_tf_keras.meet(self)


@hooks(ModelCheckpoint, "_save_handler")
def save_checkpoint(original, self, filepath):
    """In elastic training rank 0 alone saves, since no value needs the other workers."""
    files_of_tf_keras.save_checkpoint(self, filepath, lambda: original(self, filepath))


@hooks(ModelCheckpoint, "_save_model")
def meet_after_save(original, self, epoch, batch, logs):
    """In elastic training no member continues before rank 0, or its successor, has saved a file."""
    files_of_tf_keras.meet_after_save(self, lambda: original(self, epoch, batch, logs))
