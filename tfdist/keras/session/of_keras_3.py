"""The session of Keras 3: all functions of `fit`, `evaluate` and `predict` that it replaces."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
from keras.callbacks import BackupAndRestore, CallbackList, History, ModelCheckpoint, ProgbarLogger

from tfdist._types import KerasCallback
from tfdist.data.feed import Feed
from tfdist.data.iterators import plain
from tfdist.data.openings import openings_of
from tfdist.data.pipeline import feed_of, tracked
from tfdist.data.strategies import WorkerInput
from tfdist.internals.keras_3 import TFDatasetAdapter, TFEpochIterator
from tfdist.internals.keras_3_trainer import TensorFlowTrainer
from tfdist.keras.hooks.shuffling import for_strategy
from tfdist.keras.registry import hooks
from tfdist.keras.session import calls, files_of_keras_3
from tfdist.keras.session.adapter import KerasData
from tfdist.keras.session.elastic import WholeBatches
from tfdist.keras.session.positions import Positions
from tfdist.keras.session.positions_of_keras_3 import Keras3Positions
from tfdist.keras.session.session import (
    FitSession,
    Session,
    fit_of_callbacks,
    fit_that_reads,
    newest_fit,
)


class Keras3:
    """Keras 3; see `Adapter`."""

    backup_type = BackupAndRestore
    checkpoint_type = ModelCheckpoint
    history_type = History
    of_each_worker: tuple[type, ...] = (ProgbarLogger,)

    def positions(self, session: Session) -> Positions | None:
        """See `Adapter`."""
        return Keras3Positions(session) if isinstance(session, FitSession) else None

    def feed_of(self, x: object) -> Feed | None:
        """See `Adapter`."""
        return feed_of(x)

    def count_own_batches(self, data: KerasData, extended: WorkerInput) -> None:
        """See `Adapter`. Else `fit` would warn that the data ended early."""
        if extended.deals_out(getattr(data.data_adapter, "_dataset", None)):
            data.data_adapter = _DealtAdapter(data.data_adapter, extended)
            data._num_batches = data.data_adapter.num_batches

    def forget_batches(self, data: KerasData) -> None:
        """See `Adapter`."""
        deals_tasks = feed_of(getattr(data.data_adapter, "_dataset", None)) is not None
        if deals_tasks and not data.steps_per_epoch:
            data._num_batches = None
            data._current_iterator = None
            data._interrupted_warning = lambda: None

    def reopened_datasets(self, data: KerasData) -> Sequence[object]:
        """See `Adapter`."""
        return [data._distributed_dataset] if data.steps_per_epoch is None else []

    def known_batches(self, data: KerasData) -> int | None:
        """See `Adapter`."""
        return data._num_batches

    def expect_batches(self, data: KerasData, batches: int | None) -> None:
        """See `Adapter`."""
        data._num_batches = batches

    def save(self, backup: KerasCallback, epoch: int, batch: int | None) -> None:
        """See `Adapter`."""
        # It counts epochs from 0 again after it was restored, until one ends.
        backup._current_epoch = epoch
        if batch is not None:
            backup._last_batch_seen = batch
        backup._save_model()

    def save_here(self, backup: KerasCallback, positions: Positions) -> None:
        """See `Adapter`."""
        backup._save_model()

    def restore(self, backup: KerasCallback, positions: Positions) -> None:
        """See `Adapter`."""
        backup.restores_for_all = True
        backup.on_train_begin()


class _DealtAdapter:
    """A data adapter whose batches are dealt to several workers."""

    def __init__(self, adapter: TFDatasetAdapter, extended: WorkerInput) -> None:
        self._adapter = adapter
        self._extended = extended

    def __getattr__(self, name):
        return getattr(self._adapter, name)

    @property
    def num_batches(self):
        batches = self._adapter.num_batches
        return None if batches is None else self._extended.own_batches(batches)


KERAS_3 = Keras3()


@hooks(TensorFlowTrainer, "fit")
def fit(original, self, *args, **kwargs):
    """`fit` knows where it stands, and calls the participants of its session."""
    return calls.call("fit", KERAS_3, original, self, args, kwargs)


@hooks(TensorFlowTrainer, "evaluate")
def evaluate(original, self, *args, **kwargs):
    """`evaluate` calls the participants of its session."""
    return calls.call("evaluate", KERAS_3, original, self, args, kwargs)


@hooks(TensorFlowTrainer, "predict")
def predict(original, self, *args, **kwargs):
    """`predict` calls the participants of its session."""
    return calls.call("predict", KERAS_3, original, self, args, kwargs)


@hooks(TensorFlowTrainer, "_get_metrics_result_or_logs")
def results(original, self, logs):
    """The logs of an epoch, and of a validation, cover all workers."""
    return calls.results_of(self, logs, lambda own: original(self, own))


@hooks(TFDatasetAdapter, "__init__")
def count_records(original, self, dataset, *args, **kwargs):
    """The batches of data tasks are counted, so that a step's records can be committed."""
    if isinstance(dataset, tf.data.Dataset):
        dataset = tracked(dataset)
    original(self, dataset, *args, **kwargs)


