"""The rows of a `PyDataset`'s batches that a worker trains on, where its class can give them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

import numpy as np
import tensorflow as tf

from tfdist._types import Nested
from tfdist.data.strategies import workers_of
from tfdist.internals.keras_3 import PyDataset
from tfdist.keras.workers import elastic_job_of


class GivesRows(Protocol):
    """The methods of a `PyDataset` that can give parts of a batch."""

    def __getitem__(self, index: int) -> Nested:
        """Returns a batch."""

    def num_rows(self, index: int) -> int:
        """Returns the number of rows of a batch."""

    def get_rows(self, index: int, first: int, last: int) -> Nested:
        """Returns the rows from `first` to `last - 1` of a batch, as `__getitem__` returns all.

        The other dimensions equal the dimensions of the batch.
        """


def batch_getter(
    data: PyDataset, strategy: tf.distribute.Strategy | None
) -> Callable[[int], Nested]:
    """Returns a function from the index of a batch to the batch.

    Args:
      data: a `PyDataset`. If it has the methods of `GivesRows`, a worker gets its rows alone, and
        zeros in the other places. Members of elastic jobs get all rows: their shares change.
      strategy: of the model.
    """
    communicator = workers_of(strategy)
    gives_rows = all(callable(getattr(data, name, None)) for name in ("num_rows", "get_rows"))
    if not gives_rows or strategy is None or communicator is None or elastic_job_of(strategy):
        return data.__getitem__
    # TensorFlow deals the rows of a worker with several devices out in another order.
    if strategy.num_replicas_in_sync != communicator.size:
        return data.__getitem__
    return _OwnRows(data, communicator.size, communicator.rank)


@dataclasses.dataclass(frozen=True)
class _OwnRows:
    """Gets the rows of one worker.

    Args:
      data: the `PyDataset`.
      shares: into which a batch is cut, as `tfdist.data.shares.rows_of` cuts it.
      rank: of the worker.
    """

    data: GivesRows
    shares: int
    rank: int

    def __call__(self, index: int) -> Nested:
        rows = self.data.num_rows(index)
        each = -(-rows // self.shares)
        begin = min(self.rank * each, rows - 1)
        # An empty share takes one row for its shapes.
        end = max(min((self.rank + 1) * each, rows), begin + 1)
        if rows == 0:
            return self.data[index]
        own = self.data.get_rows(index, begin, end)
        parts = [part for part in tf.nest.flatten(own) if part is not None]
        if not all(hasattr(part, "__array__") for part in parts):
            return self.data[index]  # such as sparse parts
        return tf.nest.map_structure(lambda part: self._whole(part, index, rows, begin, end), own)

    def _whole(
        self, part: object | None, index: int, rows: int, begin: int, end: int
    ) -> np.ndarray | None:
        """Returns all rows of a part of a batch: this worker's ones, and others that it has not."""
        if part is None:
            return None
        values = np.asarray(part)
        if len(values) != end - begin:
            raise ValueError(
                f"{type(self.data).__name__}.get_rows({index}, {begin}, {end}): expected "
                f"{end - begin} rows, received {len(values)}"
            )
        if values.dtype.kind in "OSU":  # texts
            whole = np.repeat(values[:1], rows, axis=0)
        else:
            whole = np.zeros((rows, *values.shape[1:]), values.dtype)
        whole[begin:end] = values
        return whole
