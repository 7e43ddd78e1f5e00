"""How many steps tf_keras's `fit` expects where batches are dealt out."""

from __future__ import annotations

import functools
import sys

import tensorflow as tf

from tfdist.keras.workers import trains_on_servers
from tfdist.strategies._input import worker_input


def count_own_batches() -> None:
    """tf_keras counts a dataset's batches before its strategy deals them out, if it is used here.

    It would end training when this worker's are over.
    """
    if "tf_keras" in sys.modules:
        _count_own_batches()


@functools.cache
def _count_own_batches() -> None:
    from tf_keras.src.engine.data_adapter import DataHandler

    original = DataHandler._infer_steps

    @functools.wraps(original)
    def _infer_steps(self, steps, dataset):
        batches = original(self, steps, dataset)
        strategy = tf.distribute.get_strategy()
        if steps is not None or batches is None or not trains_on_servers(strategy):
            return batches
        whole = isinstance(dataset, tf.data.Dataset) and worker_input.is_whole(dataset)
        if whole or strategy.extended.shares_batches:
            return batches
        if self._adapter.should_recreate_iterator():
            return strategy.extended.own_batches(batches)
        # Arrays are repeated before they are dealt out: this worker's share differs by epoch.
        return max(1, batches // strategy.extended.config.workers)

    DataHandler._infer_steps = _infer_steps
