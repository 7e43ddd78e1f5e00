"""Training steps of a network of VGG-16's size, whose computing is simulated by waiting.

A third of a step's computing is the forward pass; two thirds are the backward pass, from the last
layer to the first, each with its share of the multiplications. A layer's gradients exist when its
share of the time has passed. VGG-16 has most parameters in its last layers and most multiplications
in the first, so most bytes can travel before most of the backward pass.

An object is made, and its methods are called, in the process of one rank.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Sequence

from baselines.all_reducers import join, stock_strategy

FORWARD = 1 / 3
SIDE = 224  # of an image, in pixels
CLASSES = 1000


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer's kernel (it also has a bias), and the number of pixels to which it is applied."""

    shape: tuple[int, ...]
    pixels: int

    @property
    def parameters(self) -> int:
        return math.prod(self.shape) + self.shape[-1]

    @property
    def multiplications(self) -> int:
        """For one image."""
        return math.prod(self.shape) * self.pixels


def vgg16(scale: float) -> list[Layer]:
    """The 16 layers of configuration D in Simonyan and Zisserman (2015).

    Args:
      scale: of the width; 138.36 M parameters at 1.
    """

    def width(channels: int) -> int:
        return max(1, round(channels * scale))

    layers = []
    inputs, side = 3, SIDE
    for channels, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convolutions):
            outputs = width(channels)
            layers.append(Layer((3, 3, inputs, outputs), side**2))
            inputs = outputs
        side //= 2
    widths = (inputs * side**2, width(4096), width(4096), CLASSES)
    return layers + [Layer(shape, 1) for shape in itertools.pairwise(widths)]


class Steps:
    """Runs steps, each inside a `tf.function`.

    Args:
      rank: of this process.
      size: number of ranks.
      scale: of the network's width.
    """

    def __init__(self, rank: int, size: int, scale: float) -> None:
        self._rank, self._size, self._layers = rank, size, vgg16(scale)
        self._steps: dict[str, Callable] = {}

    def run(self, how: str, seconds: float) -> float:
        """Runs a step with this computing time; returns its seconds, raises if a sum is wrong."""
        import numpy as np
        import tensorflow as tf

        start = time.perf_counter()
        ends = self._steps[how](tf.constant(seconds, tf.float64))
        elapsed = time.perf_counter() - start
        values = np.arange(len(self._layers), 0, -1.0)
        expected = values + 10 * self._rank
        if how != "alone":
            expected = self._size * values + 5 * self._size * (self._size - 1)
        np.testing.assert_array_equal(ends, np.repeat(expected, 4), err_msg=f"{how}: wrong sums")
        return elapsed

    def _add(self, how: str, compute: Callable, run: Callable | None = None) -> None:
        """Adds a kind of step; `run` runs it, such as a strategy's method."""
        import tensorflow as tf

        step = compute if run is None else lambda seconds: run(compute, args=(seconds,))
        self._steps[how] = tf.function(step)

    def _compute(self, seconds, reduce: Callable) -> object:
        """A step, which passes all gradients, the last layer's first, to `reduce`.

        Returns:
          The first and last elements of all sums, the last layer's first.
        """
        import tensorflow as tf

        passed = _wait(tf.zeros([]), seconds * FORWARD)
        total = sum(layer.multiplications for layer in self._layers)
        gradients: list = []
        for i, layer in reversed(list(enumerate(self._layers))):
            share = (1 - FORWARD) * layer.multiplications / total
            passed = _wait(passed, seconds * share)
            value = passed + (i + 1.0 + 10.0 * self._rank)
            gradients += [tf.fill(layer.shape, value), tf.fill(layer.shape[-1:], value)]
        flat = [tf.reshape(tensor, [-1]) for tensor in reduce(gradients)]
        return tf.stack([tensor[end] for tensor in flat for end in (0, -1)])


def _unchanged(tensors: list) -> list:
    return tensors


def _wait(passed, seconds):
    """Zero, `seconds` after `passed` exists."""
    import numpy as np
    import tensorflow as tf

    def wait(passed, seconds):
        time.sleep(seconds)
        return np.float32(0)

    # A stateful op would wait for the collectives before it.
    return tf.ensure_shape(tf.numpy_function(wait, [passed, seconds], tf.float32, False), [])


class TfdistSteps(Steps):
    """Steps of a worker of tfdist: "alone", "after" the computing, and "overlapped"."""

    def __init__(self, rank: int, size: int, scale: float, tf_config: str) -> None:
        super().__init__(rank, size, scale)
        communicator = join(tf_config)
        from tfdist import ops

        def at_once(tensors: list) -> list:
            return ops.all_reduce(tensors, communicator)

        def in_buckets(tensors: list) -> list:
            first_layer_first = ops.fused_all_reduce(tensors[::-1], communicator)
            return first_layer_first[::-1]

        self._add("alone", lambda seconds: self._compute(seconds, _unchanged))
        self._add("after", lambda seconds: self._compute(seconds, at_once))
        self._add("overlapped", lambda seconds: self._compute(seconds, in_buckets))


class StockSteps(Steps):
    """Steps of a worker of TensorFlow's own strategy: "stock"."""

    def __init__(self, rank: int, size: int, scale: float, addresses: Sequence[str]) -> None:
        super().__init__(rank, size, scale)
        strategy = stock_strategy(rank, addresses)
        import tensorflow as tf

        def reduce(tensors: list) -> list:
            return tf.distribute.get_replica_context().all_reduce("SUM", tensors)

        self._add("stock", lambda s: self._compute(s, reduce), strategy.run)
