"""What a compressor keeps of each gradient from one step to the next."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable

import tensorflow as tf
from tensorflow.python.distribute.values import DistributedVariable
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from tfdist.ops.collectives import collective_keys


class GradientState:
    """The variables that belong to one gradient, by name."""

    def __init__(self) -> None:
        self._variables: dict[str, ResourceVariable] = {}

    def variable(self, name: str, initial: Callable[[], tf.Tensor]) -> ResourceVariable:
        """The variable `name`, made of `initial()` when it is first asked for.

        It is a local one, on the host, of no strategy and in no checkpoint.
        """
        if name not in self._variables:
            # Outside the function that is being traced, which may be traced again.
            with tf.init_scope(), tf.device("/device:CPU:0"):
                # Not tf.Variable, of which a strategy would make one of its own.
                self._variables[name] = ResourceVariable(
                    initial,
                    trainable=False,
                    collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
                    name=f"tfdist_compression/{name}",
                )
        return self._variables[name]


class GradientStates:
    """Finds the state of a gradient, in every trace of a function and eagerly.

    A gradient is known by its variable, as long as that lives; without one by its place in the
    program, which is the same in every trace: the function's name, which call in it, which position
    in the call's list.
    """

    def __init__(self) -> None:
        self._states: dict[Hashable, GradientState] = {}

    def of(
        self, tensors: list[tf.Tensor], variables: list[tf.Variable | None], communicator: int
    ) -> list[GradientState]:
        """One state for each tensor, of the variable at the same position if there is one.

        Args:
          tensors: what is reduced.
          variables: what they are gradients of; `None` where that is not known.
          communicator: the handle of the ranks.
        """
        place = None
        states = []
        for i, (tensor, variable) in enumerate(zip(tensors, variables, strict=True)):
            shape = tuple(tensor.shape)
            if variable is not None:
                states.append(self._get(_primary(variable), shape))
                continue
            if place is None:
                place = (
                    collective_keys.next_key(communicator),
                    tuple(tuple(t.shape) for t in tensors),
                )
            states.append(self._get(_owner_of_place(), (*place, i)))
        return states

    def _get(self, owner: object, key: Hashable) -> GradientState:
        whole = (id(owner), key)
        if whole not in self._states:
            self._states[whole] = GradientState()
            if owner is not None:  # its id may be given to another when it is gone
                weakref.finalize(owner, self._states.pop, whole, None)
        return self._states[whole]


def _primary(variable: tf.Variable) -> tf.Variable:
    """The one of a replicated variable's copies that stands for all."""
    return variable._primary if isinstance(variable, DistributedVariable) else variable


def _owner_of_place() -> tf.Graph | None:
    """The graph that variables are made in, if they live in one."""
    with tf.init_scope():
        return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
