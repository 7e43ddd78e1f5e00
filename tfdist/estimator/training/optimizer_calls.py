"""One interface to calls of `apply_gradients` of a model_fn's optimizers.

These are the optimizers of TensorFlow 1, and tf_keras's legacy ones. For others see `tfdist.keras`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf
from tf_keras.optimizers import legacy

# To recognize a user's own function.
from tfdist.internals.tf_keras import all_reduce_sum_gradients
from tfdist.ops.ps.optimizer_config import OptimizerKind
from tfdist.strategies._variables.server_variable import ServerVariable

v1 = tf.compat.v1
_Kind = OptimizerKind


class Known(NamedTuple):
    """An optimizer that the servers can run.

    Args:
      kind: the servers' kind.
      slots: the optimizer's names of its slots, in the order that the servers expect.
      numbers: the optimizer's attributes, by their names in the servers' configuration.
    """

    kind: int
    slots: tuple[str, ...] = ()
    numbers: Mapping[str, str] = {}


_FTRL = ("l1_regularization_strength", "l2_regularization_strength", "learning_rate_power", "beta")
_SHRINKAGE = "l2_shrinkage_regularization_strength"

# By exact class, since a subclass may do something else.
_KNOWN: dict[type, Known] = {
    v1.train.GradientDescentOptimizer: Known(_Kind.SGD),
    v1.train.AdagradOptimizer: Known(_Kind.ADAGRAD, ("accumulator",)),
    v1.train.AdamOptimizer: Known(
        _Kind.ADAM, ("m", "v"), {"beta_1": "_beta1", "beta_2": "_beta2", "epsilon": "_epsilon"}
    ),
    v1.train.FtrlOptimizer: Known(
        _Kind.FTRL, ("accum", "linear"), {name: f"_{name}" for name in (*_FTRL, _SHRINKAGE)}
    ),
    legacy.SGD: Known(_Kind.SGD, ("momentum",), {"momentum": "momentum"}),
    legacy.Adagrad: Known(
        _Kind.ADAGRAD,
        ("accumulator",),
        {"epsilon": "epsilon", "initial_accumulator_value": "_initial_accumulator_value"},
    ),
    legacy.Adam: Known(
        _Kind.ADAM, ("m", "v"), {name: name for name in ("beta_1", "beta_2", "epsilon")}
    ),
    legacy.Ftrl: Known(
        _Kind.FTRL,
        ("accumulator", "linear"),
        {**{name: name for name in _FTRL}, _SHRINKAGE: f"_{_SHRINKAGE}"},
    ),
}


class OptimizerCall:
    """One call of `apply_gradients`, in the graph of a model_fn.

    Args:
      optimizer: the optimizer.
      steps: its counter of steps; `None` if it has none.
      adds_up: whether it sums the gradients of all replicas.
    """

    name: str

    def __init__(
        self,
        optimizer: tf.compat.v1.train.Optimizer | legacy.Optimizer,
        steps: tf.Variable | None,
        adds_up: bool,
    ) -> None:
        self.optimizer = optimizer
        self.steps = steps
        self.adds_up = adds_up

    @property
    def known(self) -> Known | None:
        """The servers' counterpart of this optimizer; `None` if they have none."""
        return _KNOWN.get(type(self.optimizer))

    @property
    def counterpart(self) -> Known:
        """`known`, if it is not `None`."""
        assert self.known is not None
        return self.known

    @property
    def counter(self) -> tf.Variable:
        """The number of steps so far."""
        raise NotImplementedError

    @functools.cached_property
    def numbers(self) -> dict[str, tf.Tensor | float]:
        """The values of `Known.numbers`, as the user gave them, by the servers' names."""
        of_keras = getattr(self.optimizer, "_hyper", {})
        return {
            name: of_keras[a] if a in of_keras else getattr(self.optimizer, a)
            for name, a in self.counterpart.numbers.items()
        }

    def obstacle(self, in_sync: bool) -> str | None:
        """Why the servers cannot make this step; `None` if nothing in this optimizer prevents it.

        Args:
          in_sync: whether the workers make steps together.
        """
        raise NotImplementedError

    def learning_rate(self, dtype: tf.DType = tf.float32) -> tf.Tensor | float:
        """The learning rate of this step; `None` if the optimizer does not have one."""
        raise NotImplementedError

    def create_slots(self, variables: Sequence[tf.Variable]) -> None:
        """Makes the variables that the optimizer needs."""
        raise NotImplementedError

    def transform(self, pairs: list[tuple]) -> list[tuple]:
        """Transforms gradients as the optimizer does before it applies them."""
        return pairs

    def finish(self, staged: tf.Operation, step: tf.Tensor, is_writer: bool) -> tf.Operation:
        """Makes the optimizer's other changes in a step, such as its step count.

        Args:
          staged: the operation that runs before.
          step: the number of the step, counted from 1.
          is_writer: whether this worker writes values that do not add up over the workers.
        """
        raise NotImplementedError


