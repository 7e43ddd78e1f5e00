"""The event files of a `TensorBoard`, of Keras 3 or tf_keras: one worker writes a run.

In an elastic job rank 0 flushes what it has written before the members continue. Its successor
opens a file of its own in the same directories, which TensorBoard shows as one run. A call that
rank 0 may not have ended is made again into other files, and of these the events are taken that the
run does not have yet.
"""

from __future__ import annotations

import contextlib
import tempfile
import weakref
from collections.abc import Callable, Iterator

import tensorflow as tf

from tfdist._types import KerasCallback, KerasModel, Logs
from tfdist.keras import rank_zero
from tfdist.keras.callback import replaced
from tfdist.keras.workers import elastic_job_of, rank_of

# Of workers that write no run: directories of theirs that are deleted at the end.
_scratch: weakref.WeakKeyDictionary[KerasCallback, tempfile.TemporaryDirectory]
_scratch = weakref.WeakKeyDictionary()
# Callbacks that trace steps in this process; their own flags are numbers, which newcomers receive.
_tracing: weakref.WeakSet[KerasCallback] = weakref.WeakSet()


class WriterOfRank0(property):
    """A property of `TensorBoard`: a writer of events, which writes nothing on other ranks.

    Args:
      original: Keras's property.
    """

    def __init__(self, original: property) -> None:
        super().__init__(
            lambda board: (
                tf.summary.create_noop_writer()
                if rank_zero.is_left_to_rank_0(board.model)
                else original.__get__(board)
            )
        )


def begin(original: Callable, board: KerasCallback, model: KerasModel) -> None:
    """Calls `set_model`, which writes the graph of the model."""
    original(board, model)
    if board.write_graph and elastic_job_of(model.distribute_strategy) is not None:
        _write(board, "the model's graph", board._write_keras_model_summary, is_called=True)


def begin_elsewhere(original: Callable, board: KerasCallback, model: KerasModel) -> None:
    """Calls `set_model` on a worker of a fixed job that writes no run.

    It writes into a directory that is deleted: reading some variables, as for histograms, needs all
    workers.
    """
    folder = _scratch[board] = tempfile.TemporaryDirectory(prefix="tfdist-events-")
    with replaced(board, log_dir=folder.name):
        original(board, model)


def end(original: Callable, board: KerasCallback, logs: Logs | None) -> None:
    """Calls `on_train_end`, and deletes what this worker has written if it does not write a run."""
    original(board, logs)
    folder = _scratch.pop(board, None)
    if folder is not None:
        folder.cleanup()


def end_epoch(original: Callable, board: KerasCallback, epoch: int, logs: Logs | None) -> None:
    """Calls `on_epoch_end` on rank 0; the members of an elastic job meet behind it."""
    if elastic_job_of(board.model.distribute_strategy) is None:
        original(board, epoch, logs)
        return
    _write(board, f"the events of epoch {epoch + 1}", lambda: original(board, epoch, logs))
    rank_zero.meet(board)


def end_batch(
    original: Callable, board: KerasCallback, step: int, batch: int, logs: Logs | None
) -> None:
    """Calls `on_train_batch_end`.

    Args:
      original: Keras's.
      board: the callback.
      step: the number of the batch in the run.
      batch: as for the hook.
      logs: as for the hook.
    """
    if elastic_job_of(board.model.distribute_strategy) is None:
        original(board, batch, logs)
        return
    if board.update_freq == "epoch" or step % board.update_freq:
        original(board, batch, logs)
        return

    def write() -> None:
        after = board._global_train_batch
        try:
            board._global_train_batch = step
            # The default writer belongs to the member that began the step.
            with board._train_writer.as_default(step), tf.summary.record_if(True):
                original(board, batch, logs)
        finally:
            board._global_train_batch = after

    if rank_zero.is_left_to_rank_0(board.model):
        original(board, batch, logs)  # counts
    _write(board, f"the events of batch {batch + 1}", write)


def end_test(original: Callable, board: KerasCallback, step: int, logs: Logs | None) -> None:
    """Calls `on_test_end`; `step` is Keras's number of the last batch of the evaluation."""
    if elastic_job_of(board.model.distribute_strategy) is None:
        original(board, logs)
        return
    original(board, logs)

    def write() -> None:
        # It takes back the default writer of the evaluation.
        board._push_writer(board._val_writer, step)
        original(board, logs)

    _write(board, "the events of an evaluation", write, is_called=True)


def start_trace(original: Callable, board: KerasCallback) -> None:
    """Calls `_start_trace` on rank 0 alone, as far as it is known then."""
    if rank_of(board.model) == 0 and not rank_zero.is_left_to_rank_0(board.model):
        original(board)
        _tracing.add(board)


def stop_trace(original: Callable, board: KerasCallback, batch: int) -> None:
    """Calls `_stop_trace` where this process traces."""
    if board in _tracing:
        _tracing.discard(board)
        original(board, batch)
    else:
        board._is_tracing = False


def _write(
    board: KerasCallback, what: str, call: Callable[[], None], is_called: bool = False
) -> None:
    """Lets rank 0 of an elastic job write events, and flush them.

    Args:
      board: the callback.
      what: the written data's name, for the log.
      call: writes it.
      is_called: whether this member has done so as if it were rank 0.
    """
    model = board.model
    if rank_zero.is_left_to_rank_0(model):
        rank_zero.owe(model, f"{what} in {board.log_dir}", lambda: _write_again(board, call))
        return
    if not is_called:
        call()
    for writer in board._writers.values():
        writer.flush()


def _write_again(board: KerasCallback, call: Callable[[], None]) -> None:
    """Makes a call whose events the run may have already, wholly or in part."""
    folders = {"train": board._train_dir, "val": board._val_dir}
    with tempfile.TemporaryDirectory(prefix="tfdist-events-") as scratch:
        made = {name: tf.summary.create_file_writer(f"{scratch}/{name}") for name in folders}
        with replaced(board, _writers=made):
            call()
        for writer in made.values():
            writer.close()
        for name, folder in folders.items():
            known = {(event.step, value.tag) for event, value in _values(folder)}
            new = [
                (event, value)
                for event, value in _values(f"{scratch}/{name}")
                if (event.step, value.tag) not in known
            ]
            if not new:
                continue
            writer = board._train_writer if name == "train" else board._val_writer
            for event, value in new:
                one = tf.compat.v1.Summary(value=[value])
                with writer.as_default(), tf.summary.record_if(True):
                    tf.summary.experimental.write_raw_pb(one.SerializeToString(), event.step)
            writer.flush()


def _values(folder: str) -> Iterator[tuple[tf.compat.v1.Event, tf.compat.v1.Summary.Value]]:
    """The values in the event files of a directory, each with its event."""
    for path in tf.io.gfile.glob(f"{folder}/events.out.tfevents.*"):
        # The last record of a killed process may be half a record.
        with contextlib.suppress(tf.errors.DataLossError):
            for record in tf.data.TFRecordDataset(path):
                event = tf.compat.v1.Event.FromString(record.numpy())
                for value in event.summary.value:
                    yield event, value
