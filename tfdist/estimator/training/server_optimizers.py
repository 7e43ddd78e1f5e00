"""Which optimizers of a model_fn the parameter servers run, and how their steps get there.

Optimizers of Keras tell the servers what they are as they make their first step. In a graph there
are no variables then: it is noted, and the servers are told when a session has made them.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import ops
from tfdist.estimator.training.optimizer_calls import OptimizerCall
from tfdist.keras.workers import decide_where_it_runs, replica_on_servers
from tfdist.strategies._variables.parameters import Parameters
from tfdist.strategies._variables.server_variable import ServerVariable

v1 = tf.compat.v1
_Kind = ops.OptimizerKind

# How much a step may differ by where the epsilon is added: less than float32 tells apart.
_ROUNDING = 1e-7


class Bindings:
    """What the servers have to know of a graph's optimizers before its first step."""

    def __init__(self) -> None:
        self._noted: list[tuple[ops.OptimizerConfig, list[tuple]]] = []

    @classmethod
    def of_this_graph(cls) -> Bindings:
        """Returns those of the default graph, whose optimizers may run on servers from now on."""
        graph = v1.get_default_graph()
        if not hasattr(graph, "tfdist_bindings"):
            graph.tfdist_bindings = cls()
        return graph.tfdist_bindings

    def note(self, config: ops.OptimizerConfig, bindings: list[tuple]) -> None:
        """Keeps what `Parameters.bind` is to be told."""
        self._noted.append((config, bindings))

    def bind(self, parameters: Parameters) -> None:
        """Tells the servers, which have the variables by now."""
        for config, bindings in self._noted:
            parameters.bind(config, bindings)


def decide_for(call: OptimizerCall, pairs: Sequence[tuple]) -> ServerStep | None:
    """What makes a step on the servers; `None` if the worker makes it.

    Args:
      call: of `apply_gradients`.
      pairs: gradients, which are tensors or `tf.IndexedSlices`, and their variables.

    Raises:
      ValueError: the user wants the servers to, and they cannot; says why.
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
        strategy: Any,
        bindings: Bindings,
        config: ops.OptimizerConfig,
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
        names = call.known.slots if _has_slots(self._config) else ()
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
        # Changes add up over workers that make steps on their own.
        is_writer = strategy.is_chief or strategy.num_replicas_in_sync > 1
        return call.finish(staged, step, is_writer)


def _obstacle(call: OptimizerCall, pairs: Sequence[tuple], in_sync: bool) -> str | None:
    """What keeps the servers from making a step; `None` if nothing does."""
    if call.known is None:
        return f"{type(call.optimizer).__name__} is none of those that they know"
    variables = [v for _, v in pairs]
    strangers = [v for v in variables if not isinstance(v, ServerVariable)]
    if strangers:
        return f"{strangers[0].name!r} was made outside of the strategy's scope"
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
    if call.known.kind == _Kind.SGD:
        return not call.numbers.get("momentum")
    return call.known.kind != _Kind.FTRL


def _rounds_alike(call: OptimizerCall, variables: Sequence[tf.Variable]) -> bool:
    epsilon = call.numbers.get("epsilon")
    if call.known.kind != _Kind.ADAGRAD or epsilon is None:
        return True
    # The largest relative difference, with what `_config` makes of the epsilon.
    difference = epsilon / (4 * math.sqrt(call.numbers["initial_accumulator_value"] or 1e-30))
    return difference <= _ROUNDING and all(v.dtype == tf.float32 for v in variables)


def _config(call: OptimizerCall) -> ops.OptimizerConfig:
    config = ops.OptimizerConfig(kind=call.known.kind)
    # As TensorFlow rounds them: 1 - beta_2 would differ in the fifth digit.
    values = {name: float(np.float32(value)) for name, value in call.numbers.items()}
    accumulator = values.pop("initial_accumulator_value", None)
    for name, value in values.items():
        setattr(config, name, value)
    if accumulator is not None:
        # sqrt(a) + e is sqrt(a + this) where the accumulator begins, and nearly so where it gets.
        config.epsilon = 2 * math.sqrt(accumulator) * values["epsilon"] + values["epsilon"] ** 2
    config.nesterov = getattr(call.optimizer, "nesterov", False)
    return config


def _has_slots(config: ops.OptimizerConfig) -> bool:
    return config.kind != _Kind.SGD or config.momentum != 0
