"""The distributed optimizer for tf_keras, whose optimizers have a method that reduces gradients."""

from __future__ import annotations

import copy
import functools
from typing import Any

import tensorflow as tf
import tf_keras

from tfdist._types import KerasVariable
from tfdist.horovod import optimizer_options as front

_registered = tf_keras.saving.register_keras_serializable("tfdist", "DistributedOptimizer")
# For type checkers: an optimizer's class follows this one, and has no types.
_Base: Any = object


@_registered
class DistributedLegacyOptimizer(_Base):
    """Base class that precedes a tf_keras optimizer's class; see `DistributedOptimizer`."""

    def aggregate_gradients(self, grads_and_vars):
        """Reduces over all ranks; a LossScaleOptimizer calls it before it checks for overflow."""
        gradients, variables = zip(*grads_and_vars, strict=True)
        return list(zip(self._reduction(gradients, variables), variables, strict=True))

    # The name that optimizers of tf_keras.optimizers.legacy call.
    _aggregate_gradients = aggregate_gradients

    def apply_gradients(self, grads_and_vars, *arguments, **options):
        """As the optimizer's; with several passes per step, applies in the last one."""
        plain = super().apply_gradients
        if self._accumulator is None:
            return plain(grads_and_vars, *arguments, **options)
        gradients, variables = zip(*grads_and_vars, strict=True)
        if isinstance(self, tf_keras.optimizers.Optimizer):
            with tf.init_scope():  # not in the branch that applies
                self.build(variables)

        def apply(sums: list) -> None:
            plain(list(zip(sums, variables, strict=True)), *arguments, **options)

        self._accumulator.add(gradients, variables, apply)
        return self.iterations

    def register_local_var(self, variable: KerasVariable) -> None:
        """Makes a variable local to each rank: its gradients are not reduced."""
        self._reduction.local.register(variable)

    def reset_accumulation(self) -> None:
        """Begins with the first backward pass of a step again."""
        if self._accumulator is not None:
            self._accumulator.reset()

    def get_config(self) -> dict[str, object]:
        """Returns the arguments of `from_config`."""
        config = super().get_config()
        plain = tf_keras.optimizers.serialize(self._plain_class.from_config(dict(config)))
        # tf_keras reads this to know the form of the rest.
        legacy = config.get("is_legacy_optimizer", True)
        options = front.saved(self._options, self._reduction)
        return {"optimizer": plain, "is_legacy_optimizer": legacy, **options}

    @classmethod
    def from_config(
        cls, config: dict, custom_objects: dict | None = None
    ) -> tf_keras.optimizers.Optimizer:
        """Makes the plain optimizer and distributes it."""
        options = copy.deepcopy(config)  # tf_keras changes it
        options.pop("is_legacy_optimizer")
        plain = tf_keras.optimizers.deserialize(options.pop("optimizer"), custom_objects)
        local = options.pop(front.LOCAL_VARIABLES, ())
        distributed = distribute(plain, front.Options.from_config(options))
        distributed._reduction.local.expect(local)
        return distributed


def distribute(
    optimizer: tf_keras.optimizers.Optimizer, options: front.Options, name: str | None = None
) -> tf_keras.optimizers.Optimizer:
    """As `optimizer.wrapped`, for an optimizer of tf_keras."""
    if isinstance(optimizer, tf_keras.mixed_precision.LossScaleOptimizer):
        if options.backward_passes_per_step > 1:
            raise ValueError(
                f"{front.API_NAME}: expected backward_passes_per_step=1 with tf_keras's "
                f"LossScaleOptimizer, received {options.backward_passes_per_step}: it looks at the "
                "gradients of all ranks in every pass"
            )
        distribute(optimizer.inner_optimizer, options, name)
        return optimizer
    front.refuse_distributed(optimizer, DistributedLegacyOptimizer)
    if name is not None:
        setattr(optimizer, "name" if hasattr(optimizer, "name") else "_name", name)
    plain: Any = type(optimizer)
    state = {
        "_plain_class": plain,
        "_options": options,
        "_reduction": options.reduction(),
        "_accumulator": options.accumulator(),
        "__class__": _distributed(plain),
    }
    for attribute, value in state.items():
        object.__setattr__(optimizer, attribute, value)
    return optimizer


@functools.cache
def _distributed(plain: type) -> type:
    cls = type(plain)(f"Distributed{plain.__name__}", (DistributedLegacyOptimizer, plain), {})
    return _registered(cls)
