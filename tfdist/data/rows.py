"""How many rows a dataset of batches is made of."""

from __future__ import annotations

import tensorflow as tf

from tfdist.data.pipeline import BATCHES, KEEPS_ORDER

# Datasets that let every row through, in any order and any number of times, by class name.
_KEEPS_ROWS = KEEPS_ORDER - {"_TakeDataset"} | {"_ShuffleDataset", "CacheDataset"}


def rows_of(dataset: tf.data.Dataset) -> int | None:
    """Returns the number of rows that a dataset's batches are made of; repeated ones count once.

    Args:
      dataset: of batches.

    Returns:
      The number; `None` if it is unknown until all rows have been read.
    """
    found: int | None = None
    is_batched = False
    while True:
        kind = type(dataset).__name__
        if kind in BATCHES:
            is_batched, found = True, None
        elif is_batched:
            rows = int(dataset.cardinality())
            found = rows if rows >= 0 else None
        inputs = dataset._inputs()
        if kind not in BATCHES | _KEEPS_ROWS or len(inputs) != 1:
            return found
        (dataset,) = inputs
