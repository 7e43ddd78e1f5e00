"""Callbacks for `model.fit`, of Keras 3 and of tf_keras."""

from __future__ import annotations

import os

import tensorflow as tf

from tfdist.config.cluster import Cluster
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
from tfdist.keras.on_rank_zero import OnRankZero
from tfdist.observe.metrics.collector import describe
from tfdist.observe.metrics.rates import Rates
from tfdist.ps.stats import rates
from tfdist.ps.stats.rates import Reading

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "CommitStateCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "Metrics",
    "OnRankZero",
    "PsStats",
    "ResumeFrom",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
]


class ResumeFrom(Callback):
    """Lets `fit` of Keras 3 continue from a file of `keras.callbacks.ModelCheckpoint`.

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


class _Scalars(Callback):
    """Writes scalars for TensorBoard, after a number of steps.

    Args:
      log_dir: the directory that TensorBoard reads.
      update_freq: "epoch", or a number of steps of this worker.

    Raises:
      ValueError: it is neither.
    """

    def __init__(self, log_dir: str, update_freq: str | int) -> None:
        super().__init__()
        # The number of steps between two writes; `None`: once an epoch.
        self._every: int | None = None
        if isinstance(update_freq, int) and not isinstance(update_freq, bool) and update_freq > 0:
            self._every = update_freq
        elif update_freq != "epoch":
            raise ValueError(
                f'{type(self).__name__}: expected update_freq to be "epoch" or a number of steps, '
                f"received {update_freq!r}"
            )
        self._log_dir = log_dir.rstrip("/")
        self._step = 0
        self._writer: tf.summary.SummaryWriter | None = None

    def _begin(self) -> str | None:
        """Reads the numbers for the first time.

        Returns:
          The folder within `log_dir`; `None` if this worker writes nothing.
        """
        raise NotImplementedError

    def _read(self) -> dict[str, float | None]:
        """Returns the scalars by their names; `None` is not written."""
        raise NotImplementedError

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Reads the numbers for the first time."""
        folder = self._begin()
        if folder is not None:
            self._writer = tf.summary.create_file_writer(f"{self._log_dir}/{folder}")

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
        with self._writer.as_default(step=self._step), tf.summary.record_if(True):
            for name, value in self._read().items():
                if value is not None:
                    # As `tf.summary.scalar` does, for which TensorBoard would have to be installed.
                    tf.summary.write(name, tf.constant(value, tf.float32), metadata=_SCALAR)
        self._writer.flush()


class Metrics(_Scalars):
    """Writes the metrics of this task as TensorBoard scalars; docs/operate/metrics.md lists them.

    Instead of a counter it writes how much the counter has grown per second since the last write:
    `tfdist/samples_per_second`, `tfdist/bytes_sent_per_second/workers`, and, of counters of
    seconds, the share of time: `tfdist/communication_share/workers`, `tfdist/wait_share/worker 1`.
    Give it to all workers: each writes into a folder of its own. `TFDIST_METRICS_PORT` is not
    needed. Make it before the first `fit` of the model, since a step that was traced before is not
    counted.

    Example:
      model.fit(data, callbacks=[tfdist.callbacks.Metrics("logs", update_freq=100)])
    """

    def __init__(self, log_dir: str, update_freq: str | int = "epoch") -> None:
        """Makes the callback.

        Args:
          log_dir: the directory that TensorBoard reads; the files of a task are in a folder such as
            "worker-0".
          update_freq: "epoch", or a number of steps of this worker.

        Raises:
          ValueError: it is neither.
        """
        super().__init__(log_dir, update_freq)
        process.current.counts_steps = True
        self._rates = Rates()

    def _begin(self) -> str:
        self._rates = Rates()
        self._read()
        return self._cluster.task_name.replace(" ", "-")

    def _read(self) -> dict[str, float | None]:
        settings = process.current.settings
        return dict(self._rates.scalars(describe(self._cluster, settings, None)))

    @property
    def _cluster(self) -> Cluster:
        # Strategies of one process belong to no job.
        if not process.is_initialized():
            return Cluster()
        return process.cluster("tfdist.callbacks.Metrics")


class PsStats(_Scalars):
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
        super().__init__(log_dir, update_freq)
        self._before: list[Reading | None] = []

    def _begin(self) -> str | None:
        worker = process.current.ps_worker
        if worker is None or not worker.cluster.is_chief:
            return None
        self._before = process.current.readings()
        return "ps"

    def _read(self) -> dict[str, float | None]:
        scalars: dict[str, float | None] = {}
        now = process.current.readings()
        for i, (before, after) in enumerate(zip(self._before, now, strict=True)):
            if after is not None:
                scalars |= _of_server(f"ps/{i}", rates.rates(before, after))
        self._before = now
        return scalars


def _of_server(prefix: str, found: rates.ServerRates) -> dict[str, float | None]:
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
    return {f"{prefix}/{name}": value for name, value in scalars.items()}
