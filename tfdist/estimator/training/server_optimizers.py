"""Steps of a model_fn's optimizers on the parameter servers.

Rows of embedding tables always go to the servers, dense variables if the servers know the
optimizer; the optimizer itself gets the rest.

Keras's optimizers describe themselves to the servers when they make their first step. In a graph
the variables do not exist at that time: the description is stored, and the servers get it when a
session has made the variables.
"""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from tf_keras.optimizers import legacy

from tfdist.estimator.training.optimizer_calls import (
    CallOfTensorFlow1,
    CallOfTfKeras,
    OptimizerCall,
)
from tfdist.keras.workers import decide_where_it_runs, is_table, replica_on_servers
from tfdist.ops.ps.optimizer_config import OptimizerConfig, OptimizerKind
from tfdist.ps.row_gradients import flat_rows
from tfdist.strategies._variables.parameters import Parameters
from tfdist.strategies._variables.server_variable import ServerVariable
from tfdist.strategies._variables.table_variable import TableVariable

if TYPE_CHECKING:
    from tfdist.strategies import ParameterServerStrategy

v1 = tf.compat.v1
_Kind = OptimizerKind

# The allowed difference between steps that add the epsilon in different places: less than the
# precision of float32.
_ROUNDING = 1e-7


@functools.cache
def send_steps_to_servers() -> None:
    """Changes `apply_gradients` of both kinds of optimizers."""
    _send_steps(tf.compat.v1.train.Optimizer, CallOfTensorFlow1)
    _send_steps(legacy.Optimizer, CallOfTfKeras)


def _send_steps(
    optimizer: type[tf.compat.v1.train.Optimizer | legacy.Optimizer], call_of: type[OptimizerCall]
) -> None:
    original = optimizer.apply_gradients

    @functools.wraps(original)
    def apply_gradients(
        self: tf.compat.v1.train.Optimizer | legacy.Optimizer,
        grads_and_vars: Iterable[tuple],
        *args: Any,
        **kwargs: Any,
    ) -> tf.Operation:
        pairs = list(grads_and_vars)
        of_tables = [(g, v) for g, v in pairs if is_table(v) and g is not None]
        dense = [(g, v) for g, v in pairs if not is_table(v)]
        with_gradient = [(g, v) for g, v in dense if g is not None]
        call = call_of(self, *args, **kwargs)
        # Before anything else: later calls may replace the optimizer's numbers by variables.
        on_servers = decide_for(call, with_gradient)
        with tf.control_dependencies([_stage(of_tables, call)] if of_tables else []):
            if on_servers is not None:
                return on_servers.apply()
            if with_gradient or not of_tables:
                return original(self, dense, *args, **kwargs)
            return call.counter.assign_add(1, read_value=False)

    optimizer.apply_gradients = apply_gradients


def _stage(pairs: list[tuple], call: OptimizerCall) -> tf.Operation:
    gradients = []
    for gradient, table in pairs:
        ids, rows = flat_rows(gradient)
        table.gradient_ids.set(ids)
        gradients.append((rows, table))
    return TableVariable.stage(gradients, call.counter, call.learning_rate())


class Bindings:
    """The descriptions of a graph's optimizers that the servers need before its first step."""

    def __init__(self) -> None:
        self._noted: list[tuple[OptimizerConfig, list[tuple]]] = []

    @classmethod
    def of_this_graph(cls) -> Bindings:
        """Returns the bindings of the default graph, and lets its optimizers run on the servers."""
        graph = v1.get_default_graph()
        if not hasattr(graph, "tfdist_bindings"):
            graph.tfdist_bindings = cls()
        return graph.tfdist_bindings

    def note(self, config: OptimizerConfig, bindings: list[tuple]) -> None:
        """Stores the arguments of a call of `Parameters.bind`."""
        self._noted.append((config, bindings))

    def bind(self, parameters: Parameters) -> None:
        """Sends the descriptions to the servers, which have the variables now."""
        for config, bindings in self._noted:
            parameters.bind(config, bindings)


def decide_for(call: OptimizerCall, pairs: Sequence[tuple]) -> ServerStep | None:
    """Returns the step that the servers make; `None` if the worker makes it.

    Args:
      call: of `apply_gradients`.
      pairs: gradients, which are tensors or `tf.IndexedSlices`, and their variables.

    Raises:
      ValueError: the user wants the servers to make it, and they cannot; says why.
    """
    replica = replica_on_servers()
    bindings = getattr(v1.get_default_graph(), "tfdist_bindings", None)
    if replica is None or bindings is None or not pairs:
        return None
    strategy = replica.strategy
    obstacle = _obstacle(call, pairs, strategy.num_replicas_in_sync > 1)
    if not decide_where_it_runs(call.name, strategy.extended.ps_optimizer, obstacle):
        return None
    return ServerStep(call, pairs, strategy, bindings, _config(call))


