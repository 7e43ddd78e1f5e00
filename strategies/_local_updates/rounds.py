"""Counts the steps that a worker has trained alone, and ends rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist import ops
from tfdist.compression import Compressor
from tfdist.strategies._local_updates.group import without_strategy


class StepRounds:
    """The rounds of the groups that one kind of step trains.

    All workers make the same number of steps, so they end a round in the same step, and each knows
    it without asking the others.

    Args:
      groups: the `Group`s that a step trains; a subclass has others.
      statistics: returns the variables that are averaged with them.
      communicator: the workers; `None` if there is one.
      sync_every: the steps of a round.
      warmup_steps: as many first rounds have one step.
      timeout: seconds after which a collective fails; as for `tfdist.ops.all_reduce`.
      residual_names: the names of the rule's residuals.
      compressor: compresses pseudo-gradients; the rest is sent as it is.
    """

    def __init__(
        self,
        groups: Sequence[Any],
        statistics: Callable[[], list[tf.Variable]],
        communicator: ops.Communicator | None,
        sync_every: int,
        warmup_steps: int,
        timeout: float | None,
        residual_names: Sequence[str],
        compressor: Compressor | None,
    ) -> None:
        self.groups: list[Any] = list(groups)
        self._statistics = statistics
        self._communicator = communicator
        self._sync_every = sync_every
        self._warmup_steps = warmup_steps
        self._timeout = timeout
        self._residual_names = tuple(residual_names)
        self._compressor = compressor
        without_strategy(self._make)
        self._end_now = tf.function(self._end_if_begun)

    def _make(self) -> None:
        self._steps = tf.Variable(0, dtype=tf.int64)  # of this round
        self._rows = tf.Variable(0.0, dtype=tf.float64)  # of this round, on this worker
        self._steps_in_all = tf.Variable(0, dtype=tf.int64)
        self._residuals = tf.Variable(tf.zeros([len(self._residual_names)], tf.float64))

    @property
    def is_between(self) -> bool:
        """Whether the last round has ended, and no step of the next one was made."""
        return int(self._steps.numpy()) == 0

    def saved(self) -> dict[str, tf.Variable]:
        """The variables that another process needs to continue, by the names of `saved_state`."""
        return {
            "steps": self._steps,
            "steps_in_all": self._steps_in_all,
            "norms": self._residuals,
            "rows": self._rows,
        }

    def settle(self) -> None:
        """Ends what is under way between steps: nothing."""

    def end_step(self, rows: tf.Tensor) -> None:
        """Counts a step, and ends the round if it was the last one.

        Args:
          rows: this worker's in the step, float64[].
        """
        self._count_step(rows)
        tf.cond(self._is_due(), self._end, lambda: tf.constant(0, tf.int64))

    def end_early(self) -> None:
        """Ends the round if it has begun; the variables equal the anchor then."""
        with tf.init_scope():
            self._end_now()

    def residuals(self) -> dict[str, float]:
        """The rule's residuals at the last synchronization, by name; the same on all workers."""
        return dict(zip(self._residual_names, self._residuals.numpy().tolist(), strict=True))

    def combine(self) -> tf.Tensor:
        """Combines the workers' variables, and begins to count anew."""
        rows = self._rows.read_value()
        averaged = [*self._statistics(), *(slot for group in self.groups for slot in group.slots)]
        pseudo = [gradient for group in self.groups for gradient in group.pseudo_gradients()]
        own = [*pseudo, *(variable.read_value() for variable in averaged)]
        anchors = [anchor for group in self.groups for anchor in group.anchors]
        means = self._weighted_means(rows, own, anchors)
        in_warmup = self._steps_in_all <= self._warmup_steps if self._warmup_steps else None
        squares = tf.zeros([len(self._residual_names)], tf.float64)
        for group in self.groups:
            count = len(group.variables)
            squares += group.finish(means[:count], in_warmup)
            means = means[count:]
        if self._residual_names:
            self._residuals.assign(tf.sqrt(self._sums([squares], "residuals")[0]))
        for variable, mean in zip(averaged, means, strict=True):
            variable.assign(mean)
        self._rows.assign(0.0)
        return self._steps.assign(0, read_value=True)

    def _count_step(self, rows: tf.Tensor) -> None:
        self._steps.assign_add(1)
        self._rows.assign_add(rows)
        self._steps_in_all.assign_add(1)

    def _is_due(self) -> tf.Tensor:
        """Whether the round has all its steps, bool[]."""
        length = tf.where(self._steps_in_all <= self._warmup_steps, 1, self._sync_every)
        return self._steps >= tf.cast(length, tf.int64)

    def _end_if_begun(self) -> None:
        tf.cond(self._steps > 0, self._end, lambda: tf.constant(0, tf.int64))
        for group in self.groups:
            group.go_to_anchors()

    def _end(self) -> tf.Tensor:
        for group in self.groups:
            group.begin()  # if no step of this worker had rows
        return self.combine()

    def _weighted_means(
        self, rows: tf.Tensor, own: list[tf.Tensor], anchors: list[tf.Variable]
    ) -> list[tf.Tensor]:
        """The workers' means, weighted by rows.

        Args:
          rows: this worker's, float64[].
          own: this worker's values; the pseudo-gradient of each anchor first.
          anchors: by which the compressor recognizes pseudo-gradients.
        """
        weight = tf.math.divide_no_nan(rows, self._sums([rows], "rows of the round")[0])
        parts = [value * tf.cast(weight, value.dtype) for value in own]
        label = "synchronization of local updates"
        if self._communicator is None or self._compressor is None:
            return self._sums(parts, label)
        with tf.device("/device:CPU:0"):
            reduced = ops.fused_all_reduce(
                parts[: len(anchors)],
                self._communicator,
                label=label,
                timeout=self._timeout,
                compressor=self._compressor,
                variables=anchors,
            )
        return [*reduced, *self._sums(parts[len(anchors) :], label)]

    def _sums(self, values: list[tf.Tensor], label: str) -> list[tf.Tensor]:
        if self._communicator is None or not values:
            return values
        with tf.device("/device:CPU:0"):
            return ops.fused_all_reduce(
                values, self._communicator, label=label, timeout=self._timeout
            )