class CallOfTensorFlow1(OptimizerCall):
    """A call of a `tf.compat.v1.train.Optimizer`; the other arguments are the call's."""

    def __init__(
        self,
        optimizer: tf.compat.v1.train.Optimizer | legacy.Optimizer,
        global_step: tf.Variable | None = None,
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
    ) -> None:
        super().__init__(optimizer, global_step, not skip_gradients_aggregation)
        self.name = optimizer.get_name()
        self._name_of_operation = name

    @property
    def counter(self) -> tf.Variable:
        """The number of steps of this optimizer, or else of the training."""
        return v1.train.get_or_create_global_step() if self.steps is None else self.steps

    def obstacle(self, in_sync: bool) -> str | None:
        """See the base class."""
        if self.counterpart.kind == _Kind.ADAM and not isinstance(self.steps, ServerVariable):
            return "apply_gradients was given no global_step that tells which step it is"
        return None

    def learning_rate(self, dtype: tf.DType = tf.float32) -> tf.Tensor | float:
        """See the base class."""
        rate = getattr(self.optimizer, "_learning_rate", None)
        rate = getattr(self.optimizer, "_lr", None) if rate is None else rate
        return rate() if callable(rate) else rate

    def create_slots(self, variables: Sequence[tf.Variable]) -> None:
        """See the base class."""
        with tf.init_scope():
            self.optimizer._create_slots(variables)

    def finish(self, staged: tf.Operation, step: tf.Tensor, is_writer: bool) -> tf.Operation:
        """See the base class."""
        done = [staged]
        with tf.control_dependencies(done):
            if self.counterpart.kind == _Kind.ADAM and is_writer:
                powers = self.optimizer._get_beta_accumulators()
                for power, beta in zip(powers, ("beta_1", "beta_2"), strict=True):
                    # The values for the next step, if the worker runs the optimizer.
                    exponent = tf.cast(step + 1, power.dtype)
                    value = tf.pow(tf.cast(self.numbers[beta], power.dtype), exponent)
                    done.append(power.assign(value, read_value=False))
        with tf.control_dependencies(done):
            if self.steps is None:
                applied = tf.group(*done, name=self._name_of_operation)
            else:
                applied = v1.assign_add(self.steps, 1, name=self._name_of_operation).op
        v1.add_to_collection(v1.GraphKeys.TRAIN_OP, applied)
        return applied


class CallOfTfKeras(OptimizerCall):
    """A call of a `tf_keras.optimizers.legacy.Optimizer`; other arguments are the call's."""

    def __init__(
        self,
        optimizer: tf.compat.v1.train.Optimizer | legacy.Optimizer,
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
    ) -> None:
        super().__init__(optimizer, None, experimental_aggregate_gradients)
        self.name = optimizer._name

    @property
    def counter(self) -> tf.Variable:
        """The number of steps so far."""
        return self.optimizer.iterations

    def obstacle(self, in_sync: bool) -> str | None:
        """See the base class."""
        optimizer = self.optimizer
        if optimizer.gradient_aggregator is not all_reduce_sum_gradients:
            return "it adds up gradients in a way of its own (gradient_aggregator)"
        changes = (optimizer.clipnorm, optimizer.clipvalue, optimizer.global_clipnorm)
        if in_sync and (optimizer.gradient_transformers or any(c is not None for c in changes)):
            return "it changes gradients when they have been added up, as by clipping"
        if getattr(optimizer, "amsgrad", False):
            return "amsgrad is left to the workers"
        return None

    def learning_rate(self, dtype: tf.DType = tf.float32) -> tf.Tensor | float:
        """See the base class."""
        return self.optimizer._decayed_lr(dtype)

    def create_slots(self, variables: Sequence[tf.Variable]) -> None:
        """See the base class."""
        with tf.name_scope(self.name), tf.init_scope():
            self.optimizer._create_all_weights(variables)
        self.steps = self.optimizer.iterations

    def transform(self, pairs: list[tuple]) -> list[tuple]:
        """See the base class."""
        return self.optimizer._transform_gradients(pairs)

    def finish(self, staged: tf.Operation, step: tf.Tensor, is_writer: bool) -> tf.Operation:
        """See the base class."""
        with tf.control_dependencies([staged]):
            return self.optimizer.iterations.assign_add(1, read_value=False)
