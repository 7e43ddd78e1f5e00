"""A fixture that collects the garbage of each test, for folders whose tests read `tf.data`."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def collect_garbage() -> Iterator[None]:
    """Collects the models and iterators of a test.

    They are cycles. TensorFlow may need as long to delete an iterator as the iterator has lived, up
    to a minute: the thread that tunes its pipeline sleeps that long. A late collection has let
    another test fail by its timeout.
    """
    # Objects that earlier tests have left for good, such as TensorFlow's caches, are not gone
    # through again.
    gc.collect()
    gc.freeze()
    yield
    gc.collect()
