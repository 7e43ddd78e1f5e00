"""A step that loses its peer between two collectives writes nothing."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator

import pytest
import tensorflow as tf

from tfdist import ops
from tfdist.elastic.atomic_step import AtomicStep
from tfdist.launch import ports


@contextlib.contextmanager
def pair() -> Iterator[tuple[ops.Communicator, ops.Communicator]]:
    first, second = (ops.Communicator(rank, 2, resizable=True) for rank in range(2))
    with first, second:
        connect([first, second], 1)
        yield first, second


def connect(ranks: list[ops.Communicator], generation: int) -> None:
    key = secrets.token_bytes(32)
    addresses = [f"127.0.0.1:{rank.port}" for rank in ranks]
    threads = [
        threading.Thread(target=rank.connect, args=(key, generation, addresses, 10.0))
        for rank in ranks
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Model:
    """Two variables, each with its own collective, and what else a step writes."""

    def __init__(
        self, communicator: ops.Communicator, atomic: AtomicStep | None = None, seeds: int = 2
    ) -> None:
        self.communicator = communicator
        self.atomic = atomic
        self.weights = [tf.Variable([1.0, 2.0]), tf.Variable([3.0])]
        self.moving = tf.Variable(0.0)
        self.seeds = [tf.Variable(7.0) for _ in range(seeds)]
        self.iterations = tf.Variable(0, dtype=tf.int64)

    def values(self) -> list[list[float]]:
        variables = [*self.weights, self.moving, *self.seeds, self.iterations]
        return [variable.numpy().tolist() for variable in variables]

    def reduce(self, i: int) -> tf.Tensor:
        seed = self.seeds[i % len(self.seeds)]
        noise = seed + self.weights[i]
        seed.assign_add(1.0)
        return ops.fused_all_reduce([noise], self.communicator)[0]

    def step(self) -> None:
        """Decays the weights before the gradients are reduced, as Keras 3 does."""
        if self.atomic is not None:
            self.atomic.make_atomic(tf.compat.v1.get_default_graph())
        self.moving.assign(tf.reduce_sum(self.weights[0]))
        reduced = [self.reduce(0), self.reduce(1)]
        for weight, gradient in zip(self.weights, reduced, strict=True):
            weight.assign(weight * 0.5)
            weight.assign_sub(gradient)
        self.iterations.assign_add(1)


def step_of(run: Callable[[], None]) -> tf.types.experimental.PolymorphicFunction:
    """A function with the name by which the ranks' collectives match."""

    @tf.function
    def step():
        run()

    return step


def lose_the_second(step: Callable[[], None], peer: Model) -> None:
    """The peer takes part in the first collective of a step, and then it fails."""
    thread = threading.Thread(target=step_of(lambda: peer.reduce(0)))
    thread.start()

    def fail() -> None:
        thread.join()
        peer.communicator.abort("killed")

    failing = threading.Thread(target=fail)
    failing.start()
    with pytest.raises(tf.errors.UnavailableError, match="killed"):
        step()
    failing.join()


def test_a_step_is_torn():
    """The effect of a failure without the gate."""
    with pair() as (own, other):
        model = Model(own)
        lose_the_second(step_of(model.step), Model(other))
        # New; neither old nor new; and the rest as if the step had succeeded.
        assert model.values() == [[-15.5, -17.0], [1.5], 3.0, 8.0, 8.0, 1]


@pytest.mark.parametrize("seeds", [1, 2], ids=["seed read twice", "seeds read once"])
def test_an_atomic_step_writes_nothing(seeds):
    with pair() as (own, other):
        atomic = AtomicStep()
        model, peer = Model(own, atomic, seeds), Model(other, seeds=seeds)
        before = model.values()
        lose_the_second(step_of(model.step), peer)
        # The second collective needs what the first one's input has written.
        assert atomic.is_torn == (seeds == 1)
        atomic.undo()
        assert model.values() == before
        assert not atomic.is_torn
        assert len(atomic.written) == 4 + seeds


def test_the_same_trace_goes_on_among_other_ranks():
    with pair() as (own, other):
        atomic = AtomicStep()
        model, peer = Model(own, atomic, 1), Model(other, seeds=1)
        step = step_of(model.step)
        lose_the_second(step, peer)
        atomic.undo()
        own.reconfigure(1, 2)
        other.reconfigure(0, 2)
        connect([other, own], 2)
        fresh = Model(other, AtomicStep(), 1)
        thread = threading.Thread(target=step_of(fresh.step))
        thread.start()
        step()
        thread.join()
        assert model.values() == fresh.values()
        assert model.values() == [[-15.5, -17.0], [-20.5], 3.0, 9.0, 1]
        assert not atomic.is_torn
        assert step.experimental_get_tracing_count() == 1


def test_a_communicator_keeps_its_port():
    # The first one is never connected: a founder's and a newcomer's, before they join.
    (port,) = ports.free_ports(1)
    with ops.Communicator(0, 1, port, resizable=True) as alone:
        for generation in (1, 2):
            alone.reconfigure(0, 1)
            assert alone.port == port
            connect([alone], generation)
