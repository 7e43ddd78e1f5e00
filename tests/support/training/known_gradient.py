"""Training with known gradients: the weight encodes the number of steps of each rank.

A step of rank r subtracts BASE ** r from a weight that begins at 0, so the digits of the negated
weight in base BASE are the numbers of steps by rank. All values are exact in float64.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from support.patience import wait_until
from tfdist.config.cluster import Cluster
from tfdist.control.client import ControlClient
from tfdist.job import process
from tfdist.ps import messages
from tfdist.ps.config import fingerprint

BASE = 2**16


class Slope(keras.layers.Layer):
    """Equal weights, each with the gradient `slope` for every input."""

    def __init__(self, slope: float, weights: int) -> None:
        super().__init__(dtype="float64", name="slope")
        self.slope = slope
        self.weights_shape = (weights,)

    def build(self, input_shape) -> None:
        self.weight = self.add_weight(self.weights_shape, initializer="zeros", name="weight")

    def call(self, inputs):
        return self.slope * keras.ops.sum(self.weight) + 0 * inputs


def sloping_model(
    slope: float, optimizer: Any = None, scale: int = 1, weights: int = 1
) -> keras.Model:
    """Makes a compiled model of equal weights with the gradient `scale * slope`.

    Args:
      slope: a power of 2.
      optimizer: by default SGD of rate 1.
      scale: a multiple of the number by which Keras divides the loss, so that the loss is exact.
      weights: the number of weights.
    """
    model = keras.Sequential([keras.Input((1,)), Slope(slope, weights)])
    # In float32, where n * (1 / n) is rounded to 1.
    model.compile(optimizer or keras.optimizers.SGD(1.0), lambda _, output: scale * output)
    return model


def endless(workers: int = 1) -> tf.data.Dataset:
    """Batches of one row for each worker, the same for all.

    Args:
      workers: how many share a batch. They know its shape, so that none waits for the others
        within a step.
    """
    rows = np.ones([workers, 1], "float32")
    policies = tf.data.experimental.AutoShardPolicy
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = (
        policies.OFF if workers == 1 else policies.DATA
    )
    return tf.data.Dataset.from_tensors((rows, rows)).repeat().with_options(options)


def steps_in(weight: float, workers: int) -> list[int]:
    """Returns the number of steps of each worker that a weight contains."""
    total = -int(weight)
    assert total == -weight and 0 <= total < BASE**workers, weight
    return [total // BASE**rank % BASE for rank in range(workers)]


def weight_after(*steps: float) -> float:
    """Returns the weight after these numbers of steps of the workers."""
    return -float(sum(count * BASE**rank for rank, count in enumerate(steps)))


def tell(ctx: Any, what: str) -> None:
    """Signals other ranks, which `hear` it; a barrier would include the servers."""
    (ctx.tmp_path / what).touch()


def hear(ctx: Any, what: str) -> None:
    """Waits for a signal of `tell`."""
    wait_until((ctx.tmp_path / what).exists, what)


class Pauses(keras.callbacks.Callback):
    """Pauses after some steps, once the servers have answered, until the test sends "continue".

    Args:
      ctx: the rank's context.
      after: the steps to pause after, counted from 1.
      look: read the weights after the pause, which fetches the servers' values, and pause again.
      slowness: additional seconds for each step.

    Attributes:
      ends: the end time of each step, by `time.monotonic()`.
    """

    def __init__(
        self, ctx: Any, after: Sequence[int], look: bool = False, slowness: float = 0.0
    ) -> None:
        super().__init__()
        self._ctx = ctx
        self._after = after
        self._look = look
        self._slowness = slowness
        self.ends: list[float] = []

    def on_train_batch_end(self, batch, logs=None) -> None:
        step = batch + 1
        self.ends.append(time.monotonic())
        time.sleep(self._slowness)
        if step not in self._after:
            return
        stats = self.model.distribute_strategy.communication_stats
        wait_until(lambda: stats().pushes == step, f"the answer to push {step}")
        self._ctx.report("paused", step)
        self._ctx.wait_for("continue", timeout=240)
        if self._look:
            state_of(self.model)
            self._ctx.report("looked", step)
            self._ctx.wait_for("continue", timeout=240)


def state_of(model: keras.Model) -> dict[str, Any]:
    """Returns the servers' values, and this worker's communication statistics."""
    (weight,) = set(model.get_weights()[0].tolist())  # all are equal
    return {
        "weight": weight,
        "iterations": int(model.optimizer.iterations.numpy()),
        "stats": model.distribute_strategy.communication_stats(),
    }


def train(
    ctx: Any,
    pauses: Sequence[Sequence[int]],
    optimizer: Callable[[], Any] | None = None,
    scale: int = 1,
    weights: int = 1,
    look: bool = False,
    slowness: float = 0.0,
    **options: Any,
) -> dict[str, Any]:
    """Fits a `sloping_model` until its last pause; serves in a `ps` task.

    Args:
      ctx: the rank's context.
      pauses: for each worker the steps to pause after; see `Pauses`.
      optimizer: makes the optimizer; by default SGD of rate 1.
      scale, weights: as for `sloping_model`.
      look, slowness: as for `Pauses`.
      **options: of the strategy.

    Returns:
      `state_of` the model at the end, and "ends" as in `Pauses`.
    """
    tfdist.init(checkpoint_dir=options.get("checkpoint_dir"))
    # Workers make different numbers of steps, and none of them uses metrics.
    strategy = tfdist.ParameterServerStrategy(**{"epoch_timeout": 0.0, **options})
    ctx.report("process", getattr(process.current.ps_worker, "identity", None))
    with strategy.scope():
        model = sloping_model(BASE**ctx.rank, optimizer and optimizer(), scale, weights)
    ctx.report("began with", state_of(model))
    after = pauses[ctx.rank]
    callback = Pauses(ctx, after, look, slowness)
    data = endless(strategy.num_replicas_in_sync)
    model.fit(data, steps_per_epoch=after[-1], verbose=0, callbacks=[callback])
    return state_of(model) | {"ends": callback.ends}


def reach(ranks: Any, step: int, *workers: int, word: str = "paused") -> None:
    """Waits until workers have reached the pause after `step`."""
    for rank in workers:
        ranks.wait_for(rank, word, step, timeout=120)


def go_on(ranks: Any, *workers: int) -> None:
    """Ends the pause of workers."""
    for rank in workers:
        ranks.send(rank, "continue")


def ended_well(outcomes: Sequence[Any], workers: int) -> None:
    """Asserts that all workers returned, and that all servers exited with 0."""
    for outcome in outcomes:
        well = outcome.ok if outcome.rank < workers else outcome.exit_code == 0
        assert well, outcome.describe()


def checkpoint(ranks: Any, server: int, number: int) -> str:
    """Makes a server write snapshot `number`, as the chief does; returns the file."""
    cluster = Cluster.from_tf_config(ranks[0].assignment.environment["TF_CONFIG"])
    control = ControlClient(cluster, None, cluster.ps[server], f"ps {server}")
    chief = ranks.wait_for(0, "process")
    request = messages.CheckpointRequest(fingerprint(cluster), chief, number, 10.0)
    answer = control.call(messages.CHECKPOINT, request, 10.0, patient=True)
    control.close()
    assert answer["status"] == "written", answer
    return answer["file"]
