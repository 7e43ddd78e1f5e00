"""The ends of rounds in an elastic job, whose members may die, join and leave.

Between the ends of two rounds the members need each other for nothing. The end of a round is a unit
of work of `tfdist.elastic.job`: the present members do it together, or it leaves no trace.

    member 0    step step step | end | change? | step step step | end |
    member 1    step step step | end | change? | step x                   killed
    member 2    step step step | end | change? | step step step | end |   with member 0 alone

Between two rounds all members have the same anchor. There, in a unit of its own, newcomers join and
members leave.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfdist import ops
from tfdist.elastic.atomic_step import AtomicStep, type_of
from tfdist.elastic.job import ElasticJob, Unit
from tfdist.strategies._local_updates.counter import Counter
from tfdist.strategies._local_updates.elastic_round import ElasticRound
from tfdist.strategies._local_updates.group import without_strategy


class RoundEnd:
    """Ends the rounds of one kind of step.

    Args:
      job: the members.
      rounds: the rounds of the step.
      counters: the variables to which the step adds.
      timeout: seconds after which a collective fails; as for `tfdist.ops.all_reduce`.
    """

    def __init__(
        self,
        job: ElasticJob,
        rounds: Sequence[ElasticRound],
        counters: Sequence[Counter],
        timeout: float | None,
    ) -> None:
        self._job = job
        self._rounds = rounds
        self._counters = counters
        self._timeout = timeout
        self._atomic = AtomicStep()
        # Traced at once: that needs no other member, and takes time.
        function = tf.function(
            self._end, input_signature=[tf.TensorSpec([2], tf.float64)], autograph=False
        )
        self._function = without_strategy(function.get_concrete_function)

    def handles(self) -> list[tf.Tensor]:
        """The resources of the variables that the end of a round needs, as they were created."""
        found = {
            id(handle): handle
            for handle in self._function.captured_inputs
            if handle.dtype == tf.resource and type_of(handle) is not None
        }
        known = [handle for handle in found.values() if not self._atomic.is_private(handle)]
        return sorted(known, key=lambda handle: handle._id)

    def change_members(self, where: str, admits: bool) -> None:
        """Lets members come and go, if no round has begun.

        Args:
          where: for messages.
          admits: whether they may at this point.
        """
        if not all(running.is_between for running in self._rounds):
            return

        def meet() -> None:
            # So that no member is two units ahead of another one.
            with tf.device("/device:CPU:0"):
                ops.all_reduce(
                    tf.constant(0.0),
                    self._job.communicator,
                    label="between rounds",
                    timeout=self._timeout,
                )

        self._job.run(Unit(f"between rounds, {where}", meet, admits=admits, lets_leave=admits))

    def end_if_due(self, where: str) -> None:
        """Ends the rounds if one has all its steps; they have the same number.

        Args:
          where: for messages.
        """
        if any(running.is_due for running in self._rounds):
            self._end_together(where)

    def end_early(self, where: str) -> None:
        """Ends the rounds if one has begun.

        Args:
          where: for messages.
        """
        if not all(running.is_between for running in self._rounds):
            self._end_together(where)

    def _end_together(self, where: str) -> None:
        def call() -> np.ndarray:
            return self._function(tf.constant(self._job.flags(), tf.float64)).numpy()

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

    def _end(self, flags: tf.Tensor) -> tf.Tensor:
        self._atomic.make_atomic(tf.compat.v1.get_default_graph())
        added = [counter.added.read_value() for counter in self._counters]
        with tf.device("/device:CPU:0"):
            flags, *sums = ops.fused_all_reduce(
                [flags, *added],
                self._job.communicator,
                label="counters of a round",
                timeout=self._timeout,
            )
        for counter, total in zip(self._counters, sums, strict=True):
            counter.take_sum(total)
        for running in self._rounds:
            running.combine()
        return flags
