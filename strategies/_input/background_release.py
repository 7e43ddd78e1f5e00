"""Iterators of distributed datasets are destroyed in the background.

The destructor of a tf.data iterator waits for the iterator's autotuning thread. TensorFlow (2.16 to
2.21) wakes that thread before it sets the flag that the thread looks at; a thread that looks too
early sleeps for the rest of its period, which doubles from 10 ms up to a minute. So the end of an
epoch takes seconds now and then, mostly on a busy machine.
"""

from __future__ import annotations

import os
import queue
import threading
import weakref
from typing import Any

import tensorflow as tf

from tfdist._types import DistributedData
from tfdist.internals.tensorflow import OwnedMultiDeviceIterator, input_lib
from tfdist.ops.local.release import hold, release

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
                _releaser.follow(worker._iterator)
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


class _Releaser:
    """The thread that has iterators destroyed, each by a thread of its own: one may wait long."""

    def __init__(self) -> None:
        self._ended: queue.SimpleQueue[list[tuple[tf.Tensor, tf.data.Dataset | None]]] = (
            queue.SimpleQueue()
        )
        self._pid = 0

    def follow(self, iterator: tf.data.Iterator) -> None:
        """Destroys what a tf.data iterator holds, once nothing refers to the iterator."""
        found = [iterator]
        if isinstance(iterator, OwnedMultiDeviceIterator):
            found = [*iterator._device_iterators, iterator]
        # A generator's last call needs its dataset.
        held = [(_resource(each), getattr(each, "_dataset", None)) for each in found]
        if not all(tf.DeviceSpec.from_string(r.device).device_type == "CPU" for r, _ in held):
            return
        if self._pid != os.getpid():  # a forked process has no thread
            self._pid = os.getpid()
            threading.Thread(target=self._run, name="tfdist-iterators", daemon=True).start()
        weakref.finalize(iterator, self._ended.put, held).atexit = False

    def _run(self) -> None:
        # An iterator may end in the middle of a thread's start, which is not reentrant: this thread
        # starts the others.
        while True:
            arguments = (self._ended.get(),)
            thread = threading.Thread(
                target=_destroy, args=arguments, name="tfdist-iterator", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # the process may have no more threads
                _destroy(*arguments)
            del arguments, thread


def _destroy(held: list[tuple[tf.Tensor, tf.data.Dataset | None]]) -> None:
    """Destroys iterators, one after the other, each before its dataset."""
    while held:
        resource, dataset = held.pop(0)
        number = hold(resource)
        del resource
        release(number)
        del dataset


def _resource(iterator: tf.data.Iterator) -> tf.Tensor:
    if isinstance(iterator, OwnedMultiDeviceIterator):
        return iterator._multi_device_iterator_resource
    return iterator._iterator_resource


_releaser = _Releaser()
