"""Keras 3 tells a strategy what its variables are called, and which are each worker's own.

See `tfdist.ps.variable_scopes`. TensorFlow learns neither from Keras 3.
"""

from __future__ import annotations

from keras import initializers
from keras.metrics import Metric
from keras.optimizers import LossScaleOptimizer
from keras.random import SeedGenerator

from tfdist.internals.keras_3 import BaseOptimizer, Variable
from tfdist.keras.registry import hooks
from tfdist.ps.variable_scopes import Role, current_role, made_as, named

_CONSTANT = (initializers.Constant, initializers.Ones, initializers.Zeros)


@hooks(Variable, "__init__")
def note_role(original, self, *args, **kwargs):
    """A variable keeps the role that it was made with, for it may be initialized later."""
    self._tfdist_role = current_role()
    original(self, *args, **kwargs)


@hooks(Variable, "_initialize")
def tell_path_and_role(original, self, value):
    """A strategy learns the full path of a variable, and its role.

    Keras 3 names a `tf.Variable` "kernel" in any layer. Its path, such as
    "sequential/dense/kernel", tells which variable is the same in all workers.
    """
    with named(self.path), made_as(getattr(self, "_tfdist_role", current_role())):
        original(self, value)


@hooks(LossScaleOptimizer, "add_variable")
def keep_loss_scale(original, self, *args, **kwargs):
    """A loss scale is each worker's own: doubling and halving do not add up over workers."""
    with made_as(Role.UNSHARED):
        return original(self, *args, **kwargs)


@hooks(BaseOptimizer, "add_variable_from_reference")
def tell_role_of_slot(original, self, reference_variable, name=None, initializer="zeros"):
    """Accumulated gradients are each worker's own; a constant initial value needs no broadcast."""
    role = current_role()
    if name == "gradient_accumulator" and role is not Role.PART:
        role = Role.UNSHARED
    elif role is None and isinstance(initializers.get(initializer), _CONSTANT):
        role = Role.CONSTANT
    with made_as(role):
        return original(self, reference_variable, name, initializer)


@hooks(SeedGenerator, "__init__")
def keep_random_state(original, self, *args, **kwargs):
    """The states of random generators are each worker's own."""
    with made_as(Role.UNSHARED):
        original(self, *args, **kwargs)


@hooks(Metric, "add_variable")
def keep_local(original, self, *args, **kwargs):
    """The state of metrics stays with the worker, also where replicas would read its mean."""
    with made_as(Role.UNSHARED):
        return original(self, *args, **kwargs)
