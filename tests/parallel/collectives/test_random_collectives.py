"""Many collectives of random kinds, dtypes, sizes and groups, all at once and in any order.

A graph without control dependencies starts its ops as they become ready, and every rank delays each
by a random number of steps of its own. In any order every result is exact.
"""

from __future__ import annotations

import random

import numpy as np
import tensorflow as tf

import tfdist
from support.processes.ranks import on_ranks
from support.tiers import rounds
from tfdist import ops

COUNT = rounds(300, long=2000)
DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8")
ROWS = (0, 1, 2, 3, 5, 8, 13, 100)
MOST_ROWS = 30_000


def value(i: int, rank: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """1 or 2, so that sums and products are exact in every dtype."""
    count = int(np.prod(shape))
    numbers = (np.arange(count) * 5 + i + rank * 3) % 7 % 2 + 1
    return numbers.reshape(shape).astype(tf.as_dtype(dtype).as_numpy_dtype)


class Random:
    """One random collective, the same on every rank that draws it.

    Args:
      i: its number.
      draw: the source of randomness.
      ranks: the job's ranks that take part.
    """

    def __init__(self, i: int, draw: random.Random, ranks: list[int]) -> None:
        self.i, self.ranks, self.size = i, ranks, len(ranks)
        self.kind = draw.choice(
            ("all_reduce", "reduce", "reduce_scatter", "broadcast", "all_gather", "gather")
            + ("scatter", "all_to_all", "strings", "barrier")
        )
        self.dtypes = [draw.choice(DTYPES) for _ in range(draw.choice((1, 1, 1, 2, 4)))]
        self.rows = [self._rows(draw) for _ in self.dtypes]
        self.root = draw.randrange(self.size)
        self.reduce_op = draw.choice(("sum", "mean", "min", "max", "product"))

    @staticmethod
    def _rows(draw: random.Random) -> int:
        return MOST_ROWS if draw.random() < 0.01 else draw.choice(ROWS)

    def inputs(self, position: int) -> list[np.ndarray]:
        """The inputs of the member at `position` of the group."""
        ragged = position if self.kind in ("all_gather", "gather") else 0
        if self.kind == "scatter" and position != self.root:
            ragged = 1
        return [
            value(self.i, self.ranks[position], (rows + ragged, 2), dtype)
            for rows, dtype in zip(self.rows, self.dtypes, strict=True)
        ]

    def words(self, position: int) -> list[bytes]:
        return [b"x" * (self.i * 7 % 50) * position] * (self.i % 3 + position)

    def splits(self, position: int) -> list[list[int]]:
        """The first `position` ranks get a row each, the last what is left."""
        results = []
        for rows in self.rows:
            ones = [int(r < min(position, rows)) for r in range(self.size)]
            ones[-1] += rows - sum(ones)
            results.append(ones)
        return results

    def start(self, position: int, inputs: list[tf.Tensor], group) -> list[tf.Tensor]:
        label = f"{self.kind} {self.i}"
        if self.kind in ("all_reduce", "reduce_scatter"):
            return getattr(ops, self.kind)(inputs, group, self.reduce_op, label=label)
        if self.kind == "reduce":
            return ops.reduce(inputs, group, self.root, self.reduce_op, label=label)
        if self.kind in ("broadcast", "gather", "scatter"):
            return getattr(ops, self.kind)(inputs, group, self.root, label=label)
        if self.kind == "all_gather":
            return ops.all_gather(inputs, group, label=label)
        if self.kind == "all_to_all":
            exchanged, received = ops.all_to_all(inputs, group, self.splits(position), label=label)
            return exchanged + received
        if self.kind == "strings":
            words = tf.constant(self.words(position), tf.string, [len(self.words(position))])
            return [ops.all_gather(words, group, label=label)]
        with tf.control_dependencies([*inputs]):
            with tf.control_dependencies([ops.barrier(group, label=label)]):
                return [tf.constant(self.i, tf.int64)]

    def expected(self, position: int) -> list[np.ndarray]:
        everybody = [self.inputs(p) for p in range(self.size)]
        if self.kind == "strings":
            return [np.array(sum((self.words(p) for p in range(self.size)), []), object)]
        if self.kind == "barrier":
            return [np.array(self.i)]
        if self.kind == "all_to_all":
            return self._exchanged(position, everybody)
        columns = list(zip(*everybody, strict=True))
        if self.kind == "broadcast":
            return everybody[self.root]
        if self.kind in ("all_gather", "gather"):
            here = self.kind == "all_gather" or position == self.root
            return [np.concatenate(c) if here else c[0][:0] for c in columns]
        if self.kind == "scatter":
            return [self._part(whole, position) for whole in everybody[self.root]]
        results = [self._reduced(column) for column in columns]
        if self.kind == "reduce" and position != self.root:
            return [np.zeros_like(result) for result in results]
        if self.kind == "reduce_scatter":
            return [self._part(result, position) for result in results]
        return results

    def _reduced(self, values: tuple[np.ndarray, ...]) -> np.ndarray:
        kind = values[0].dtype
        wide = np.stack(values).astype("float64")
        if self.reduce_op == "mean":
            total = wide.sum(axis=0)
            if np.issubdtype(kind, np.integer):
                return (total // self.size).astype(kind)
            exact = "float64" if kind == np.float64 else "float32"
            return (total.astype(exact) / np.asarray(self.size, exact)).astype(kind)
        function = {"sum": np.sum, "min": np.min, "max": np.max, "product": np.prod}
        return function[self.reduce_op](wide, axis=0).astype(kind)

    def _part(self, whole: np.ndarray, position: int) -> np.ndarray:
        return np.array_split(whole, self.size)[position]

    def _exchanged(self, position: int, everybody: list[list[np.ndarray]]) -> list[np.ndarray]:
        results, counts = [], []
        for t in range(len(self.rows)):
            pieces = [
                np.split(everybody[p][t], np.cumsum(self.splits(p)[t])[:-1])[position]
                for p in range(self.size)
            ]
            results.append(np.concatenate(pieces))
            counts.append(np.array([len(piece) for piece in pieces]))
        return results + counts


@on_ranks(3, timeout=300)
def test_random_collectives_in_random_order(ctx):
    tfdist.init()
    memberships = [[0, 1, 2], [0, 1, 2], [2, 0], [1, 2], [0, 1]]
    groups = [None, *(tfdist.new_group(ranks) for ranks in memberships[1:])]
    draw, delays = random.Random(1), random.Random(100 + ctx.rank)
    mine = []
    for i in range(COUNT):
        which = draw.randrange(len(memberships))
        collective = Random(i, draw, memberships[which])
        if ctx.rank in memberships[which]:
            mine.append((collective, memberships[which].index(ctx.rank), groups[which]))

    def all_of_them(one):
        results = []
        for collective, position, group in mine:
            late = one
            for _ in range(delays.randrange(8)):
                late = late * one
            with tf.control_dependencies([late]):
                inputs = [tf.identity(x) for x in collective.inputs(position)]
            results.append(collective.start(position, inputs, group))
        return results

    # Unlike a tf.function it does not chain stateful ops.
    graph = tf.compat.v1.wrap_function(all_of_them, [tf.TensorSpec([], tf.float32)])
    for (collective, position, _), results in zip(mine, graph(tf.constant(1.0)), strict=True):
        expected = collective.expected(position)
        name = f"{collective.kind} {collective.i} of {collective.ranks}"
        for result, exact in zip(results, expected, strict=True):
            np.testing.assert_array_equal(result.numpy(), exact, err_msg=name, strict=True)
    assert len(mine) > COUNT // 2
