"""Strategies for the tests of several devices; and their garbage, which is collected early."""

from __future__ import annotations

import pytest
import tensorflow as tf

from devices.replicas import make_strategy
from support.garbage import collect_garbage

__all__ = ["collect_garbage"]


@pytest.fixture(params=["mirrored", "central"])
def kind(request) -> str:
    """The kind of strategy."""
    return request.param


@pytest.fixture
def strategy(kind) -> tf.distribute.Strategy:
    """A strategy with two replicas, of each kind."""
    return make_strategy(kind, 2)
