"""Which optimizers the parameter servers can run, and how their steps get there."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
from keras import optimizers

from tfdist.internals.keras_3 import BaseOptimizer, TFOptimizer, Variable
from tfdist.keras.hooks import clipping
from tfdist.keras.registry import hooks
from tfdist.keras.workers import (
    decide_where_it_runs,
    is_on_servers,
    replica_on_servers,
    trains_on_servers,
)
from tfdist.ops.ps.optimizer_config import OptimizerConfig, OptimizerKind

_Kind = OptimizerKind

# By exact class, since a subclass may do something else: the kind, and the attributes that hold the
# slots, in the order that the servers expect (core/ps/optimizers/optimizer.h).
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


@hooks(TFOptimizer, "_apply_weight_decay")
def leave_decay_to_servers(original, self, variables):
    """Weight decay is part of the step where the servers run it; Keras applies it before."""
    replica = replica_on_servers()
    if replica is None or not runs_on_servers(self, replica.strategy.extended, variables):
        original(self, variables)


@hooks(TFOptimizer, "_backend_update_step")
def update_on_servers(original, self, grads, trainable_variables, learning_rate):
    """With parameter servers the gradients go to the servers, if they know the optimizer."""
    replica = replica_on_servers()
    variables = _of_tensorflow(trainable_variables)
    if replica is None or not runs_on_servers(self, replica.strategy.extended, variables):
        return original(self, grads, trainable_variables, learning_rate)
    parameters = replica.strategy.extended.parameters
    parameters.bind(_config(self), _bindings(self, variables))
    parameters.stage(variables, grads, learning_rate, self.iterations + 1)


def runs_on_servers(
    optimizer: TFOptimizer, extended: tf.distribute.StrategyExtended, variables: Sequence
) -> bool:
    """Whether the servers make this optimizer's steps.

    Args:
      optimizer: a Keras optimizer.
      extended: the strategy's `extended`, which has the user's choice and stores the decision.
      variables: the variables that the optimizer trains.

    Raises:
      ValueError: the user wants the servers to make them, and they cannot; says why.
    """
    variables = _of_tensorflow(variables)
    unshared = [v for v in variables if not is_on_servers(v)]
    if unshared:
        raise ValueError(
            f"optimizer {optimizer.name!r}: expected variables of ParameterServerStrategy, but "
            f"{unshared[0].name!r} was made outside its scope, so that it would not be shared"
        )
    decided = extended.optimizer_places
    if id(optimizer) not in decided:
        reason = _obstacle(optimizer, variables, extended)
        # The optimizer is kept too, so that no other object gets its id.
        decided[id(optimizer)] = (
            optimizer,
            decide_where_it_runs(optimizer.name, extended.ps_optimizer, reason),
        )
    return decided[id(optimizer)][1]


def _of_tensorflow(variables: Sequence) -> list[tf.Variable]:
    return [v.value if isinstance(v, Variable) else v for v in variables]


def _obstacle(
    optimizer: TFOptimizer,
    variables: Sequence[tf.Variable],
    extended: tf.distribute.StrategyExtended,
) -> str | None:
    """Why the servers cannot run the optimizer; `None` if they can."""
    if clipping.clips(optimizer) and extended.shares_batches and extended.clip == "sum":
        return "they do not clip the sum of the workers' gradients, which clip='sum' asks for"
    if type(optimizer) not in _KNOWN:
        return f"{type(optimizer).__name__} is not one they know"
    if optimizer.use_ema:
        return "they keep no moving average of the variables (use_ema)"
    if any(v.constraint is not None for v in optimizer._trainable_variables):
        return "they know no constraints"
    if any(v.dtype not in (tf.float32, tf.float64) for v in variables):
        return "they update float32 and float64 variables only"
    return None


def _config(optimizer: TFOptimizer) -> OptimizerConfig:
    config = OptimizerConfig(kind=_KNOWN[type(optimizer)][0])
    for name in [field[0] for field in config._fields_[1:]]:
        if getattr(optimizer, name, None) is not None:
            setattr(config, name, getattr(optimizer, name))
    return config


def _bindings(optimizer: TFOptimizer, variables: Sequence[tf.Variable]) -> list[tuple]:
    """Returns each variable with its slots and its weight decay."""
    attributes = _KNOWN[type(optimizer)][1]
    bindings = []
    for variable in variables:
        index = optimizer._get_variable_index(variable)
        # An attribute is absent, or empty, where the configuration needs no such slot.
        slots = [s[index].value for a in attributes if (s := getattr(optimizer, a, None))]
        decays = optimizer.weight_decay is not None and optimizer._use_weight_decay(variable)
        bindings.append((variable, slots, float(optimizer.weight_decay) if decays else 0.0))
    return bindings


@hooks(BaseOptimizer, "finalize_variable_values")
def wait_for_final_averages(original, self, var_list):
    """With "sync" the workers wait for the moving averages that end `fit`.

    `fit` ends by replacing variables by their moving averages, outside any step. Servers take such
    values from the chief alone. A faster worker would continue with the variables of the last step.
    """
    original(self, var_list)
    strategy = self._distribution_strategy
    if self.use_ema and trains_on_servers(strategy) and strategy.extended.shares_batches:
        strategy.extended.parameters.all_reduce(tf.zeros([]), None)
