"""A step that loses its peer leaves the seeds of Keras's layers as they were."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from single.elastic.test_atomic_step import Model, lose_the_second, pair, step_of
from tfdist import ops
from tfdist.elastic.atomic_step import AtomicStep


class Noisy(Model):
    """Draws seeds as a Dropout layer does: one generator is called twice in a step, or two once."""

    def __init__(
        self, communicator: ops.Communicator, atomic: AtomicStep | None, generators: int
    ) -> None:
        super().__init__(communicator, atomic)
        self.generators = [keras.random.SeedGenerator(5 + i) for i in range(generators)]

    def values(self) -> list[list[float]]:
        return [*super().values(), *(g.state.numpy().tolist() for g in self.generators)]

    def reduce(self, i: int) -> tf.Tensor:
        drawn = self.generators[i % len(self.generators)].next()
        noise = self.weights[i] + tf.cast(drawn[1], tf.float32)
        return ops.fused_all_reduce([noise], self.communicator)[0]


@pytest.mark.parametrize("generators", [1, 2], ids=["generator called twice", "called once"])
def test_seeds_of_a_failed_step_are_those_before_it(generators):
    with pair() as (own, other):
        atomic = AtomicStep()
        model, peer = Noisy(own, atomic, generators), Noisy(other, None, generators)
        before = model.values()
        lose_the_second(step_of(model.step), peer)
        # The second collective needs what the first one's input has written.
        assert atomic.is_torn == (generators == 1)
        atomic.undo()
        assert model.values() == before
