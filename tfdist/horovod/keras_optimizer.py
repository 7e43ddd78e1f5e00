"""The distributed optimizer for Keras 3."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from tfdist import ops
from tfdist._types import Gradient, KerasVariable
from tfdist.horovod import optimizer_options as front
from tfdist.job import process
from tfdist.keras import repair_distributed_optimizers

# The name under which an optimizer of any class is saved: its own class is part of its config.
_registered = keras.saving.register_keras_serializable("tfdist", "DistributedOptimizer")
# For type checkers: an optimizer's class follows this one, and has no types.
_Base: Any = object


@_registered
class DistributedKerasOptimizer(_Base):
    """Base class that precedes a Keras 3 optimizer's class; see `DistributedOptimizer`."""

    def apply(
        self,
        grads: Iterable[Gradient | None],
        trainable_variables: Iterable[keras.Variable] | None = None,
    ) -> None:
        """Applies the gradients of all ranks; arguments as the optimizer's."""
        grads = list(grads)
        given = None if trainable_variables is None else list(trainable_variables)
        if not self.built:
            if given is None:
                super().apply(grads)  # raises, and names the missing part
                return
            with tf.init_scope():  # not in a branch of a tf.cond
                self.build(given)
        variables = self._trainable_variables if given is None else given

        def apply(gradients: list) -> None:
            reduced = self._reduction(gradients, variables)
            super(DistributedKerasOptimizer, self).apply(reduced, given)

        if self._accumulator is None:
            apply(grads)
        else:
            self._accumulator.add(grads, variables, apply)

    def is_finite_on_all_ranks(self, finite: tf.Tensor) -> tf.Tensor:
        """Whether the gradients of all ranks are finite; a `LossScaleOptimizer` asks.

        Args:
          finite: bool, whether this rank's gradients are.
        """
        if process.is_alone(front.API_NAME):
            return finite
        overflows = tf.cast(tf.logical_not(finite), tf.int32)
        return ops.all_reduce(overflows, label="loss-scale overflow check") == 0

    def register_local_var(self, variable: KerasVariable) -> None:
        """Makes a variable local to each rank: its gradients are not reduced."""
        self._reduction.local.register(variable)

    def reset_accumulation(self) -> None:
        """Begins with the first backward pass of a step again."""
        if self._accumulator is not None:
            self._accumulator.reset()

    def get_config(self) -> dict[str, object]:
        """Returns the arguments of `from_config`."""
        plain = keras.optimizers.serialize(self._plain_class.from_config(super().get_config()))
        return {"optimizer": plain, **front.saved(self._options, self._reduction)}

    @classmethod
    def from_config(cls, config: dict, custom_objects: dict | None = None) -> keras.Optimizer:
        """Makes the plain optimizer and distributes it."""
        options = copy.deepcopy(config)  # Keras changes it
        plain = keras.optimizers.deserialize(options.pop("optimizer"), custom_objects)
        local = options.pop(front.LOCAL_VARIABLES, ())
        distributed = distribute(plain, front.Options.from_config(options))
        distributed._reduction.local.expect(local)
        return distributed


def distribute(
    optimizer: keras.Optimizer, options: front.Options, name: str | None = None
) -> keras.Optimizer:
    """As `optimizer.wrapped`, for an optimizer of Keras 3."""
    repair_distributed_optimizers()
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        # As `compile` does with mixed precision: the outer optimizer scales the loss.
        distribute(optimizer.inner_optimizer, options, name)
        return optimizer
    front.refuse_distributed(optimizer, DistributedKerasOptimizer)
    if name is not None:
        optimizer.name = name
    plain: Any = type(optimizer)
    state = {
        "_plain_class": plain,
        "_options": options,
        "_reduction": options.reduction(),
        "_accumulator": options.accumulator(),
        "__class__": _distributed(plain),
    }
    for attribute, value in state.items():
        # Keras's __setattr__ would look for variables to save.
        object.__setattr__(optimizer, attribute, value)
    return optimizer


def is_distributed(optimizer: keras.Optimizer) -> bool:
    """Whether an optimizer, or the one inside a LossScaleOptimizer, reduces over the ranks."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return isinstance(inner, DistributedKerasOptimizer)


@functools.cache
def _distributed(plain: type) -> type:
    cls = type(f"Distributed{plain.__name__}", (DistributedKerasOptimizer, plain), {})
    return _registered(cls)
