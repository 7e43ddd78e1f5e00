"""Custom loops of elastic jobs, in which a test can stop a rank in the middle of a step.

Each step takes a global batch, of which each living rank takes its share. The model has two
variables, whose gradients are reduced one after the other, and a momentum for each. Everything is
in float64, and `alone` trains the same in one process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tfdist
from support.processes.rank_process import RankContext
from tfdist.data.shares import rows_of

ROWS, COLUMNS = 12, 3
RATE, MOMENTUM = 0.05, 0.9
TOLERANCE = 1e-10


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    """The features [ROWS, COLUMNS] and targets [ROWS] of a step."""
    random = np.random.default_rng(step)
    features = random.normal(size=(ROWS, COLUMNS))
    return features, features @ np.arange(1.0, COLUMNS + 1) + 0.1 * random.normal(size=ROWS) - 2.0


def alone(steps: int) -> list[np.ndarray]:
    """The variables after some steps in one process, without TensorFlow."""
    weights, bias = np.zeros(COLUMNS), np.zeros(())
    speeds = [np.zeros(COLUMNS), np.zeros(())]
    for step in range(steps):
        features, targets = batch(step)
        error = features @ weights + bias - targets
        speeds[0] = MOMENTUM * speeds[0] + 2 * features.T @ error / ROWS
        weights = weights - RATE * speeds[0]
        error = features @ weights + bias - targets
        speeds[1] = MOMENTUM * speeds[1] + 2 * error.sum() / ROWS
        bias = bias - RATE * speeds[1]
    return [weights, bias, *speeds]


class Model:
    """The variables and half steps of this rank."""

    def __init__(self, start: float) -> None:
        self.weights = tf.Variable(tf.fill([COLUMNS], tf.constant(start, tf.float64)))
        self.bias = tf.Variable(tf.constant(start, tf.float64))
        self.speeds = [tf.Variable(tf.zeros_like(v)) for v in (self.weights, self.bias)]

    @property
    def variables(self) -> list[tf.Variable]:
        return [self.weights, self.bias, *self.speeds]

    def values(self) -> list[np.ndarray]:
        return [variable.numpy() for variable in self.variables]

    def loss(self, features: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        error = tf.linalg.matvec(features, self.weights) + self.bias - targets
        return tf.reduce_sum(error**2) / ROWS

    def apply(self, i: int, gradient: tf.Tensor) -> None:
        self.speeds[i].assign(MOMENTUM * self.speeds[i] + gradient)
        self.variables[i].assign_sub(RATE * self.speeds[i])


class TapeLoop(Model):
    """Without a strategy."""

    def __init__(self, start: float) -> None:
        tfdist.init()
        super().__init__(start)

    def share(self, step: int) -> tuple[tf.Tensor, tf.Tensor]:
        return rows_of(tuple(map(tf.constant, batch(step))), tfdist.size(), tfdist.rank())

    @tf.function(reduce_retracing=True)
    def half(self, i: int, features: tf.Tensor, targets: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = self.loss(features, targets)
        tape = tfdist.DistributedGradientTape(tape, gradient_reduction="sum")
        self.apply(i, tape.gradient(loss, self.variables[i]))

    def steps(self, first: int, last: int) -> Any:
        for step in range(first, last):
            yield self.share(step)


class StrategyLoop(Model):
    """With a strategy."""

    def __init__(self, start: float) -> None:
        self.strategy = tfdist.MultiWorkerMirroredStrategy()
        with self.strategy.scope():
            super().__init__(start)

    @tf.function(reduce_retracing=True)
    def half(self, i: int, features: tf.Tensor, targets: tf.Tensor) -> None:
        def replica_half(features: tf.Tensor, targets: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = self.loss(features, targets)
            gradient = tape.gradient(loss, self.variables[i])
            gradient = tf.distribute.get_replica_context().all_reduce("SUM", gradient)
            self.apply(i, gradient)

        self.strategy.run(replica_half, args=(features, targets))

    def steps(self, first: int, last: int) -> Any:
        batches = [batch(step) for step in range(first, last)]
        if not batches:
            return
        rows = tuple(map(np.concatenate, zip(*batches, strict=True)))
        data = tf.data.Dataset.from_tensor_slices(rows).batch(ROWS)
        yield from self.strategy.experimental_distribute_dataset(data)


class DevicesLoop(StrategyLoop):
    """With a strategy, and two devices in each process."""

    def __init__(self, start: float) -> None:
        (cpu,) = tf.config.list_physical_devices("CPU")
        parts = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, parts)
        super().__init__(start)
        assert len(self.strategy.extended.worker_devices) == 2


LOOPS: dict[str, Callable[[float], Any]] = {
    "tape": TapeLoop,
    "strategy": StrategyLoop,
    "devices": DevicesLoop,
}


def train(
    ctx: RankContext,
    kind: str = "tape",
    steps: int = 12,
    stop_at: int = -1,
    victim: int = -1,
    every: int = 1,
    until_size: int = 0,
    values: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Trains on one rank.

    Args:
      ctx: the rank's context.
      kind: of `LOOPS`.
      steps: how many, or how many more once there are `until_size` members after `stop_at`.
      stop_at: the step in whose middle rank `victim` reports "middle" and waits, in its first life.
      victim: the rank.
      every: steps between two commits.
      until_size: members to train until; 0 means not to wait for members.
      values: further values of the state.

    Returns:
      "values" of the variables, the steps that were "begun" here, the number of "steps", of
      "resets" and of members at each call of the function ("sizes").
    """
    loop = LOOPS[kind](float(ctx.rank))
    if ctx.rank == 0:
        for variable in loop.variables:
            variable.assign(tf.zeros_like(variable))
    end = None if until_size else steps
    state = tfdist.elastic.TensorFlowState(loop.variables, step=0, end=end, **(values or {}))
    begun: list[int] = []
    sizes: list[int] = []
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(tfdist.size())])
    marker = ctx.tmp_path / f"stopped_{ctx.rank}"

    @tfdist.elastic.run
    def until_end(state: Any, word: str) -> str:
        sizes.append(tfdist.size())
        if state.end is None and state.step >= stop_at and tfdist.size() == until_size:
            state.end = state.step + steps
        while state.end is None or state.step < state.end:
            last = state.step + 1 if state.end is None else state.end
            for features, targets in loop.steps(state.step, last):
                begun.append(state.step)
                ctx.report("step", state.step)
                loop.half(0, features, targets)
                if ctx.rank == victim and state.step == stop_at and not marker.exists():
                    marker.touch()
                    ctx.report("middle")
                    ctx.wait_for("continue")
                loop.half(1, features, targets)
                state.step += 1
                if state.step % every == 0:
                    state.commit()
        return word

    ctx.report("ready")
    assert until_end(state, "done") == "done"
    return {
        "values": loop.values(),
        "begun": begun,
        "steps": state.step,
        "sizes": sizes,
        "resets": resets,
    }


def check(results: list[dict[str, Any]]) -> None:
    """Asserts that ranks have ended as one process does, all equally."""
    for result in results:
        assert result["steps"] == results[0]["steps"]
        for own, first, expected in zip(
            result["values"], results[0]["values"], alone(result["steps"]), strict=True
        ):
            np.testing.assert_array_equal(own, first)
            np.testing.assert_allclose(own, expected, rtol=0, atol=TOLERANCE)
