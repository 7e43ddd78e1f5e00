"""Training steps of a worker that trains alone in an elastic job: `LocalUpdateStrategy`.

A step needs no other member. Before it, if no round has begun, members come and go; after it, if it
was the last one of a round, the members end the round together. Metrics cover this worker alone,
and from the end of a round on all workers.
"""

from __future__ import annotations

import tensorflow as tf
from keras import tree

from tfdist._types import KerasModel, Nested, StepFunction
from tfdist.data.cut.ahead import GlobalBatch
from tfdist.elastic.atomic_step import communicates
from tfdist.elastic.job import ElasticJob
from tfdist.keras.elastic_state import state_of_newcomer
from tfdist.keras.elastic_steps import (
    ElasticStep,
    changed_by_step,
    numbers_but_metrics,
    own_variables,
)
from tfdist.keras.strategies import AddedByWorker, EndOfRounds
from tfdist.keras.workers import local_updates_of


class LocalElasticStep(ElasticStep):
    """A training step of one member alone.

    Args:
      model: the model.
      job: the members.
      name: of the step, the same on all members.
      step: takes this member's share of a batch; returns a structure of tensors.
    """

    def __init__(self, model: KerasModel, job: ElasticJob, name: str, step: StepFunction) -> None:
        super().__init__(model, job, name, step, admits=True)
        local = local_updates_of(model.distribute_strategy)
        assert local is not None
        self._local = local
        # Of all traces of the step, by identity: of rounds, and of the variables that are counted.
        self._rounds: dict[int, object] = {}
        self._counters: dict[int, AddedByWorker] = {}
        self._end: EndOfRounds | None = None

    def run(self, batch: Nested, where: str, is_first: bool = True) -> Nested:
        """Makes a step alone, and ends a round together with all members if one is due.

        Args:
          batch: the global batch, a `GlobalBatch` or its tensors.
          where: the step's name in messages.
          is_first: whether it is the first step of an execution: only there members come and go.

        Returns:
          This member's logs.

        Raises:
          Exception: as for `ElasticJob.run`.
        """
        self._job.check_has_state("a training step")
        newcomer = state_of_newcomer(self._job)
        if newcomer is not None:
            newcomer.take_again()
        step = self.step_on(batch if isinstance(batch, GlobalBatch) else GlobalBatch(batch))
        self._round_end().change_members(where, admits=is_first)
        result, _ = step([0.0, 0.0])
        self._round_end().end_if_due(where)
        return result

    def end_round(self) -> None:
        """Ends a round that has begun, when an epoch ends."""
        self._round_end().end_early("the end of an epoch")

    def further_handles(self) -> list[tf.Tensor]:
        """The handles of the outer optimizer, among others."""
        return self._round_end().handles()

    def _round_end(self) -> EndOfRounds:
        if self._end is None:
            rounds, counters = list(self._rounds.values()), list(self._counters.values())
            self._end = self._local.round_end(rounds, counters)
        return self._end

    def _traced(self, share: Nested, rows: tf.Tensor | None, flags: tf.Tensor) -> Nested:
        strategy = self._model.distribute_strategy
        sums = [
            variable
            for variable in own_variables(self._model)
            if variable.aggregation == tf.VariableAggregation.SUM
        ]
        before = [variable.values[0].read_value() for variable in sums]
        with self._local.ending_rounds() as rounds:
            outputs = strategy.run(self._read_step, args=(share,))
        self._check_is_alone()
        self._rounds |= {id(running): running for running in rounds}
        for variable, old in changed_by_step(sums, before):
            own = variable.values[0]
            if id(own) not in self._counters:
                self._counters[id(own)] = self._local.counter(own)
            self._counters[id(own)].note_step(old, own.read_value())
        self._end = None  # of other rounds or counters
        first = tree.map_structure(
            lambda value: strategy.experimental_local_results(value)[0], outputs
        )
        metrics = strategy.run(self._model.get_metrics_result)
        numbers = [name for name in numbers_but_metrics(self._model, first) if name not in metrics]
        if numbers:
            raise ValueError(
                f"elastic training of {self._model.name!r} with LocalUpdateStrategy: expected a "
                f"train_step that returns results of metrics, received {numbers}, too: "
                "these would differ between workers, and callbacks could decide differently. Make "
                "each a keras.metrics.Mean"
            )
        return first, flags

    def _check_is_alone(self) -> None:
        graph = tf.compat.v1.get_default_graph()
        found = [op.name for op in graph.get_operations() if communicates(op.node_def, graph)]
        if found:
            raise ValueError(
                f"elastic training of {self._model.name!r} with LocalUpdateStrategy: expected a "
                f"step without collectives, received {found[0]!r}, as in "
                "BatchNormalization(synchronized=True): a worker that dies would break the steps "
                "of the others"
            )
