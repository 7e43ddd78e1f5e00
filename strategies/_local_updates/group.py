"""The variables that one optimizer trains, with their anchors."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tfdist._types import Gradient, KerasOptimizer, KerasVariable

# The mode in which there is no strategy.
from tfdist.internals.tensorflow import DistributedVariable, distribute_lib
from tfdist.rules import Rule
from tfdist.strategies._local_updates.former_optimizer import FormerOptimizer

_T = TypeVar("_T")


class Group:
    """Variables of one worker that one optimizer trains, and what a rule needs for them.

    The anchor is the value at the beginning of a round. It is copied from the variables in the
    round's first step, so that values that a program has assigned before are part of it.

    Args:
      optimizer: of Keras 3 or tf_keras, which has been built, or a `FormerOptimizer`.
      variables: the strategy's variables, which `optimizer` trains.
      rule: how workers combine them.
      workers: the number of workers.
      slots: the treatment of the optimizer's own variables: "keep", "average" or "reset".
    """

    def __init__(
        self,
        optimizer: KerasOptimizer,
        variables: Sequence[KerasVariable],
        rule: Rule,
        workers: int,
        slots: str,
    ) -> None:
        self.rounds: list[Any] = []  # rounds that live as long as this group
        self.restored: dict[str, np.ndarray] = {}  # the values that it has begun with
        self.variables = list(variables)
        self._values = [component(variable) for variable in variables]
        self._rule = rule
        self._optimizer = weakref.ref(optimizer)  # its end ends this group
        own = [] if slots == "keep" else _slots(optimizer)
        # The averaged variables of the optimizer.
        self.slots = [component(v) for v in own] if slots == "average" else []
        self._reset = [component(v) for v in own] if slots == "reset" else []
        self._initial: list[np.ndarray | bool] = []
        without_strategy(lambda: self._make(optimizer, workers))

    def _make(self, optimizer: KerasOptimizer, workers: int) -> None:
        import keras  # tf_keras's users may not have imported it

        self._anchors = [
            keras.Variable(np.zeros(v.shape, v.dtype.as_numpy_dtype), trainable=True)
            for v in self._values
        ]
        self._states = [
            {name: tf.Variable(tf.zeros(v.shape, v.dtype)) for name in self._rule.state_names}
            for v in self._values
        ]
        self._has_begun = tf.Variable(False)
        self._outer = self._rule.outer_optimizer(workers)
        self._outer.build(self._anchors)
        if self._reset and isinstance(optimizer, FormerOptimizer):
            self._reset, self._initial = [optimizer.are_reset], [True]
        elif self._reset:
            new = type(optimizer).from_config(optimizer.get_config())
            is_keras_3 = isinstance(new, keras.optimizers.Optimizer)
            new.build(self._anchors if is_keras_3 else [a.value for a in self._anchors])
            self._initial = [v.numpy() for v in _slots(new)]

    @property
    def anchors(self) -> list[tf.Variable]:
        """The anchor of each variable."""
        return [anchor.value for anchor in self._anchors]

    def saved(self) -> dict[str, tf.Variable]:
        """The variables that another process needs to continue, by the names of `saved_state`."""
        optimizer = self._optimizer()
        kinds: dict[str, Sequence[KerasVariable]] = {
            "value": self._values,
            "slot": [] if optimizer is None else _but_rates(optimizer),
            "anchor": self.anchors,
            "outer": _but_rates(self._outer),
            "has_begun": [self._has_begun],
        }
        if isinstance(optimizer, FormerOptimizer):
            kinds["are_reset"] = [optimizer.are_reset]
        for name in self._rule.state_names:
            kinds[name] = [state[name] for state in self._states]
        return {f"{kind}/{i}": component(v) for kind, vs in kinds.items() for i, v in enumerate(vs)}

    def copy_anchor(self) -> None:
        """Outside of a round, gives the anchor the variables' values, as the next round would."""
        if not self._has_begun.numpy():
            for anchor, value in zip(self._anchors, self._values, strict=True):
                anchor.assign(value.read_value())

    def begin(self) -> None:
        """Begins a round, unless one has begun: the anchor becomes the variables' values."""

        def copy() -> tf.Tensor:
            for anchor, value in zip(self._anchors, self._values, strict=True):
                anchor.assign(value.read_value())
            return self._has_begun.assign(True, read_value=True)

        tf.cond(self._has_begun, lambda: tf.constant(True), copy)

    def gradient(self, variable: KerasVariable, gradient: Gradient) -> Gradient:
        """The gradient that a worker applies to one of its variables, by the rule."""
        if type(self._rule).gradient is Rule.gradient:
            return gradient  # perhaps rows of an embedding
        position = next(i for i, v in enumerate(self.variables) if v is variable)
        return self._rule.gradient(
            tf.convert_to_tensor(gradient),
            self._values[position].read_value(),
            self._anchors[position].value,
            self._states[position],
        )

    def pseudo_gradients(self) -> list[tf.Tensor]:
        """The anchor minus what this worker gives to the mean, for each variable."""
        return [
            anchor.value - self._rule.contribution(value.read_value(), anchor.value, state)
            for value, anchor, state in zip(self._values, self._anchors, self._states, strict=True)
        ]

    def finish(self, means: list[tf.Tensor], in_warmup: tf.Tensor | None) -> tf.Tensor:
        """Ends a round.

        Args:
          means: the workers' weighted means of their pseudo-gradients, for each variable.
          in_warmup: whether the anchor becomes the mean, without the rule; `None`: it does not.

        Returns:
          This worker's parts of the rule's squared residuals, float64[number of residuals].
        """
        before = [tf.identity(anchor.value) for anchor in self._anchors]

        def by_rule() -> tf.Tensor:
            with _no_strategy():
                self._outer.apply(means, self._anchors)
            residuals = tf.zeros([len(self._rule.residual_names)], tf.float64)
            for value, old, anchor, state in zip(
                self._values, before, self._anchors, self._states, strict=True
            ):
                x, new = value.read_value(), anchor.value
                squares = self._rule.squared_residuals(x, old, new)
                if squares:
                    residuals += tf.cast(tf.stack(squares), tf.float64)
                value.assign(self._rule.next_value(x, old, new, state))
            self._has_begun.assign(self._rule.diverges)
            return residuals

        def to_mean() -> tf.Tensor:
            for anchor, mean in zip(self._anchors, means, strict=True):
                anchor.assign_sub(mean)
            self._go_to_anchors()
            return tf.zeros([len(self._rule.residual_names)], tf.float64)

        residuals = by_rule() if in_warmup is None else tf.cond(in_warmup, to_mean, by_rule)
        self.reset_slots()
        return residuals

    def reset_slots(self) -> None:
        """Gives the optimizer's variables their first values, if rounds end with that."""
        for slot, initial in zip(self._reset, self._initial, strict=True):
            slot.assign(initial)

    def go_to_anchors(self) -> None:
        """Gives the variables the anchor's values, unless they have them."""
        tf.cond(self._has_begun, self._go_to_anchors, lambda: tf.constant(False))

    def _go_to_anchors(self) -> tf.Tensor:
        for value, anchor in zip(self._values, self._anchors, strict=True):
            value.assign(anchor.value)
        return self._has_begun.assign(False, read_value=True)


