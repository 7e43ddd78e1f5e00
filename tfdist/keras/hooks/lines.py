"""Callbacks that log an epoch by a line or a request: rank 0 alone does. `CSVLogger` and others."""

from __future__ import annotations

import os
from collections.abc import Callable

from keras.callbacks import CSVLogger, RemoteMonitor

from tfdist._types import KerasCallback, Logs
from tfdist.control.encoding import JsonObject
from tfdist.keras import rank_zero
from tfdist.keras.callback import replaced
from tfdist.keras.log_file import CsvLogFile
from tfdist.keras.registry import hooks
from tfdist.keras.workers import elastic_job_of, rank_of


@hooks(CSVLogger, "on_train_begin")
def open_on_rank_0(original, self, logs=None):
    """Rank 0 alone opens the log; in elastic training no worker that joins later empties it."""
    open_log(original, self, logs)


@hooks(CSVLogger, "on_epoch_end")
def log_on_rank_0(original, self, epoch, logs=None):
    """Rank 0 alone logs; in elastic training whoever is rank 0 completes the line of the last."""
    log(original, self, epoch, logs)


@hooks(CSVLogger, "on_train_end")
def close_on_rank_0(original, self, logs=None):
    """Rank 0 alone closes the log, because no other worker has opened it."""
    close_log(original, self, logs)


@hooks(RemoteMonitor, "on_epoch_end")
def send_on_rank_0(original, self, epoch, logs=None):
    """Rank 0 alone sends the logs of an epoch."""
    send_logs(original, self, epoch, logs)


def open_log(original: Callable, logger: KerasCallback, logs: Logs | None) -> None:
    """Calls `CSVLogger.on_train_begin` of a Keras, so that rank 0 alone opens the file."""
    if elastic_job_of(logger.model.distribute_strategy) is None:
        if rank_of(logger.model) == 0:
            original(logger, logs)
        return
    with replaced(logger, filename=os.devnull, append=False):
        original(logger, logs)
    logger.csv_file.close()
    file = logger.csv_file = CsvLogFile(logger.filename, logger.append)
    logger.append_header = file.is_new
    rank_zero.by_rank_0(logger.model, f"the beginning of {logger.filename}", file.save)


def log(original: Callable, logger: KerasCallback, epoch: int, logs: Logs | None) -> None:
    """Calls `CSVLogger.on_epoch_end` of a Keras, so that rank 0 alone writes."""
    if elastic_job_of(logger.model.distribute_strategy) is None:
        if rank_of(logger.model) == 0:
            original(logger, epoch, logs)
        return
    original(logger, epoch, logs)
    what = f"the line of epoch {epoch + 1} in {logger.filename}"
    rank_zero.by_rank_0(logger.model, what, logger.csv_file.save)


def close_log(original: Callable, logger: KerasCallback, logs: Logs | None) -> None:
    """Calls `CSVLogger.on_train_end` of a Keras where there is a file."""
    if elastic_job_of(logger.model.distribute_strategy) is not None or rank_of(logger.model) == 0:
        original(logger, logs)


def send_logs(original: Callable, monitor: KerasCallback, epoch: int, logs: Logs | None) -> None:
    """Calls `RemoteMonitor.on_epoch_end` of a Keras on rank 0 alone."""
    if elastic_job_of(monitor.model.distribute_strategy) is not None:
        what = f"the logs of epoch {epoch + 1} for {monitor.root}"
        rank_zero.by_rank_0(monitor.model, what, lambda: original(monitor, epoch, logs))
    elif rank_of(monitor.model) == 0:
        original(monitor, epoch, logs)


def describe_log(logger: KerasCallback) -> JsonObject | None:
    """The state of a `CSVLogger` that a newcomer needs; `None` if it has opened nothing."""
    # tf_keras has no such attribute before `fit`.
    if not isinstance(getattr(logger, "csv_file", None), CsvLogFile):
        return None
    return {**logger.csv_file.describe(), "keys": logger.keys}


def restore_log(logger: KerasCallback, described: JsonObject | None) -> None:
    """Lets a newcomer's `CSVLogger` continue at the members' position."""
    if described is None:
        return
    keys = described.pop("keys")
    logger.csv_file.restore(described)
    logger.keys = keys
    # Its next line may be the first line that this process writes.
    logger.append_header = logger.csv_file.is_new


rank_zero.carries(CSVLogger, describe_log, restore_log)
