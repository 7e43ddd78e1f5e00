"""Training steps of a worker that trains alone in an elastic job: `LocalUpdateStrategy`.

A step needs no other member. Before it, if no round has begun, members come and go; after it, if it
was the last one of a round, the members end the round together. Metrics are those of this worker,
and from the end of a round on those of all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras import tree

from tfdist.elastic.job import ElasticJob
from tfdist.keras.elastic_steps import (
    ElasticStep,
    changed_by_step,
    contribution_to,
    own_variables,
)
from tfdist.keras.workers import local_updates_of


class LocalElasticStep(ElasticStep):
    """A training step of one member alone.

    Args:
      model: the model.
      job: the members.
      name: of the step, the same on all members.
      step: takes this member's share of a batch; returns a structure of tensors.
    """

    def __init__(self, model: Any, job: ElasticJob, name: str, step: Callable[[Any], Any]) -> None:
        super().__init__(model, job, name, step, admits=True)
        self._local = local_updates_of(model.distribute_strategy)

    def run(self, batch: Any, where: str, is_first: bool = True) -> Any:
        """Makes a step alone, and ends a round together with all members if one is due.

        Args:
          batch: the global batch, in memory.
          where: the step's name in messages.
          is_first: whether it is the first step of an execution: only there members come and go.

        Returns:
          This member's logs.

        Raises:
          Exception: as for `ElasticJob.run`.
        """
        self._local.change_members(where, admits=is_first)
        result, _ = self.step_on(batch)([0.0, 0.0])
        self._local.end_due_rounds(where)
        return result

    def further_handles(self) -> list[tf.Tensor]:
        """Those of the outer optimizer, among others."""
        return self._local.handles()

    def _traced(self, batch: Any, flags: tf.Tensor) -> Any:
        strategy = self._model.distribute_strategy
        sums = [
            variable
            for variable in own_variables(self._model)
            if variable.aggregation == tf.VariableAggregation.SUM
        ]
        before = [[part.read_value() for part in variable.values] for variable in sums]
        with self._local.ending_rounds():
            outputs = strategy.run(self._step, args=(self._share(batch),))
        for variable, old in changed_by_step(sums, before):
            added = self._local.added_to(variable.values[0])
            added.assign_add(contribution_to(variable, old))
        first = tree.map_structure(
            lambda value: strategy.experimental_local_results(value)[0], outputs
        )
        return first, flags
