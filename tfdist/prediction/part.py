"""The rows of one part, and its bad records."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist._types import Nested
from tfdist.errors import PredictionError
from tfdist.prediction.batches import Batches, joined, rows_of
from tfdist.prediction.claims import Claim
from tfdist.prediction.commits import StagedPart
from tfdist.prediction.deaths import MAX_DEATHS
from tfdist.prediction.folder import OutputFolder
from tfdist.prediction.job_description import JobDescription
from tfdist.prediction.merged_metrics import PartMetrics
from tfdist.prediction.models import Forward
from tfdist.prediction.rejections import Rejections
from tfdist.prediction.writers import RowFormat
from tfdist.reasons import kind_and_text, one_line

_log = logging.getLogger("tfdist")
# Failures that do not come from a record.
_NOT_OF_A_RECORD = (
    PredictionError,
    ImportError,
    MemoryError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnavailableError,
)


@dataclasses.dataclass(frozen=True)
class PartMaker:
    """All that the parts of a job have in common.

    Attributes:
      folder, job: of the parts.
      batches: of the input.
      forward: the model.
      format: of the files.
      metrics: of a part.
      rejections: of this worker.
      keep: the kept features.
      may_continue: raises an exception if this process is to end.
    """

    folder: OutputFolder
    job: JobDescription
    batches: Batches
    forward: Forward
    format: RowFormat
    metrics: PartMetrics
    rejections: Rejections
    keep: Sequence[str]
    may_continue: Callable[[], None]

    @property
    def parks(self) -> bool:
        """Whether bad records are left out."""
        return self.job.arguments.errors == "park"

    def count(self, batch: Nested, columns: dict[str, np.ndarray]) -> None:
        """Counts a batch and its outputs in the metrics.

        Raises:
          PredictionError: there are metrics, and no labels or not one output.
        """
        if not self.metrics.names:
            return
        _, labels, weights = unpacked(batch)
        outputs = [name for name in columns if name not in self.keep]
        if labels is None or len(outputs) != 1:
            raise PredictionError(
                "metrics: expected a map that returns (features, labels), and a model with one "
                f"output; received {'no' if labels is None else 'some'} labels and the outputs "
                f"{outputs}"
            )
        self.metrics.update(labels, columns[outputs[0]], weights)

    def make_metric_variables(self, part: int) -> None:
        """Counts one good record of a part, so that metrics have variables to put states into."""
        _, first, end = self.job.records_of(part)
        for row in range(end - first):
            try:
                batch = self.batches.one(part, row, row + 1)
                columns = self.forward(unpacked(batch)[0])
            except Exception as error:
                if not is_of_a_record(error):
                    raise
                continue
            self.count(batch, columns)
            return


class PredictedPart:
    """A part in the making; `close` ends it, whether it is committed or not.

    Args:
      maker: of the job.
      claim: of the part.
    """

    def __init__(self, maker: PartMaker, claim: Claim) -> None:
        self._maker, self.claim = maker, claim
        self._file, self._first, self._end = maker.job.records_of(claim.part)
        self._read = 0
        maker.metrics.begin()
        self._staged = StagedPart(maker.folder, maker.job, claim.part, maker.format)

    @property
    def size(self) -> int:
        """The number of its records."""
        return self._end - self._first

    @property
    def is_whole(self) -> bool:
        """Whether all its records are read."""
        return self._read == self.size

    def add(self, batch: Nested) -> None:
        """Predicts the next batch.

        Raises:
          Exception: the model fails with it.
        """
        self.claim.note("fast", self._read)
        self._write(batch, self._outputs(batch))
        self._read += rows_of(batch)

    def add_all_carefully(self) -> None:
        """Reads and predicts all records, of which some are bad or have killed a worker.

        Raises:
          PredictionError: a bad record is an error; names it.
        """
        size = self._maker.batches.batch_size
        deaths = self.claim.deaths
        for first in deaths.deadly_batches():
            raise PredictionError(
                f"{self._name(first, min(first + size, self.size))} have killed their workers "
                "again and again, together but not one by one: make batch_size smaller, in a new "
                "folder"
            )
        parked = deaths.parked()
        for first in range(0, self.size, size):
            self._maker.may_continue()
            end = min(first + size, self.size)
            self._add_carefully(first, end, parked.intersection(range(first, end)))
            self._read = end

    def metric_states(self) -> list[list[Any]]:
        """Returns the states of its metrics; another part may begin then."""
        return self._maker.metrics.states()

    def commit(self, metric_states: list[list[Any]]) -> None:
        """Commits the part, unless another worker has.

        Raises:
          PredictionError: its file has changed while it was read.
        """
        self._maker.batches.check_input(self.claim.part)
        if not self._staged.commit(metric_states):
            _log.warning(
                "part %d was also computed by another worker, which was faster: its rows count",
                self.claim.part,
            )

    def close(self) -> None:
        """Removes the files that are not committed."""
        self._staged.close()

    def _add_carefully(self, first: int, end: int, parked: set[int]) -> None:
        if not parked and not self.claim.deaths.is_suspect(first, end):
            self.claim.note("batch", first)
            try:
                batch = self._maker.batches.one(self.claim.part, first, end)
                outputs = self._outputs(batch)
            except Exception as error:
                if not is_of_a_record(error):
                    raise
            else:
                self._write(batch, outputs)
                return
        good = self._good_rows(first, end, parked)
        if not good:
            return
        self.claim.note("batch", first)
        try:
            batch = good[0] if len(good) == 1 else joined(good)
            outputs = self._outputs(batch)
        except Exception as error:
            if not is_of_a_record(error):
                raise
            raise PredictionError(
                f"{self._name(first, end)}: each can be predicted alone, but not together: "
                f"{_message(error)}"
            ) from error
        self._write(batch, outputs)

    def _good_rows(self, first: int, end: int, parked: set[int]) -> list[Nested]:
        """Tries each record alone; returns the good ones, mapped."""
        good: dict[int, Nested] = {}
        failure = None
        for row in self.claim.deaths.order(first, end):
            self._maker.may_continue()
            if row in parked:
                self._reject(row, f"has killed its worker {MAX_DEATHS} times")
                continue
            self.claim.note("row", row)
            try:
                mapped = self._maker.batches.one(self.claim.part, row, row + 1)
            except Exception as error:
                if not is_of_a_record(error):
                    raise
                self._reject(row, _message(error), error)
                continue
            try:
                self._outputs(mapped)
            except Exception as error:
                if not is_of_a_record(error):
                    raise
                self._reject(row, _message(error), error)
                failure = error
                continue
            self._maker.rejections.good()
            good[row] = mapped
        if failure is not None and not good and end - first > 1:
            raise PredictionError(
                f"the model fails with each of {self._name(first, end)}: {_message(failure)}"
            ) from failure
        return [good[row] for row in sorted(good)]

    def _reject(self, row: int, message: str, error: Exception | None = None) -> None:
        self._maker.batches.check_input(self.claim.part)  # which would be the reason
        if not self._maker.parks:
            raise PredictionError(
                f"{self._name(row, row + 1)}: {message}. With errors='park' such records are left "
                "out, and named in the output"
            ) from error
        self._maker.rejections.bad(f"{self._name(row, row + 1)}: {message}")
        self._staged.reject(self._file, self._first + row, message)

    def _outputs(self, batch: Nested) -> dict[str, np.ndarray]:
        features, _, _ = unpacked(batch)
        return self._maker.forward(features)

    def _write(self, batch: Nested, columns: dict[str, np.ndarray]) -> None:
        self._maker.rejections.good()
        self._maker.count(batch, columns)
        self._staged.write(columns)

    def _name(self, first: int, end: int) -> str:
        """Names records of this part, in a message."""
        first, end = self._first + first, self._first + end
        where = f" of {self._file}" if self._file else ""
        return (
            f"record {first}{where}" if end - first == 1 else f"records {first} to {end - 1}{where}"
        )


def unpacked(batch: Nested) -> tuple[Any, Any, Any]:
    """Returns features, labels and weights of a batch; `None` for each that it has not."""
    if not isinstance(batch, tuple) or hasattr(batch, "_fields"):
        return batch, None, None
    if not 1 <= len(batch) <= 3:
        raise PredictionError(
            "map: expected features, (features, labels) or (features, labels, weights), received "
            f"a tuple of {len(batch)}"
        )
    features, labels, weights = (*batch, None, None)[:3]
    return features, labels, weights


def is_of_a_record(error: Exception) -> bool:
    """Whether a failure to read, map or predict may come from a record."""
    if isinstance(error, tf.errors.OpError):
        return not isinstance(error, _NOT_OF_A_RECORD)
    return not isinstance(error, (*_NOT_OF_A_RECORD, OSError))


def _message(error: Exception) -> str:
    """Returns the reason of an error in one line; the class of one of TensorFlow says nothing."""
    text = kind_and_text(error)[1] if isinstance(error, tf.errors.OpError) else one_line(error)
    return re.sub(r"\{\{.*?\}\} ?| \[Op:\w+\].*", "", text) or type(error).__name__
