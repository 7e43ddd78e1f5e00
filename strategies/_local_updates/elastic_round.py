"""Rounds of an elastic job, which end between two steps, and not within one."""

from __future__ import annotations

import tensorflow as tf

from tfdist.strategies._local_updates.rounds import StepRounds


class ElasticRound(StepRounds):
    """Counts a worker's steps; a `RoundEnd` ends the round. Arguments as in `StepRounds`."""

    @property
    def is_due(self) -> bool:
        """Whether the round has all its steps."""
        return bool(self._is_due())

    def end_step(self, rows: tf.Tensor) -> None:
        """Counts a step."""
        for group in self.groups:
            group.begin()  # if no step of this worker has had rows
        self._count_step(rows)