@hooks(TFEpochIterator, "__init__")
def open_data(original, self, distribute_strategy=None, *args, **kwargs):
    """Participants decide how data is distributed, and count how often it is opened."""

    def make(strategy: tf.distribute.Strategy) -> None:
        with for_strategy(strategy):
            original(self, strategy, *args, **kwargs)
        # Steps are made of the strategy of the model.
        self._distribute_strategy = distribute_strategy
        distributed = self._distributed_dataset
        self._distributed_dataset = plain(distributed)
        self.tfdist_openings = getattr(distributed, "openings", None)
        if isinstance(strategy, WholeBatches):
            WholeBatches.check(distributed)
            self.tfdist_openings = openings_of(distributed)

    calls.open_data(KERAS_3, self, distribute_strategy, make)


@hooks(TFEpochIterator, "_get_iterator")
def open_at_position(original, self):
    """`fit` opens its training data at its position, other data as the other workers do."""
    opened = original(self)
    positions = _positions_that_read(self)
    if positions is not None:
        return positions.opened(opened)
    openings = self.tfdist_openings
    if openings is None:
        return opened
    if _has_read_all(self) and openings.pass_over():
        return ()
    openings.agree()
    return opened


@hooks(TFEpochIterator, "_enumerate_iterator")
def begin_at_batch(original, self):
    """The first epoch of a `fit` that continues begins with its next batch."""
    positions = _positions_that_read(self)
    return original(self) if positions is None else positions.steps(original(self))


@hooks(TFEpochIterator, "catch_stop_iteration")
def around_steps(original, self):
    """Participants are told of the end of the steps of an epoch, or of an evaluation."""
    return calls.steps_of(self, original(self))


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


@hooks(CallbackList, "on_test_batch_end")
def end_validation_step(original, self, batch, logs=None):
    """Participants end a step of the validation of `fit` after the callbacks."""
    original(self, batch, logs)
    session = fit_of_callbacks(self)
    if session is not None:
        session.end_validation_step(logs)


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


@hooks(CallbackList, "_configure_async_dispatch")
def call_in_order(original, self, callbacks):
    """A callback that is given alone is called between two steps, as one in a list is.

    Keras looks for such callbacks in lists alone, and calls others in threads beside the steps.
    """
    is_alone = callbacks is not None and not isinstance(callbacks, list | tuple)
    original(self, [callbacks] if is_alone else callbacks)


@hooks(BackupAndRestore, "_save_model")
def back_up(original, self):
    """A backup is one file, with the position in the data and the replicas' own state.

    The backup before it is kept, as a whole file at each time; Keras copies it. It has the state of
    the data tasks at the same step. In elastic training rank 0 alone saves; if it is lost
    meanwhile, its successor does.
    """
    files_of_keras_3.back_up(self, lambda: original(self))


@hooks(BackupAndRestore, "on_train_begin")
def restore_backup(original, self, logs=None):
    """`fit` continues from the backup before the newest one if the newest one is damaged.

    In elastic training rank 0 alone restores it, when all members are together.
    """
    files_of_keras_3.restore(self, lambda: original(self, logs))


@hooks(BackupAndRestore, "_load_model")
def go_on_from_backup(original, self):
    """`fit` continues with the batch after the backup's last one; Keras repeats its epoch."""
    files_of_keras_3.load(self, lambda: original(self))


@hooks(BackupAndRestore, "on_train_end")
def delete_backup(original, self, logs=None):
    """In elastic training rank 0 deletes the backup when `fit` has ended, or its successor does.

    A worker that an elastic job has left behind does not delete the backup of the others.
    """
    files_of_keras_3.delete(self, lambda: original(self, logs))


@hooks(ModelCheckpoint, "_save_model")
def save_checkpoint(original, self, epoch, batch, logs):
    """A checkpoint's file has the position in the data and the replicas' own state.

    In elastic training rank 0 alone saves; if it is lost meanwhile, its successor does.
    """
    files_of_keras_3.save_checkpoint(
        self, epoch, batch, logs, lambda: original(self, epoch, batch, logs)
    )


def _has_read_all(data: KerasData) -> bool:
    """Whether all steps are made: Keras opens the data once more, and again before it reads it."""
    batches = data._num_batches
    return data.steps_per_epoch is None and bool(batches) and data._steps_seen >= batches


def _positions_that_read(data: KerasData) -> Keras3Positions | None:
    session = fit_that_reads(data)
    return None if session is None else session.participant(Keras3Positions)
