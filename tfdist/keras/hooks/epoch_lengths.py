"""The number of batches of an epoch, where a data service deals them out.

Each training worker takes batches of `tfdist.data.distribute` as they come, so that the number that
it gets differs from epoch to epoch.
"""

from __future__ import annotations

import contextlib
from typing import Any

from keras.src.backend.tensorflow.trainer import TFEpochIterator

from tfdist.job import process
from tfdist.keras.registry import hooks
from tfdist.keras.workers import is_ours


def lengths_vary(strategy: Any) -> bool:
    """Whether the epochs of a dataset of unknown length may differ in length."""
    return (
        is_ours(strategy)
        and process.current.is_initialized
        and bool(process.current.cluster("fit").data_dispatcher)
    )


@hooks(TFEpochIterator, "catch_stop_iteration")
@contextlib.contextmanager
def end_with_the_data(original, self):
    """In a job with data workers each epoch of unknown length lasts until its data ends.

    Keras ends later epochs after as many batches as the first had.
    """
    known = self._num_batches
    with original(self):
        yield
    if lengths_vary(self._distribute_strategy):
        self._num_batches = known
