"""`fit`, `evaluate` and `predict` with `tfdist.data`: what a step has trained is committed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
from keras.callbacks import BackupAndRestore
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter
from keras.src.trainers.epoch_iterator import EpochIterator

from tfdist import atomic_files
from tfdist.data import checkpoints
from tfdist.data.feed import Feed
from tfdist.data.pipeline import feed_of, tracked
from tfdist.keras.callback import Callback, with_callback
from tfdist.keras.registry import hooks
from tfdist.keras.workers import communicator_of, rank_of, trains_on_servers

# States of backups: that of the weights, of those before them, and of those being written.
_KEPT = 3


@hooks(TFDatasetAdapter, "__init__")
def count_records(original, self, dataset, *args, **kwargs):
    """The batches of data tasks are counted, so that a step's records can be committed."""
    if isinstance(dataset, tf.data.Dataset):
        dataset = tracked(dataset)
    original(self, dataset, *args, **kwargs)


@hooks(EpochIterator, "__iter__")
def forget_number_of_batches(original, self):
    """An epoch of data tasks has as many batches as its worker has taken.

    Keras ends all epochs of an unknown length after the number of batches of the first one.
    """
    if _deals_tasks(self) and not self.steps_per_epoch:
        self._num_batches = None
        self._current_iterator = None
    return original(self)


@hooks(EpochIterator, "_interrupted_warning")
def end_without_warning(original, self):
    """The end of the data of an unknown length is no reason to warn."""
    if not _deals_tasks(self) or self.steps_per_epoch:
        original(self)


@hooks(TensorFlowTrainer, "fit")
def fit_on_tasks(original, self, *args, **kwargs):
    """`fit` commits the records of each step, and goes on with the epoch that the job is in."""

    def begin(feed: Feed, arguments: dict[str, Any]) -> None:
        over = feed.begin_fit(arguments["epochs"])
        arguments["initial_epoch"] = arguments["initial_epoch"] or over

    return _committing("train", original, self, args, kwargs, begin)


@hooks(TensorFlowTrainer, "evaluate")
def evaluate_on_tasks(original, self, *args, **kwargs):
    """`evaluate` commits the records of each step."""
    return _committing("test", original, self, args, kwargs)


@hooks(TensorFlowTrainer, "predict")
def predict_on_tasks(original, self, *args, **kwargs):
    """`predict` commits the records of each step."""
    return _committing("predict", original, self, args, kwargs)


def _deals_tasks(iterator: EpochIterator) -> bool:
    return feed_of(getattr(iterator.data_adapter, "_dataset", None)) is not None


def _committing(
    what: str,
    original: Callable,
    model: Any,
    args: tuple,
    kwargs: dict[str, Any],
    begin: Callable[[Feed, dict[str, Any]], None] | None = None,
) -> Any:
    call = inspect.signature(original).bind(model, *args, **kwargs)
    feed = feed_of(call.arguments.get("x"))
    if feed is None:
        return original(model, *args, **kwargs)
    call.apply_defaults()
    if begin is not None:
        begin(feed, call.arguments)
    given = call.arguments["callbacks"]
    with with_callback(given, _Commit(feed, model, what), first=True) as callbacks:
        call.arguments["callbacks"] = callbacks
        result = original(*call.args, **call.kwargs)
    feed.end_iteration()
    return result


class _Commit(Callback):
    """Commits the records of each step; runs before the user's callbacks, which may save.

    Args:
      feed: of the data.
      model: the model.
      what: "train", "test" or "predict": validation data within `fit` has a queue of its own.
    """

    def __init__(self, feed: Feed, model: Any, what: str) -> None:
        super().__init__()
        self._feed = feed
        self._what = what
        self._batches = model.steps_per_execution
        if communicator_of(model) is not None:  # each device takes batches of its own
            self._batches *= len(model.distribute_strategy.extended.worker_devices)

    def _implements_test_batch_hooks(self) -> bool:
        return True

    def _implements_predict_batch_hooks(self) -> bool:
        return True

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """The pushes of the next steps commit, where they can."""
        if self._what == "train":
            self._feed.begin_steps(self._batches)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Commits."""
        self._commit("train")

    def on_test_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Commits."""
        self._commit("test")

    def on_predict_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Commits."""
        self._commit("predict")

    def _commit(self, what: str) -> None:
        if what == self._what:
            self._feed.train(self._batches)


@hooks(BackupAndRestore, "_save_model")
def back_up_tasks(original, self):
    """A backup has the state of the data tasks at the same step.

    With parameter servers their snapshots have it.
    """
    if trains_on_servers(self.model.distribute_strategy) or not checkpoints.is_needed():
        return original(self)
    state = checkpoints.state()
    is_chief = rank_of(self.model) == 0
    if is_chief:
        # Before the weights, and by the number of the step, which is among them.
        path = _path(self)
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.replace(str(path), lambda new: Path(new).write_text(state))
    original(self)
    if is_chief:
        kept = sorted(path.parent.glob("tasks-*.json"), key=lambda p: p.stat().st_mtime_ns)
        for old in kept[:-_KEPT]:
            old.unlink(missing_ok=True)


@hooks(BackupAndRestore, "_load_model")
def restore_tasks(original, self):
    """The data tasks go on from a backup, too."""
    original(self)
    if trains_on_servers(self.model.distribute_strategy) or not checkpoints.is_needed():
        return
    is_chief = rank_of(self.model) == 0
    path = _path(self)
    checkpoints.restore(path.read_text() if is_chief and path.exists() else "")


def _path(callback: BackupAndRestore) -> Path:
    """The file of the state at the model's step."""
    step = int(callback.model.optimizer.iterations.numpy())
    return Path(callback.backup_dir, f"tasks-{step}.json")
