"""The state of a compressor for each gradient, from one step to the next."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Mapping

import tensorflow as tf

from tfdist._types import TensorLike
from tfdist.internals.tensorflow import DistributedVariable, ResourceVariable
from tfdist.ops.collectives import collective_keys


class GradientState:
    """The state variables of one gradient, by name."""

    def __init__(self) -> None:
        self._variables: dict[str, ResourceVariable] = {}
        self._restored: dict[str, TensorLike] = {}

    def saved(self) -> dict[str, tf.Tensor | ResourceVariable]:
        """The variables, and the restored values of variables that have not been made, by name."""
        with tf.init_scope():  # also while a function is traced
            values = {name: tf.constant(value) for name, value in self._restored.items()}
        return {**values, **self._variables}

    def restore(self, values: Mapping[str, TensorLike]) -> None:
        """Gives variables their values, as soon as they are made."""
        for name, value in values.items():
            if name in self._variables:
                self._variables[name].assign(value)
            else:
                self._restored[name] = value

    def variable(self, name: str, initial: Callable[[], tf.Tensor]) -> ResourceVariable:
        """The variable `name`, made from `initial()` on first use.

        It is a local variable on the host, of no strategy and in no checkpoint.
        """
        if name not in self._variables:
            if name in self._restored:
                initial = functools.partial(tf.constant, self._restored.pop(name))
            # Outside the function that is being traced, since it may be traced again.
            with tf.init_scope(), tf.device("/device:CPU:0"):
                # Not tf.Variable, which a strategy would replace by one of its own.
                self._variables[name] = ResourceVariable(
                    initial,
                    trainable=False,
                    collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
                    name=f"tfdist_compression/{name}",
                )
            self._variables[name].handle.tfdist_is_of_each_process = True
        return self._variables[name]


def is_of_each_process(handle: tf.Tensor) -> bool:
    """Whether a resource belongs to a variable which each process has for its own gradients.

    Args:
      handle: an eager tensor.
    """
    return getattr(handle, "tfdist_is_of_each_process", False)


class GradientStates:
    """Finds the state of a gradient, in every trace of a function and eagerly.

    A gradient is identified by its variable, as long as the variable lives. Without one it is
    identified by its position in the program, which is the same in every trace: the function's
    name, the call in it, the index in the call's list.
    """

    def __init__(self) -> None:
        self._states: dict[Hashable, GradientState] = {}

    def of(
        self, tensors: list[tf.Tensor], variables: list[tf.Variable | None], communicator: int
    ) -> list[GradientState]:
        """Returns one state per tensor, of the variable at the same index if there is one.

        Args:
          tensors: the tensors that are reduced.
          variables: the variables of the gradients; `None` if not known.
          communicator: the handle of the ranks.
        """
        position = None
        states = []
        for i, (tensor, variable) in enumerate(zip(tensors, variables, strict=True)):
            shape = tuple(tensor.shape)
            if variable is not None:
                states.append(self._get(_primary(variable), shape))
                continue
            if position is None:
                position = (
                    collective_keys.next_key(communicator),
                    tuple(tuple(t.shape) for t in tensors),
                )
            states.append(self._get(_owner_of_position(), (*position, i)))
        return states

    def of_variable(self, variable: tf.Variable) -> GradientState:
        """The state of a variable's gradient."""
        return self._get(_primary(variable), tuple(variable.shape))

    def _get(self, owner: object, key: Hashable) -> GradientState:
        whole = (id(owner), key)
        if whole not in self._states:
            self._states[whole] = GradientState()
            if owner is not None:  # its id may be reused when it is gone
                weakref.finalize(owner, self._states.pop, whole, None)
        return self._states[whole]


def _primary(variable: tf.Variable) -> tf.Variable:
    """The copy of a replicated variable that stands for all copies."""
    return variable._primary if isinstance(variable, DistributedVariable) else variable


def _owner_of_position() -> tf.Graph | None:
    """The graph that variables are made in, if they live in one."""
    with tf.init_scope():
        return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
