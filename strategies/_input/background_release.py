"""Iterators of distributed datasets end in the background; see `data.background_release`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist._types import DistributedData
from tfdist.data.background_release import release_in_background
from tfdist.internals.tensorflow import input_lib

# For type checkers: a `tf.distribute.StrategyExtended` follows the mixin, and has no types.
_Base: Any = object


class BackgroundRelease(_Base):
    """A mixin whose distributed datasets do not wait for the end of their iterators.

    Comes before `tf.distribute.StrategyExtended` among the bases.
    """

    def _experimental_distribute_dataset(self, dataset, options):
        return _followed(super()._experimental_distribute_dataset(dataset, options))

    def _distribute_datasets_from_function(self, dataset_fn, options):
        return _followed(super()._distribute_datasets_from_function(dataset_fn, options))


class _Distributed(_Base):
    """A mixin of TensorFlow's classes of distributed datasets.

    Attributes:
      of_tensorflow: that class.
    """

    of_tensorflow: type

    def __iter__(self):
        iterator = super().__iter__()
        if tf.executing_eagerly():
            for worker in iterator._iterators:
                release_in_background(worker._iterator, worker._dataset)
        return iterator


class _DistributedDataset(_Distributed, input_lib.DistributedDataset):
    of_tensorflow = input_lib.DistributedDataset


class _DistributedDatasetsFromFunction(_Distributed, input_lib.DistributedDatasetsFromFunction):
    of_tensorflow = input_lib.DistributedDatasetsFromFunction


_CLASSES: dict[type, type[_Distributed]] = {
    kind.of_tensorflow: kind for kind in (_DistributedDataset, _DistributedDatasetsFromFunction)
}


def _followed(distributed: DistributedData) -> DistributedData:
    """Returns the same dataset as a class that follows its iterators; another kind unchanged."""
    kind = _CLASSES.get(type(distributed))
    if kind is None:
        return distributed
    followed = kind.__new__(kind)
    followed.__dict__ = distributed.__dict__
    return followed
