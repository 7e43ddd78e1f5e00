"""The parts of tfdist's strategies that this package uses, each with its type.

`tfdist.strategies` imports this package, so nothing here imports it: a protocol stands for a class
from there. `tfdist.data.strategies` has the parts that the input pipeline uses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tfdist._types import Gradient, KerasOptimizer, Nested
from tfdist.config.sharding import Sharding
from tfdist.data.strategies import WorkerInput
from tfdist.ops.ps.optimizer_config import OptimizerConfig
from tfdist.ps.config import PsConfig


class Servers(Protocol):
    """The variables on parameter servers: `Parameters`."""

    def bind(self, config: OptimizerConfig, bindings: Sequence[tuple]) -> None:
        """Makes the servers update variables by gradients."""

    def stage(
        self,
        variables: Sequence[tf.Variable],
        gradients: Sequence[tf.Tensor | tf.IndexedSlices],
        learning_rate: tf.Tensor,
        step: tf.Tensor,
    ) -> tf.Operation | None:
        """Holds gradients of bound variables for the push that ends the step."""

    def all_reduce(self, values: Nested, divisor: int | None) -> Nested:
        """Sums tensors, or nested tensors, over all workers; divides the sums by a divisor."""

    def first_of_all(self, value: int) -> int:
        """Returns the value of the worker that called first."""


class ServersExtended(WorkerInput, Protocol):
    """`ParameterServerStrategy.extended`.

    Attributes:
      config: of the job.
      parameters: the variables on the servers.
      ps_optimizer: where optimizers are to run: "auto", "server" or "worker".
      optimizer_places: by id, each optimizer, and whether the servers run it.
      clip: the gradients that optimizers clip: "sum" or "replica".
      rank: of this worker.
    """

    config: PsConfig
    parameters: Servers
    ps_optimizer: str
    optimizer_places: dict[int, tuple[KerasOptimizer, bool]]

    @property
    def clip(self) -> str: ...

    @property
    def rank(self) -> int: ...


class ServersStrategy(Protocol):
    """`ParameterServerStrategy`."""

    @property
    def extended(self) -> ServersExtended: ...


class AddedByWorker(Protocol):
    """The part of a variable's value that this worker has added: `Counter`."""

    def note_step(self, before: tf.Tensor, after: tf.Tensor) -> None:
        """Notes the sum that a step has added."""


class EndOfRounds(Protocol):
    """Ends the rounds of the steps of an elastic job: `RoundEnd`."""

    def handles(self) -> list[tf.Tensor]:
        """The resources of the variables that the end of a round needs."""

    def change_members(self, where: str, admits: bool) -> None:
        """Lets members come and go, if no round has begun."""

    def end_if_due(self, where: str) -> None:
        """Ends the rounds if one has all its steps."""

    def end_early(self, where: str) -> None:
        """Ends the rounds if one has begun."""


class LocalTraining(Protocol):
    """Trains this worker alone until a round ends: `LocalUpdates`.

    Rounds are passed from `ending_rounds` to `round_end`, as they are.
    """

    @property
    def is_within_round(self) -> bool: ...

    @property
    def has_trained(self) -> bool: ...

    def apply(
        self,
        optimizer: KerasOptimizer,
        variables: Sequence[tf.Variable],
        update: Callable[[], object],
    ) -> None:
        """Applies an optimizer to this worker's variables."""

    def own_gradients(self, grads_and_vars: Sequence[tuple]) -> list[tuple]:
        """The gradients that the optimizer takes in place of the sum of all workers'."""

    def synchronize(self) -> None:
        """Ends the rounds that have begun."""

    def residuals(self) -> dict[str, float]:
        """The rule's residuals at the last synchronization, by name."""

    def saved(self, variables: Sequence[tf.Variable], of_all: bool = True) -> dict[str, np.ndarray]:
        """The state that another process needs to continue with the training of variables."""

    def restore(self, variables: Sequence[tf.Variable], values: dict[str, np.ndarray]) -> None:
        """Lets the training of variables continue from a state of `saved`."""

    def take_restored(self) -> None:
        """Gives restored values to the groups of variables that exist."""

    def ending_rounds(self) -> AbstractContextManager[list[Any]]:
        """Within it a step of an elastic job is traced; yields a list that gets its rounds."""

    def counter(self, variable: tf.Variable) -> AddedByWorker:
        """Counts the sums that this worker adds to its copy of a variable."""

    def round_end(self, rounds: Sequence[Any], counters: Sequence[Any]) -> EndOfRounds:
        """Ends the rounds of a step of an elastic job."""


class VariableParts(Protocol):
    """Variables that are cut into one part for each worker: `Shards`.

    Attributes:
      sharding: the division.
    """

    sharding: Sharding

    def buckets(self, variables: Sequence[tf.Variable]) -> list[list[int]]:
        """Returns the positions of the variables whose parts travel together."""

    def reduce_scatter(self, gradients: Sequence[Gradient]) -> list[tf.Tensor]:
        """Returns this worker's part of each gradient's sum over all workers, as vectors."""

    def part_of(self, variable: tf.Variable, after: tf.Tensor) -> tf.Tensor:
        """Reads this worker's part of a variable, once another tensor exists."""

    def assign(self, variables: Sequence[tf.Variable], parts: Sequence[tf.Tensor]) -> None:
        """Assigns variables of one dtype, of which each worker gives its part."""

    def calling_layer(self, layer: str, inputs: Nested) -> AbstractContextManager[None]:
        """Within it a layer is called."""

    def gather_again(self) -> None:
        """Gathers variables again for the gradient functions of the present graph."""

    def sums(self, values: tf.Tensor, label: str) -> tf.Tensor:
        """Sums values over the workers."""


class ModelTables(Protocol):
    """The embedding tables of an elastic job: `ElasticTables`."""

    def begin_unit(self) -> None:
        """Begins a unit of work, or begins it again."""

    def unit(self, trains: bool) -> AbstractContextManager[None]:
        """Traces the step of a unit of work."""

    def commit(self) -> None:
        """Commits the gradients of the unit."""


def local_training_of(extended: tf.distribute.StrategyExtended) -> LocalTraining | None:
    """Trains the workers of a LocalUpdateStrategy; `None` for all other strategies."""
    return getattr(extended, "local_updates", None)


def shards_of(extended: tf.distribute.StrategyExtended) -> VariableParts | None:
    """The parts that the workers of a strategy with `Sharding` have; `None` for all others."""
    return getattr(extended, "shards", None)


def tables_of(extended: tf.distribute.StrategyExtended) -> ModelTables | None:
    """The embedding tables of an elastic job; `None` without any."""
    return getattr(extended, "tables", None)
