"""Callbacks of tf_keras that log: one worker writes; see `lines` and `event_files`."""

from __future__ import annotations

from tf_keras.callbacks import CSVLogger, RemoteMonitor, TensorBoard

from tfdist.keras import event_files, rank_zero
from tfdist.keras.event_files import WriterOfRank0
from tfdist.keras.hooks import lines
from tfdist.keras.registry import hooks
from tfdist.keras.workers import elastic_job_of


@hooks(CSVLogger, "on_train_begin")
def open_on_rank_0(original, self, logs=None):
    """Rank 0 alone opens the log; in elastic training no worker that joins later empties it."""
    lines.open_log(original, self, logs)


@hooks(CSVLogger, "on_epoch_end")
def log_on_rank_0(original, self, epoch, logs=None):
    """Rank 0 alone logs; in elastic training whoever is rank 0 completes the line of the last."""
    lines.log(original, self, epoch, logs)


@hooks(CSVLogger, "on_train_end")
def close_on_rank_0(original, self, logs=None):
    """Rank 0 alone closes the log, because no other worker has opened it."""
    lines.close_log(original, self, logs)


@hooks(RemoteMonitor, "on_epoch_end")
def send_on_rank_0(original, self, epoch, logs=None):
    """Rank 0 alone sends the logs of an epoch."""
    lines.send_logs(original, self, epoch, logs)


@hooks(TensorBoard, "_train_writer")
def write_training_on_rank_0(original):
    """In elastic training rank 0 writes the events, whichever worker that is."""
    return WriterOfRank0(original)


@hooks(TensorBoard, "_val_writer")
def write_validation_on_rank_0(original):
    """In elastic training rank 0 writes the events, whichever worker that is."""
    return WriterOfRank0(original)


@hooks(TensorBoard, "set_model")
def begin_run_on_rank_0(original, self, model):
    """In elastic training rank 0 alone writes the graph of the model."""
    event_files.begin(original, self, model)


@hooks(TensorBoard, "_configure_embeddings")
def configure_on_rank_0(original, self):
    """In elastic training rank 0 alone writes the configuration of the projector."""
    what = f"the projector's configuration in {self.log_dir}"
    rank_zero.by_rank_0(self.model, what, lambda: original(self))


@hooks(TensorBoard, "_implements_train_batch_hooks")
def ask_for_batches(original, self):
    """In elastic training events of batches are written after a step, which has none itself."""
    is_elastic = elastic_job_of(self.model.distribute_strategy) is not None
    return original(self) or (is_elastic and self.update_freq != "epoch")


@hooks(TensorBoard, "on_train_batch_end")
def write_batch_on_rank_0(original, self, batch, logs=None):
    """In elastic training rank 0 writes the events of batches, whichever worker that is."""
    event_files.end_batch(original, self, int(self._train_step.numpy()), batch, logs)


@hooks(TensorBoard, "on_epoch_end")
def write_epoch_on_rank_0(original, self, epoch, logs=None):
    """In elastic training rank 0 writes the events of an epoch; or its successor, if it is lost."""
    event_files.end_epoch(original, self, epoch, logs)


@hooks(TensorBoard, "on_test_end")
def write_evaluation_on_rank_0(original, self, logs=None):
    """In elastic training rank 0 writes the events of evaluations."""
    event_files.end_test(original, self, self._val_step, logs)


@hooks(TensorBoard, "_start_trace")
def profile_on_rank_0(original, self):
    """Rank 0 alone profiles steps."""
    event_files.start_trace(original, self)


@hooks(TensorBoard, "_stop_trace")
def end_profile(original, self, batch=None):
    """A worker ends a profile that it has begun itself."""
    event_files.stop_trace(original, self, batch)


rank_zero.carries(CSVLogger, lines.describe_log, lines.restore_log)
rank_zero.meets(TensorBoard, "on_epoch_end")
rank_zero.carries(TensorBoard, rank_zero.numbers_of, rank_zero.take_numbers)
