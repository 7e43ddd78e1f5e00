"""SYNTHETIC clicks with Criteo's features: 13 numeric, 26 categorical, and a label.

None of them is Criteo's. They are random, so that a model for such data can be run and
measured at any size and without a download. Its accuracy says nothing about real clicks.

    python keras_examples/criteo.py

describes a sample. Its parts:

    ids       feature f has its own vocabulary size, from 10 to 2**32; its ids are zipfian (few
              frequent, most rare) and scattered over 0 to 2**40 - 1
    numerics  log-normal, a fifth of them missing
    label     1 with probability sigmoid(logit); the logit is linear in the numerics' logarithms and
              in a hidden weight of each id, which is a hash of the id

Blocks of examples have numbers; a number gives the same block in every process.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

NUMERIC, CATEGORICAL = 13, 26
ID_BITS = 40
MISSING = 0.2  # of the numerics
CLICKED = 0.25  # approximate share of the labels

_MASK = np.uint64(2**ID_BITS - 1)
_HALF = np.uint64(ID_BITS // 2)
_ID_WEIGHT = 0.25  # standard deviation of the hidden weights


class Clicks(NamedTuple):
    """Examples.

    Attributes:
      numeric: float32, shape (n, 13); NaN where missing.
      ids: int64, shape (n, 26).
      label: float32, shape (n,): 1 or 0.
      logit: float32, shape (n,): of the probability of label 1.
    """

    numeric: np.ndarray
    ids: np.ndarray
    label: np.ndarray
    logit: np.ndarray


class Generator:
    """Draws blocks of synthetic clicks.

    Args:
      seed: of features, ids and hidden weights.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        random = np.random.default_rng(seed)
        #: The vocabulary size of each feature.
        self.cardinality = np.round(10 ** np.linspace(1, 32 * np.log10(2), CATEGORICAL))
        random.shuffle(self.cardinality)
        #: Exponents of the zipfian distributions.
        self.skew = random.uniform(1.05, 1.3, CATEGORICAL)
        self._keys = random.integers(0, 2**ID_BITS, (4, CATEGORICAL), dtype=np.uint64)
        self._location = random.uniform(0, 3, NUMERIC)
        self._scale = random.uniform(0.5, 1.5, NUMERIC)
        self._weights = random.normal(0, 0.25, NUMERIC)

    def block(self, number: int, size: int) -> Clicks:
        """Draws a block.

        Args:
          number: 0 or more.
          size: the number of examples; it changes the examples of a block.
        """
        random = np.random.default_rng((self.seed, number))
        logs = random.normal(self._location, self._scale, (size, NUMERIC))
        missing = random.random((size, NUMERIC)) < MISSING
        ids = self._scatter(self._ranks(random.random((size, CATEGORICAL))))
        # A missing value has the weight of the mean.
        normal = np.where(missing, 0, (logs - self._location) / self._scale)
        logit = np.log(CLICKED / (1 - CLICKED)) + normal @ self._weights
        logit += self._hidden_weights(ids).sum(axis=1)
        label = random.random(size) < 1 / (1 + np.exp(-logit))
        numeric = np.where(missing, np.nan, np.exp(logs))
        return Clicks(
            numeric.astype(np.float32),
            ids.astype(np.int64),
            label.astype(np.float32),
            logit.astype(np.float32),
        )

    def _ranks(self, uniform: np.ndarray) -> np.ndarray:
        """Zipfian ranks from 0: the inverse of the distribution function of x**-skew, rounded down.

        The density is continuous, from 1 to the cardinality + 1.
        """
        power = 1 - self.skew
        scale = (self.cardinality + 1) ** power - 1
        ranks = np.floor((1 + uniform * scale) ** (1 / power)) - 1
        return np.minimum(ranks, self.cardinality - 1).astype(np.uint64)

    def _scatter(self, ranks: np.ndarray) -> np.ndarray:
        """A distinct id for each rank: two rounds of odd multiples and folded halves."""
        ids = ranks
        for key in self._keys[:2]:
            ids = (ids + key) * (key | np.uint64(1)) & _MASK
            ids ^= ids >> _HALF
        return ids

    def _hidden_weights(self, ids: np.ndarray) -> np.ndarray:
        """A nearly normal weight of each id: the sum of four 10-bit digits of its hash."""
        hashed = ids
        for key in self._keys[2:]:
            hashed = (hashed ^ key) * (key | np.uint64(1)) & _MASK
            hashed ^= hashed >> _HALF
        digits = sum((hashed >> np.uint64(shift)) & np.uint64(1023) for shift in (0, 10, 20, 30))
        mean, deviation = 4 * 1023 / 2, np.sqrt(4 * (1024**2 - 1) / 12)
        return _ID_WEIGHT * (digits.astype(np.float64) - mean) / deviation


def batches(seed: int, first: int, count: int, size: int) -> tf.data.Dataset:
    """Batches of `numeric`, `ids` and `label`, one for each block.

    Args:
      seed: the generator's.
      first: number of the first block.
      count: the number of blocks.
      size: examples in each.

    Returns:
      A dataset whose elements are float32 (size, 13), int64 (size, 26) and float32 (size,).
    """
    generator = Generator(seed)

    def draw(number: np.int64) -> tuple[np.ndarray, ...]:
        return generator.block(int(number), size)[:3]

    def read(number: tf.Tensor) -> tuple[tf.Tensor, ...]:
        numeric, ids, label = tf.numpy_function(
            draw, [number], (tf.float32, tf.int64, tf.float32), stateful=False
        )
        return (
            tf.ensure_shape(numeric, (size, NUMERIC)),
            tf.ensure_shape(ids, (size, CATEGORICAL)),
            tf.ensure_shape(label, (size,)),
        )

    return tf.data.Dataset.range(first, first + count).map(read)


def labels_and_logits(
    seed: int, first: int, count: int, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """The labels and logits of the batches that `batches` gives for these arguments.

    Returns:
      float32, both of shape (count * size,).
    """
    generator = Generator(seed)
    blocks = [generator.block(number, size) for number in range(first, first + count)]
    return tuple(
        np.concatenate(of_all) for of_all in ([b.label for b in blocks], [b.logit for b in blocks])
    )


def main() -> None:
    generator = Generator(seed=1)
    clicks = generator.block(0, 100_000)
    print("SYNTHETIC, 100,000 examples; clicked:", f"{clicks.label.mean():.3f}")
    print(f"{'feature':>8} {'can be':>12} {'skew':>5} {'are':>7} {'most frequent':>14}")
    for i, column in enumerate(clicks.ids.T):
        distinct, counts = np.unique(column, return_counts=True)
        print(
            f"{i:8} {generator.cardinality[i]:12.0f} {generator.skew[i]:5.2f} {len(distinct):7} "
            f"{counts.max() / len(column):13.1%}"
        )


if __name__ == "__main__":
    main()