def of_tensorflow(variable: KerasVariable) -> tf.Variable:
    """The variable of TensorFlow that a variable of Keras 3 has."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def component(variable: KerasVariable) -> tf.Variable:
    """This worker's copy of a variable."""
    variable = of_tensorflow(variable)
    return variable.values[0] if isinstance(variable, DistributedVariable) else variable


def without_strategy(make: Callable[[], _T]) -> _T:
    """Calls a function that makes variables of no strategy, eagerly, and returns its result.

    A thread of its own has neither the scope of a strategy nor a graph.
    """
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with tf.device("/device:CPU:0"):
                results.append(make())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


@contextlib.contextmanager
def _no_strategy() -> Iterator[None]:
    """Lets an optimizer of no strategy update its variables in a graph of a strategy."""
    distribute_lib._push_per_thread_mode(distribute_lib._get_default_replica_mode())
    try:
        yield
    finally:
        distribute_lib._pop_per_thread_mode()


def _slots(optimizer: KerasOptimizer) -> list[KerasVariable]:
    """The optimizer's variables of floating-point numbers, without its learning rate."""
    return [v for v in _but_rates(optimizer) if tf.as_dtype(v.dtype).is_floating]


def _but_rates(optimizer: KerasOptimizer) -> list[KerasVariable]:
    """The optimizer's variables, without its learning rate."""
    # tf_keras has the second one, if the first one is a schedule.
    rates = [
        getattr(optimizer, name, None) for name in ("_learning_rate", "_current_learning_rate")
    ]
    return [v for v in optimizer.variables if all(v is not rate for rate in rates)]
