"""Which optimizers the parameter servers can run, and how their steps get there."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from keras import optimizers
from keras.src.backend import Variable
from keras.src.backend.tensorflow.optimizer import TFOptimizer

from tfdist import ops
from tfdist.keras import clipping
from tfdist.keras.workers import decide_where_it_runs, replica_on_servers
from tfdist.strategies._variables.server_variable import ServerVariable

_Kind = ops.OptimizerKind

# By exact class, for a subclass may do something else: the kind, and where Keras keeps its slots,
# in the order that the servers expect (core/ps/optimizers/optimizer.h).
_KNOWN: dict[type, tuple[int, tuple[str, ...]]] = {
    optimizers.SGD: (_Kind.SGD, ("momentums",)),
    optimizers.Adagrad: (_Kind.ADAGRAD, ("_accumulators",)),
    optimizers.RMSprop: (_Kind.RMSPROP, ("_velocities", "_momentums", "_average_gradients")),
    optimizers.Adam: (_Kind.ADAM, ("_momentums", "_velocities", "_velocity_hats")),
    optimizers.AdamW: (_Kind.ADAM, ("_momentums", "_velocities", "_velocity_hats")),
    optimizers.Adamax: (_Kind.ADAMAX, ("_m", "_u")),
    optimizers.Ftrl: (_Kind.FTRL, ("_accumulators", "_linears")),
    optimizers.Lion: (_Kind.LION, ("_momentums",)),
}


def update_on_servers() -> None:
    """With parameter servers, hands the gradients to servers that know the optimizer.

    Weight decay comes before the step in Keras and is part of it on the servers.
    """
    decay, update = TFOptimizer._apply_weight_decay, TFOptimizer._backend_update_step

    @functools.wraps(decay)
    def _apply_weight_decay(self, variables):
        replica = replica_on_servers()
        if replica is None or not runs_on_servers(self, replica.strategy.extended, variables):
            decay(self, variables)

    @functools.wraps(update)
    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        replica = replica_on_servers()
        variables = _of_tensorflow(trainable_variables)
        if replica is None or not runs_on_servers(self, replica.strategy.extended, variables):
            return update(self, grads, trainable_variables, learning_rate)
        parameters = replica.strategy.extended.parameters
        parameters.bind(_config(self), _bindings(self, variables))
        parameters.stage(variables, grads, learning_rate, self.iterations + 1)

    TFOptimizer._apply_weight_decay = _apply_weight_decay
    TFOptimizer._backend_update_step = _backend_update_step


def runs_on_servers(optimizer: TFOptimizer, extended: Any, variables: Sequence) -> bool:
    """Whether the servers make this optimizer's steps.

    Args:
      optimizer: a Keras optimizer.
      extended: of the strategy, which says what the user wants and remembers what was decided.
      variables: what the optimizer trains.

    Raises:
      ValueError: the user wants the servers to, and they cannot; says why.
    """
    variables = _of_tensorflow(variables)
    strangers = [v for v in variables if not isinstance(v, ServerVariable)]
    if strangers:
        raise ValueError(
            f"optimizer {optimizer.name!r}: expected variables of ParameterServerStrategy, but "
            f"{strangers[0].name!r} was made outside its scope, so that it would not be shared"
        )
    decided = extended.optimizer_places
    if id(optimizer) not in decided:
        reason = _obstacle(optimizer, variables, extended)
        # The optimizer too, so that its id stays its own.
        decided[id(optimizer)] = (
            optimizer,
            decide_where_it_runs(optimizer.name, extended.ps_optimizer, reason),
        )
    return decided[id(optimizer)][1]


def _of_tensorflow(variables: Sequence) -> list[tf.Variable]:
    return [v.value if isinstance(v, Variable) else v for v in variables]


def _obstacle(
    optimizer: TFOptimizer, variables: Sequence[tf.Variable], extended: Any
) -> str | None:
    """What keeps the servers from running the optimizer; `None` if nothing does."""
    if clipping.clips(optimizer) and extended.shares_batches and extended.clip == "sum":
        return "they do not clip the sum of the workers' gradients, which clip='sum' asks for"
    if type(optimizer) not in _KNOWN:
        return f"{type(optimizer).__name__} is none of those that they know"
    if optimizer.use_ema:
        return "they keep no moving average of the variables (use_ema)"
    if any(v.constraint is not None for v in optimizer._trainable_variables):
        return "they know no constraints"
    if any(v.dtype not in (tf.float32, tf.float64) for v in variables):
        return "they update float32 and float64 variables only"
    return None


def _config(optimizer: TFOptimizer) -> ops.OptimizerConfig:
    config = ops.OptimizerConfig(kind=_KNOWN[type(optimizer)][0])
    for name, _ in config._fields_[1:]:
        if getattr(optimizer, name, None) is not None:
            setattr(config, name, getattr(optimizer, name))
    return config


def _bindings(optimizer: TFOptimizer, variables: Sequence[ServerVariable]) -> list[tuple]:
    """For each variable itself, its slots, and its weight decay."""
    attributes = _KNOWN[type(optimizer)][1]
    bindings = []
    for variable in variables:
        index = optimizer._get_variable_index(variable)
        # An attribute is absent, or empty, where the configuration needs no such slot.
        slots = [s[index].value for a in attributes if (s := getattr(optimizer, a, None))]
        decays = optimizer.weight_decay is not None and optimizer._use_weight_decay(variable)
        bindings.append((variable, slots, float(optimizer.weight_decay) if decays else 0.0))
    return bindings
