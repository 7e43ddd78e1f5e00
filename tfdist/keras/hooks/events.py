"""`TensorBoard`: one worker writes a run; see `event_files`."""

from __future__ import annotations

from keras.callbacks import TensorBoard

from tfdist.keras import event_files, rank_zero
from tfdist.keras.event_files import WriterOfRank0
from tfdist.keras.registry import hooks
from tfdist.keras.workers import elastic_job_of, rank_of


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
    """Rank 0 alone writes a run; in a fixed job the others write where it is deleted."""
    is_fixed = elastic_job_of(model.distribute_strategy) is None
    if is_fixed and rank_of(model) != 0:
        event_files.begin_elsewhere(original, self, model)
    else:
        event_files.begin(original, self, model)


@hooks(TensorBoard, "_configure_embeddings")
def configure_on_rank_0(original, self):
    """In elastic training rank 0 alone writes the configuration of the projector."""
    what = f"the projector's configuration in {self.log_dir}"
    rank_zero.by_rank_0(self.model, what, lambda: original(self))


@hooks(TensorBoard, "on_train_batch_end")
def write_batch_on_rank_0(original, self, batch, logs=None):
    """In elastic training rank 0 writes the events of batches, whichever worker that is."""
    event_files.end_batch(original, self, self._global_train_batch, batch, logs)


@hooks(TensorBoard, "on_epoch_end")
def write_epoch_on_rank_0(original, self, epoch, logs=None):
    """In elastic training rank 0 writes the events of an epoch; or its successor, if it is lost."""
    event_files.end_epoch(original, self, epoch, logs)


@hooks(TensorBoard, "on_test_end")
def write_evaluation_on_rank_0(original, self, logs=None):
    """In elastic training rank 0 writes the events of evaluations."""
    event_files.end_test(original, self, self._global_test_batch, logs)


@hooks(TensorBoard, "on_train_end")
def end_run(original, self, logs=None):
    """A worker that does not write the run deletes what it has written."""
    event_files.end(original, self, logs)


@hooks(TensorBoard, "_start_trace")
def profile_on_rank_0(original, self):
    """Rank 0 alone profiles steps."""
    event_files.start_trace(original, self)


@hooks(TensorBoard, "_stop_trace")
def end_profile(original, self, batch=None):
    """A worker ends a profile that it has begun itself."""
    event_files.stop_trace(original, self, batch)


rank_zero.meets(TensorBoard, "on_epoch_end")
rank_zero.carries(TensorBoard, rank_zero.numbers_of, rank_zero.take_numbers)