class ServerStep:
    """A step that the servers make.

    Args:
      call: of `apply_gradients`.
      pairs: gradients and their variables.
      strategy: the `ParameterServerStrategy`.
      bindings: of the graph.
      config: the optimizer.
    """

    def __init__(
        self,
        call: OptimizerCall,
        pairs: Sequence[tuple],
        strategy: ParameterServerStrategy,
        bindings: Bindings,
        config: OptimizerConfig,
    ) -> None:
        self._call = call
        self._pairs = pairs
        self._strategy = strategy
        self._bindings = bindings
        self._config = config

    def apply(self) -> tf.Operation:
        """Adds the operation to the graph."""
        call, strategy = self._call, self._strategy
        variables = [v for _, v in self._pairs]
        call.create_slots(variables)
        names = call.counterpart.slots if _has_slots(self._config) else ()
        slots = [[call.optimizer.get_slot(v, name) for name in names] for v in variables]
        self._bindings.note(
            self._config, [(v, s, 0.0) for v, s in zip(variables, slots, strict=True)]
        )
        step = tf.constant(1, tf.int64)
        if call.steps is not None:
            step = tf.cast(call.steps.read_value(), tf.int64) + 1
        with tf.device("/device:CPU:0"):
            staged = strategy.extended.parameters.stage(
                variables,
                [g for g, _ in call.transform(list(self._pairs))],
                call.learning_rate(variables[0].dtype),
                step,
            )
        # The changes of workers that make steps on their own add up.
        is_writer = strategy.is_chief or strategy.num_replicas_in_sync > 1
        return call.finish(staged, step, is_writer)


def _obstacle(call: OptimizerCall, pairs: Sequence[tuple], in_sync: bool) -> str | None:
    """Why the servers cannot make a step; `None` if they can."""
    if call.known is None:
        return f"{type(call.optimizer).__name__} is not one they know"
    variables = [v for _, v in pairs]
    unshared = [v for v in variables if not isinstance(v, ServerVariable)]
    if unshared:
        return f"{unshared[0].name!r} was made outside of the strategy's scope"
    if any(v.constraint is not None for v in variables):
        return "they know no constraints"
    if any(v.dtype not in (tf.float32, tf.float64) for v in variables):
        return "they update float32 and float64 variables only"
    for name, value in call.numbers.items():
        if not isinstance(value, numbers.Real):
            return f"its {name} is not a plain number"
    if in_sync and not call.adds_up:
        return "it is given gradients that have been added up already"
    if not _rounds_alike(call, variables):
        return "its epsilon is large, and added outside of the root"
    of_rows = [v for g, v in pairs if isinstance(g, tf.IndexedSlices)]
    if of_rows and not _leaves_other_rows_alone(call):
        return f"they would change rows of {of_rows[0].name!r} that have no gradient"
    return call.obstacle(in_sync)


def _leaves_other_rows_alone(call: OptimizerCall) -> bool:
    """Whether the servers treat rows without a gradient as the optimizer does: Adam moves them."""
    if call.counterpart.kind == _Kind.SGD:
        return not call.numbers.get("momentum")
    return call.counterpart.kind != _Kind.FTRL


def _rounds_alike(call: OptimizerCall, variables: Sequence[tf.Variable]) -> bool:
    epsilon = call.numbers.get("epsilon")
    if call.counterpart.kind != _Kind.ADAGRAD or epsilon is None:
        return True
    # The largest relative difference, given the epsilon that `_config` computes.
    difference = epsilon / (4 * math.sqrt(call.numbers["initial_accumulator_value"] or 1e-30))
    return difference <= _ROUNDING and all(v.dtype == tf.float32 for v in variables)


def _config(call: OptimizerCall) -> OptimizerConfig:
    config = OptimizerConfig(kind=call.counterpart.kind)
    # As TensorFlow rounds them: 1 - beta_2 would differ in the fifth digit.
    values = {name: float(np.float32(value)) for name, value in call.numbers.items()}
    accumulator = values.pop("initial_accumulator_value", None)
    for name, value in values.items():
        setattr(config, name, value)
    if accumulator is not None:
        # sqrt(a) + e equals sqrt(a + this) for the initial accumulator, and nearly so later.
        config.epsilon = 2 * math.sqrt(accumulator) * values["epsilon"] + values["epsilon"] ** 2
    config.nesterov = getattr(call.optimizer, "nesterov", False)
    return config


def _has_slots(config: OptimizerConfig) -> bool:
    return config.kind != _Kind.SGD or config.momentum != 0
