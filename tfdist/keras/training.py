"""Repairs of `fit`, `evaluate` and `predict`."""

from __future__ import annotations

import functools

import tensorflow as tf
from keras import tree
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer


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
