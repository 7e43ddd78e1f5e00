"""Rounds that a worker ends by itself, by an exchange with the centre on the parameter servers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist._types import KerasOptimizer, KerasVariable
from tfdist.rules import Rule
from tfdist.strategies._local_updates.centre import Centre, CentreVariable
from tfdist.strategies._local_updates.group import Group, without_strategy
from tfdist.strategies._local_updates.rounds import StepRounds


class AsynchronousGroup(Group):
    """A group whose anchor is a copy of the centre, since the workers' last synchronization.

    Args:
      optimizer: of Keras 3 or tf_keras; it has been built.
      variables: the strategy's variables, which `optimizer` trains.
      rule: how workers and centre combine.
      workers: the number of workers.
      centre: of all groups.
    """

    def __init__(
        self,
        optimizer: KerasOptimizer,
        variables: Sequence[KerasVariable],
        rule: Rule,
        workers: int,
        centre: Centre,
    ) -> None:
        super().__init__(optimizer, variables, rule, workers, "keep")
        self._centre = centre
        self._of_centre: list[CentreVariable] = []

    def join(self, former: AsynchronousGroup | None = None) -> None:
        """Connects the group to the centre, once its values have been restored.

        Args:
          former: a group of the same variables, in whose place this one stands.
        """
        if former is None:
            without_strategy(self._join)
            return
        self._of_centre = [
            dataclasses.replace(of_centre, anchor=anchor)
            for of_centre, anchor in zip(former._of_centre, self.anchors, strict=True)
        ]

    def _join(self) -> None:
        self.copy_anchor()
        self._of_centre = [
            self._centre.create(variable.name, anchor)
            for variable, anchor in zip(self.variables, self.anchors, strict=True)
        ]

    def publish(self) -> None:
        """Makes the chief's anchors the centre."""
        if self._of_centre:
            without_strategy(lambda: self._centre.publish(self._of_centre))

    def begin(self) -> None:
        """Begins a round, unless one has begun.

        Values that a program has assigned since the workers met become the centre. All workers have
        assigned them; they wait for each other, so that none meets the former centre.
        """
        self._begin()

    def _begin(self) -> tf.Tensor:
        def begin() -> tf.Tensor:
            pairs = list(zip(self._values, self.anchors, strict=True))
            changed = [tf.reduce_any(v.read_value() != a.read_value()) for v, a in pairs]

            def publish() -> tf.Tensor:
                for value, anchor in pairs:
                    anchor.assign(value.read_value())
                published = self._centre.publish(self._of_centre)
                with tf.control_dependencies([] if published is None else [published]):
                    return self._centre.wait_for_workers()

            waited = tf.cond(tf.reduce_any(changed), publish, lambda: tf.constant(0.0))
            with tf.control_dependencies([waited]):
                return self._has_begun.assign(True, read_value=True)

        return tf.cond(self._has_begun, lambda: tf.constant(True), begin)

    def exchange(self) -> None:
        """Lets this worker and the centre attract each other; begins a round if none has begun."""
        with tf.control_dependencies([self._begin()]):
            values = [v.read_value() for v in self._values]
        moves = self._centre.exchange(self._of_centre, values)
        for value, move in zip(self._values, moves, strict=True):
            value.assign_sub(move)

    def fetch(self) -> None:
        """Brings the anchors up to date."""
        self._centre.fetch(self._of_centre)

    def go_to_centre(self) -> None:
        """Gives the anchors and the variables the centre's values."""
        self.fetch()
        self._go_to_anchors()


class AsynchronousRound(StepRounds):
    """Rounds that each worker ends when it has made H steps; arguments as in `StepRounds`.

    The workers meet at the end of an epoch, after an exchange of each. Then all continue from the
    centre, and average their statistics.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._settle = tf.function(self._fetch)

    def settle(self) -> None:
        """Brings the anchors up to date, for a checkpoint."""
        with tf.init_scope():
            self._settle()

    def _fetch(self) -> None:
        for group in self.groups:
            group.fetch()

    def _end(self) -> tf.Tensor:
        for group in self.groups:
            group.exchange()
        return self._steps.assign(0, read_value=True)

    def _end_if_begun(self) -> None:
        ended = tf.cond(self._steps > 0, self._end, lambda: tf.constant(0, tf.int64))
        with tf.control_dependencies([ended]):
            rows = self._rows.read_value()  # since the workers met last
        total = self._sums([rows], "rows since the last synchronization")[0]

        def meet() -> tf.Tensor:
            for group in self.groups:
                group.go_to_centre()
            fetched = [a.read_value() for group in self.groups for a in group.anchors]
            # No worker moves the centre again before all have fetched it: also without statistics.
            with tf.control_dependencies(fetched):
                weight = tf.identity(rows / total)
                own = [variable.read_value() for variable in self._statistics()]
            parts = [value * tf.cast(weight, value.dtype) for value in own]
            means = self._sums([*parts, weight], "synchronization at the end of an epoch")
            for variable, mean in zip(self._statistics(), means[:-1], strict=True):
                variable.assign(mean)
            self._rows.assign(0.0)
            return tf.constant(True)

        tf.cond(total > 0, meet, lambda: tf.constant(False))
