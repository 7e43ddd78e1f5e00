"""The attributes of a strategy that the input pipeline uses.

`tfdist.strategies` imports this package, so nothing here imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypedDict

import tensorflow as tf

from tfdist import ops

Prepare = Callable[[tf.data.Dataset], tf.data.Dataset]


class InputSettings(TypedDict):
    """The arguments of `WorkerInput.input`."""

    shared: bool
    prepare: Prepare | None


class WorkerInput(Protocol):
    """The datasets of `ParameterServerStrategy.extended`."""

    @property
    def input_settings(self) -> InputSettings:
        """The arguments of `input` that hold now."""

    @property
    def shares_batches(self) -> bool:
        """Whether a batch of a distributed dataset is split between the workers."""

    def input(
        self, *, shared: bool, prepare: Prepare | None = None
    ) -> AbstractContextManager[None]:
        """Changes how datasets are distributed within a `with` block."""

    def deals_out(self, dataset: object) -> bool:
        """Whether workers share `dataset` by whole batches, so that each has fewer of them."""

    def own_batches(self, batches: int) -> int:
        """Returns how many of a dataset's batches this worker gets."""


def workers_of(strategy: tf.distribute.Strategy | None) -> ops.Communicator | None:
    """The workers that tfdist's collectives connect; `None` for all other strategies."""
    return getattr(strategy, "communicator", None)


def worker_input_of(strategy: tf.distribute.Strategy) -> WorkerInput | None:
    """The datasets of workers of parameter servers; `None` for all other strategies."""
    extended = strategy.extended
    return extended if hasattr(extended, "input_settings") else None
