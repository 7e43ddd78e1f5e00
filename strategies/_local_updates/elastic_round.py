"""Rounds of an elastic job, whose members may die, join and leave.

Between the ends of two rounds the members need each other for nothing. The end of a round is a unit
of work of `tfdist.elastic.job`: those who are there do it together, or it leaves no trace.

    member 0    step step step | end | change? | step step step | end |
    member 1    step step step | end | change? | step x                   killed
    member 2    step step step | end | change? | step step step | end |   with member 0 alone

Between two rounds all members have the same anchor. There, in a unit of its own, newcomers join and
members leave.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import ops
from tfdist.elastic.atomic_step import AtomicStep, type_of
from tfdist.elastic.job import ElasticJob, Unit
from tfdist.strategies._local_updates.group import without_strategy
from tfdist.strategies._local_updates.rounds import Round


class ElasticRound(Round):
    """Rounds that end with the members that are there.

    Args:
      job: the members.
      counters: returns pairs of a variable to which each member adds, and of what this member has
        added since the last round; all members get the sum.
      *arguments: as of `Round`.
    """

    def __init__(
        self,
        job: ElasticJob,
        counters: Callable[[], Sequence[tuple[tf.Variable, tf.Variable]]],
        *arguments: Any,
    ) -> None:
        super().__init__(*arguments)
        self._job = job
        self._counters = counters
        self._atomic = AtomicStep()
        self._function: Any = None

    @property
    def is_between(self) -> bool:
        """Whether the last round has ended, and no step of the next one was made."""
        return int(self._steps.numpy()) == 0

    def end_step(self, rows: tf.Tensor) -> None:
        """Counts a step; `end_if_due` ends the round, after the step."""
        for group in self.groups:
            group.begin()  # if no step of this worker has had rows
        self._steps.assign_add(1)
        self._rows.assign_add(rows)
        self._steps_in_all.assign_add(1)

    def end_if_due(self, where: str) -> None:
        """Ends the round if it has all its steps.

        Args:
          where: for messages.
        """
        in_all = int(self._steps_in_all.numpy())
        if self._steps.numpy() >= (1 if in_all <= self._warmup_steps else self._sync_every):
            self._end_together(where)

    def end_early(self) -> None:
        """Ends the round if it has begun."""
        if not self.is_between:
            self._end_together("the end of the epoch")

    def handles(self) -> list[tf.Tensor]:
        """The resources of the variables of the rounds, in the order of their creation."""
        captured = self._ending().captured_inputs
        found = {
            id(handle): handle
            for handle in captured
            if handle.dtype == tf.resource and type_of(handle) is not None
        }
        known = [handle for handle in found.values() if not self._atomic.is_private(handle)]
        return sorted(known, key=lambda handle: handle._id)

    def _end_together(self, where: str) -> None:
        ending = self._ending()

        def call() -> np.ndarray:
            return ending(tf.constant(self._job.flags(), tf.float64)).numpy()

        flags = self._job.run(
            Unit(
                f"the end of a round, {where}",
                call,
                undo=self._atomic.undo,
                written=lambda: self._atomic.written,
                healed=lambda: np.zeros(2),
                lets_leave=False,
            )
        )
        self._job.take_flags(flags)

    def _ending(self) -> Any:
        """The function that ends a round; traced once, while no other member is needed."""
        if self._function is None:

            def end_of_round(flags: tf.Tensor) -> tf.Tensor:
                self._atomic.make_atomic(tf.compat.v1.get_default_graph())
                counters = list(self._counters())
                own = [added.read_value() for _, added in counters]
                with tf.device("/device:CPU:0"):
                    total, *sums = ops.fused_all_reduce(
                        [flags, *own],
                        self._job.communicator,
                        label="sums of a round",
                        timeout=self._timeout,
                    )
                for (variable, added), mine, all_added in zip(counters, own, sums, strict=True):
                    variable.assign_add(all_added - mine)
                    added.assign(tf.zeros_like(mine))
                self._combine()
                return total

            function = tf.function(
                end_of_round, input_signature=[tf.TensorSpec([2], tf.float64)], autograph=False
            )
            self._function = without_strategy(function.get_concrete_function)
        return self._function
