"""Iterators of tf.data are destroyed in the background.

The destructor of a tf.data iterator waits for the iterator's autotuning thread. TensorFlow (2.16 to
2.21) wakes that thread before it sets the flag that the thread looks at; a thread that looks too
early sleeps for the rest of its period, which doubles from 10 ms up to a minute. So the end of an
epoch, or a garbage collection long after it, takes a minute now and then, mostly on a busy machine.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
import weakref

import tensorflow as tf

from tfdist.internals.tensorflow import OwnedMultiDeviceIterator
from tfdist.ops.local.release import hold, release

# The variable of `_destroy`, and the parameters of `_wait_for_others` and of `getrefcount`.
_OWN_REFERENCES = 3
_PATIENCE = 10.0  # seconds; something else may keep the tensor


def release_in_background(
    iterator: tf.data.Iterator, dataset: tf.data.Dataset | None = None
) -> None:
    """Has another thread destroy what an iterator holds, once nothing refers to the iterator.

    An iterator whose resources are not all on the CPU is left as it is.

    Args:
      iterator: the iterator.
      dataset: its dataset, if it does not hold it itself.
    """
    _releaser.follow(iterator, dataset)


class _Releaser:
    """The thread that has iterators destroyed, each by a thread of its own: one may wait long."""

    def __init__(self) -> None:
        self._ended: queue.SimpleQueue[list[tuple[tf.Tensor, tf.data.Dataset | None]]] = (
            queue.SimpleQueue()
        )
        self._pid = 0

    def follow(self, iterator: tf.data.Iterator, dataset: tf.data.Dataset | None) -> None:
        """See `release_in_background`."""
        found = [iterator]
        if isinstance(iterator, OwnedMultiDeviceIterator):
            found = [*iterator._device_iterators, iterator]
        # A generator's last call needs its dataset, also for its function since TensorFlow 2.22.
        held = [(_resource(each), getattr(each, "_dataset", dataset)) for each in found]
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
        _wait_for_others(resource)
        number = hold(resource)
        del resource
        release(number)
        del dataset


def _wait_for_others(resource: tf.Tensor) -> None:
    """Waits, not for ever, until a tensor's caller alone refers to it.

    A garbage collection tells that an iterator has ended before it drops the iterator's tensors.
    The thread that drops the last reference to one is the thread that waits.
    """
    end = time.monotonic() + _PATIENCE
    while sys.getrefcount(resource) > _OWN_REFERENCES and time.monotonic() < end:
        time.sleep(0.01)


def _resource(iterator: tf.data.Iterator) -> tf.Tensor:
    if isinstance(iterator, OwnedMultiDeviceIterator):
        return iterator._multi_device_iterator_resource
    return iterator._iterator_resource


_releaser = _Releaser()
