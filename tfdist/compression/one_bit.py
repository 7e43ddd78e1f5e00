"""One bit per value: a reduce-scatter and an all-gather of quantized columns.

Three ranks, a matrix of six columns a to f; Q quantizes, with a residual of its own on each rank:

                rank 0          rank 1          rank 2
    gradient    a b | c d | e f                           the same columns on every rank
    all-to-all  Q(a b) of all   Q(c d) of all   Q(e f) of all
    sum         a b             c d             e f       in float32, in rank order
    all-gather  Q(a b) Q(c d) Q(e f)                      the same bits on every rank

So a rank keeps two residuals: of its gradient, and of the sum of its part of the columns. Error
feedback adds both in the next step. With G the sum of all gradients so far and e the residuals of
all ranks, the sum of all results is G - e. See tfdist/compression/feedback.py.
"""

from __future__ import annotations

import math

import tensorflow as tf

from tfdist.compression.feedback import FeedbackCompressor, residual_of
from tfdist.ops.collectives.compressed import one_bit_encode, one_bit_sum


class OneBitCompressor(FeedbackCompressor):
    """Sums the quantized columns of all ranks, and quantizes the sums."""

    def _reduce_compressed(self, taken, plain, states, exchange):
        ranks, rank = exchange.communicator.size, exchange.communicator.rank
        shapes = [columns_shape(t.shape) for t in taken]
        residuals = [residual_of(s, shape) for s, shape in zip(states, shapes, strict=True)]
        payload, splits, rests = one_bit_encode(
            [tf.reshape(t, s) + r for t, s, r in zip(taken, shapes, residuals, strict=True)], ranks
        )
        written = [
            r.assign(rest, read_value=False) for r, rest in zip(residuals, rests, strict=True)
        ]
        with tf.control_dependencies(written):
            received, _ = exchange.all_to_all(payload, splits)

        parts = [[rows, part_of(columns, rank, ranks)] for rows, columns in shapes]
        kept = [
            s.variable("residual_of_sum", lambda part=part: tf.zeros(part))
            for s, part in zip(states, parts, strict=True)
        ]
        sums = one_bit_sum(received, parts, parts=1, payloads=ranks)
        payload, _, rests = one_bit_encode(
            [s / exchange.divisor + k for s, k in zip(sums, kept, strict=True)], 1
        )
        written = [k.assign(rest, read_value=False) for k, rest in zip(kept, rests, strict=True)]
        with tf.control_dependencies(written):
            gathered = exchange.all_gather(payload)
        results = one_bit_sum(gathered, shapes, parts=ranks, payloads=1)
        results = [tf.reshape(r, t.shape) for r, t in zip(results, taken, strict=True)]
        return results, exchange.all_reduce(plain)


def columns_shape(shape: tf.TensorShape) -> list[int]:
    """Rows and columns of a tensor: its last dimension is the columns; a vector is one column."""
    if shape.rank < 2:
        return [shape.num_elements(), 1]
    return [math.prod(shape[:-1]), shape[-1]]


def part_of(columns: int, rank: int, ranks: int) -> int:
    """The number of columns that a rank sums."""
    return columns // ranks + (rank < columns % ranks)
