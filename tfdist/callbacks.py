"""Callbacks for `model.fit`, of Keras 3 and of tf_keras."""

from __future__ import annotations

import os

import tensorflow as tf

from tfdist.horovod.broadcast import BroadcastGlobalVariablesCallback
from tfdist.horovod.elastic_callbacks import (
    CommitStateCallback,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)
from tfdist.horovod.learning_rate import (
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
)
from tfdist.horovod.metrics import MetricAverageCallback
from tfdist.job import process
from tfdist.keras.callback import Callback
from tfdist.ps.stats import rates
from tfdist.ps.stats.rates import Reading

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "CommitStateCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "PsStats",
    "ResumeFrom",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
]


class ResumeFrom(Callback):
    """Lets `fit` of Keras 3 go on from a file of `keras.callbacks.ModelCheckpoint`.

    The model is loaded by the script; this callback restores the rest: the epoch, the next batch of
    the data, the states of random generators and the sums of metrics. Give it to all workers; the
    chief reads the file. A strategy of tfdist must have been made before `fit` that saved the file.

    Example:
      model = keras.models.load_model("model.keras")
      model.fit(data, epochs=9, callbacks=[tfdist.callbacks.ResumeFrom("model.keras"), ...])
    """

    def __init__(self, filepath: str | os.PathLike) -> None:
        """Makes the callback.

        Args:
          filepath: the file that was loaded, `.keras` or `.weights.h5`.
        """
        super().__init__()
        self._filepath = filepath

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Goes to the position.

        Raises:
          ValueError: the file has no position.
          tf.errors.NotFoundError: there is no such file.
        """
        # Keras 3 may be absent where tf_keras trains.
        from tfdist.keras.state_file import go_on_from_file

        go_on_from_file(self.model, self._filepath)


_SCALAR = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars")
)
_SCALAR.data_class = 1  # DATA_CLASS_SCALAR


class PsStats(Callback):
    """Writes statistics of the parameter servers as TensorBoard scalars.

    For each server `ps/0/rows`, `bytes`, `pulls_per_second`, `pushes_per_second`,
    `lookups_per_second` and `hit_rate`; for each table the same, and the number of evicted rows,
    under `ps/0/tables/NAME/`. Rates are averages since the last write. Give it to all workers: the
    chief writes. Without parameter servers it writes nothing.

    Example:
      model.fit(data, callbacks=[tfdist.callbacks.PsStats("logs", update_freq=100)])
    """

    def __init__(self, log_dir: str, update_freq: str | int = "epoch") -> None:
        """Makes the callback.

        Args:
          log_dir: the directory that TensorBoard reads; the files are in its folder "ps".
          update_freq: "epoch", or a number of steps of this worker.

        Raises:
          ValueError: it is neither.
        """
        super().__init__()
        # The number of steps between two writes; `None`: once an epoch.
        self._every: int | None = None
        if isinstance(update_freq, int) and not isinstance(update_freq, bool) and update_freq > 0:
            self._every = update_freq
        elif update_freq != "epoch":
            raise ValueError(
                'PsStats: expected update_freq to be "epoch" or a number of steps, received '
                f"{update_freq!r}"
            )
        self._log_dir = f"{log_dir.rstrip('/')}/ps"
        self._step = 0
        self._writer: tf.summary.SummaryWriter | None = None
        self._before: list[Reading | None] = []

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Reads the servers for the first time."""
        worker = process.current.ps_worker
        if worker is None or not worker.cluster.is_chief:
            return
        self._writer = tf.summary.create_file_writer(self._log_dir)
        self._before = process.current.readings()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Writes every `update_freq` steps."""
        self._step += 1
        if self._every is not None and self._step % self._every == 0:
            self._write()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Writes once an epoch if `update_freq` is "epoch"."""
        if self._every is None:
            self._write()

    def on_train_end(self, logs: dict | None = None) -> None:
        """Closes the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self) -> None:
        if self._writer is None:
            return
        now = process.current.readings()
        with self._writer.as_default(step=self._step), tf.summary.record_if(True):
            for i, (before, after) in enumerate(zip(self._before, now, strict=True)):
                if after is not None:
                    _write_server(f"ps/{i}", rates.rates(before, after))
        self._writer.flush()
        self._before = now


def _write_server(prefix: str, found: rates.ServerRates) -> None:
    scalars = {
        "rows": found.rows,
        "bytes": found.bytes,
        "pulls_per_second": found.pulls,
        "pushes_per_second": found.pushes,
        "lookups_per_second": found.lookups,
        "hit_rate": found.hit_rate,
    }
    for name, table in found.tables.items():
        scalars |= {
            f"tables/{name}/rows": table.rows,
            f"tables/{name}/bytes": table.bytes,
            f"tables/{name}/lookups_per_second": table.lookups,
            f"tables/{name}/updates_per_second": table.updates,
            f"tables/{name}/hit_rate": table.hit_rate,
            f"tables/{name}/evicted": table.evicted,
        }
    for name, value in scalars.items():
        if value is not None:
            # As `tf.summary.scalar` does, for which TensorBoard would have to be installed.
            tf.summary.write(f"{prefix}/{name}", tf.constant(value, tf.float32), metadata=_SCALAR)
