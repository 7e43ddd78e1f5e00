"""Reads the records of parts in batches, which are the same whoever reads them.

The results of a model may depend on the number of rows in a batch. So batches are cut within a
part, and a part is read by one pipeline, whether it reads ahead or one batch at a time:

    pieces (part 7, rows 0-999), (part 9, rows 0-999) --> records --> map --> batches of 256
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._types import Nested
from tfdist.data.queue.client import OwnedTask
from tfdist.data.queue.description import Description
from tfdist.data.sources import RecordSource
from tfdist.errors import PredictionError
from tfdist.internals.tensorflow import context
from tfdist.prediction.deaths import READ_AHEAD, RECORDS_AHEAD
from tfdist.prediction.input_files import InputFiles
from tfdist.reasons import one_line


@dataclasses.dataclass(frozen=True)
class Piece:
    """Consecutive records of a part, from `first` to `end` - 1."""

    part: int
    first: int
    end: int


class Batches:
    """The pipelines of a job's input.

    Args:
      source: the input.
      description: the input cut into tasks.
      input_files: notice a change of a file.
      map_record: of one record; `None`: the record itself.
      batch_size: records of a batch.

    Raises:
      PredictionError: the map fails with any record.
    """

    def __init__(
        self,
        source: RecordSource,
        description: Description,
        input_files: InputFiles,
        map_record: Callable[..., Any] | None,
        batch_size: int,
    ) -> None:
        self.batch_size = batch_size
        self._source, self._description = source, description
        self._input_files = input_files
        self._map = map_record
        self._sizes = description.plan(0).sizes
        self._pieces: Iterator[Piece] = iter(())
        self._failure: BaseException | None = None
        self._gate = _Gate()
        try:
            self._batches = self._pipeline()
        except Exception as error:
            if map_record is None:
                raise
            raise PredictionError(
                "map: expected a function of one record in TensorFlow's operations, but it fails: "
                f"{one_line(error)}"
            ) from error
        self._ahead = self._batches.prefetch(READ_AHEAD)

    @property
    def spec(self) -> Nested:
        """The types and shapes of a batch; the number of its rows is unknown."""
        return self._batches.element_spec

    def ahead(self, pieces: Iterator[Piece]) -> Iterator[Nested]:
        """Yields the batches of pieces, which it takes before their batches are asked for.

        Raises:
          Exception: the exception of `pieces`.
          PredictionError: a file has changed.
          OSError: a file cannot be read.
          tf.errors.OpError: a record cannot be read or mapped. Nothing more is yielded.
        """
        return self._of(self._ahead, pieces)

    def one(self, part: int, first: int, end: int) -> Nested:
        """Returns one batch of a part, as `ahead` does."""
        (batch,) = self._of(self._batches, iter([Piece(part, first, end)]))
        return batch

    def check_input(self, part: int) -> None:
        """Looks whether the file of a part is as it was when this worker has started.

        Raises:
          PredictionError: it was changed.
          FileNotFoundError: it has vanished.
        """
        if self._description.places:
            self._input_files.check(self._description.places[part].file)

    def _of(self, dataset: tf.data.Dataset, pieces: Iterator[Piece]) -> Iterator[Nested]:
        self._pieces, self._failure = pieces, None
        self._gate.open()
        iterator = iter(dataset)  # its end waits for the map, so it comes after the gate is closed
        try:
            yield from iterator
        except BaseException as error:
            # TensorFlow's frames would hold the iterator as long as the exception lives. At the
            # end of an interrupted program its threads would then wait for Python for ever.
            error = error.with_traceback(None)
            if isinstance(error, tf.errors.OpError) and self._failure is not None:
                raise self._failure from None
            raise error
        finally:
            self._gate.close()
            del iterator
        if self._failure is not None:
            raise self._failure

    def _read_pieces(self) -> Iterator[Nested]:
        """Yields the contents of pieces; TensorFlow would hide the type of an exception."""
        try:
            for piece in self._pieces:
                task = OwnedTask(
                    lease=0,
                    epoch=0,
                    task=piece.part,
                    first=0,
                    size=self._sizes[piece.part],
                    place=tuple(self._description.place(piece.part)),
                )
                yield self._content(task, np.arange(piece.first, piece.end))
        except Exception as error:
            self._failure = error

    def _content(self, task: OwnedTask, rows: np.ndarray) -> Nested:
        self.check_input(task.task)
        try:
            return self._source.read(task, rows)
        except OSError:
            raise
        except Exception as error:  # such as a file that has changed
            raise PredictionError(str(error)) from error

    def _pipeline(self) -> tf.data.Dataset:
        pieces = tf.data.Dataset.from_generator(
            self._read_pieces, output_signature=self._source.signature
        )

        def batches_of(*content: tf.Tensor) -> tf.data.Dataset:
            whole = tf.data.Dataset.from_tensors(content if len(content) > 1 else content[0])
            records = self._source.records_of(whole)
            if self._map is not None:
                records = records.map(
                    self._gate.before(self._map),
                    num_parallel_calls=RECORDS_AHEAD,
                    deterministic=True,
                )
            return records.batch(self.batch_size)

        options = tf.data.Options()
        options.deterministic = True
        # A number of calls that is tuned begins small, and two threads then hand over each record,
        # which costs several times what a small map does.
        options.autotune.enabled = False
        # As many threads as there are processors: calls that wait do not hold up the model.
        options.threading.private_threadpool_size = 0
        # Without reading ahead, no other record may be in work.
        options.experimental_optimization.inject_prefetch = False
        return pieces.flat_map(batches_of).with_options(options)


class _Gate:
    """Keeps records from a map once their pipeline is closed, which waits for all begun calls.

    It is a variable that is NaN when the gate is closed. `tf.Variable` would be one of a strategy.
    """

    def __init__(self) -> None:
        with tf.device("CPU:0"):
            self._variable = tf.raw_ops.VarHandleOp(
                dtype=tf.float32, shape=[], shared_name=context.anonymous_name()
            )
        self.open()

    def open(self) -> None:
        """Lets records through."""
        self._assign(0.0)

    def close(self) -> None:
        """Ends the calls that have not begun."""
        self._assign(np.nan)

    def before(self, map_record: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a map that fails if the gate is closed."""

        def gated(*record: Nested) -> Nested:
            state = tf.raw_ops.ReadVariableOp(resource=self._variable, dtype=tf.float32)
            check = tf.raw_ops.CheckNumerics(tensor=state, message="the pipeline is closed")
            with tf.control_dependencies([check]):
                record = tf.nest.map_structure(tf.identity, record)
            return map_record(*record)

        return gated

    def _assign(self, value: float) -> None:
        tf.raw_ops.AssignVariableOp(resource=self._variable, value=tf.constant(value))


def rows_of(batch: Nested) -> int:
    """Returns the number of rows of a batch."""
    first = tf.nest.flatten(batch)[0]
    # From shapes: an op for each batch would cost as much as the call of a small model.
    if isinstance(first, tf.SparseTensor):
        return int(first.dense_shape.numpy()[0])
    if isinstance(first, tf.RaggedTensor):
        return first.row_splits.shape[0] - 1
    return first.shape[0]


def joined(rows: list[Nested]) -> Nested:
    """Returns one batch of several."""

    def concat(*parts: Any) -> Any:
        if isinstance(parts[0], tf.SparseTensor):
            return tf.sparse.concat(0, parts, expand_nonconcat_dims=True)
        return tf.concat(parts, 0)

    return tf.nest.map_structure(concat, *rows)
