"""Strategies for the tests of several devices; and their garbage, which is collected early."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import tensorflow as tf
from replicas import make_strategy


@pytest.fixture(params=["mirrored", "central"])
def kind(request) -> str:
    """The kind of strategy."""
    return request.param


@pytest.fixture
def strategy(kind) -> tf.distribute.Strategy:
    """A strategy with two replicas, of each kind."""
    return make_strategy(kind, 2)


@pytest.fixture(scope="session")
def imported() -> None:
    """Leaves what is imported out of the collections."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def collect_garbage(imported: None) -> Iterator[None]:
    """Collects the models and iterators of a test.

    They are cycles. TensorFlow may need as long to delete an iterator over several devices as the
    iterator has lived, up to a minute: the thread that tunes its pipeline sleeps that long. A late
    collection has let another test fail by its timeout.
    """
    yield
    gc.collect()
