"""Repairs of `fit`, `evaluate` and `predict`."""

from __future__ import annotations

import functools

import tensorflow as tf
from keras import tree
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.trainers.trainer import Trainer

from tfdist.keras.workers import communicator_of, has_peers


def build_from_local_batch() -> None:
    """keras-team/keras#20585, tensorflow/tensorflow#72388: `fit` on several workers fails.

    To learn the shapes of a batch, `_maybe_symbolic_build` reduces the whole nested batch over all
    workers, which `tf.distribute.Strategy.reduce` does not take, and which would average strings
    and labels. The first local replica's batch has the same shapes.
    """
    original = TensorFlowTrainer._maybe_symbolic_build

    @functools.wraps(original)
    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        if self._distribute_strategy is not None and iterator is not None:
            data_batch = _first_local_batch(self._distribute_strategy, iterator)
            iterator = None
        return original(self, iterator=iterator, data_batch=data_batch)

    TensorFlowTrainer._maybe_symbolic_build = _maybe_symbolic_build


def _first_local_batch(strategy, epoch_iterator):
    for _, _, iterator in epoch_iterator:
        return tree.map_structure(
            lambda value: (
                strategy.experimental_local_results(value)[0]
                if isinstance(value, tf.distribute.DistributedValues)
                else value
            ),
            next(iterator),
        )
    return None


def log_metrics_of_all_replicas() -> None:
    """keras-team/keras#19891: what `fit` shows after a batch is the mean of the replicas' metrics.

    That is wrong where they saw different numbers of rows, and for all metrics that are not means.
    The replicas of one process add their metrics' state instead, as at the end of an epoch. Those
    of several workers do not: it would be one more collective per step.
    """
    original = Trainer.get_metrics_result

    @functools.wraps(original)
    def get_metrics_result(self):
        replica = tf.distribute.get_replica_context()
        if replica is None or not has_peers(replica.strategy) or communicator_of(self) is not None:
            return original(self)
        return replica.merge_call(lambda strategy: original(self))

    Trainer.get_metrics_result = get_metrics_result
