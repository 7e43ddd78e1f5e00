"""Low-rank approximations of matrices, by one step of a power iteration.

Each rank has a matrix M (gradient + residual, rows x columns); all have the same Q (columns x r).

    P = M Q      all-reduced, then made orthonormal: spans the columns of the mean matrix
    Q = M^T P    all-reduced: the coefficients of M in that basis
    P Q^T        the approximation of the reduced matrix, the same on all ranks
    M - P (M^T P)^T  the residual of this rank, which it has not sent

A rank sends r (rows + columns) values instead of rows x columns. The next step starts from this Q:
gradients change slowly, so the approximation improves. P is multiplied by tfdist's own kernels,
because TensorFlow's may add up in a different order on each rank.
"""

from __future__ import annotations

import math

import tensorflow as tf

from tfdist.compression.feedback import FeedbackCompressor, residual_of
from tfdist.compression.states import GradientState
from tfdist.ops.collectives.compressed import multiply_transposed, orthonormalize


class PowerSGDCompressor(FeedbackCompressor):
    """Sums matrices approximately; other tensors travel with the first all-reduce."""

    def _takes(self, tensor: tf.Tensor) -> bool:
        if not super()._takes(tensor) or tensor.shape.rank < 2:
            return False
        rows, columns = matrix_shape(tensor.shape)
        return self.method.rank * (rows + columns) < rows * columns

    def _reduce_compressed(self, taken, plain, states, exchange):
        shapes = [matrix_shape(t.shape) for t in taken]
        residuals = [residual_of(s, shape) for s, shape in zip(states, shapes, strict=True)]
        rights = [
            self._right_of(s, columns) for s, (_, columns) in zip(states, shapes, strict=True)
        ]
        matrices = [
            tf.reshape(t, shape) + r for t, shape, r in zip(taken, shapes, residuals, strict=True)
        ]
        lefts = [tf.matmul(m, q.read_value()) for m, q in zip(matrices, rights, strict=True)]
        reduced = exchange.all_reduce([*lefts, *plain])
        lefts = [orthonormalize(p) for p in reduced[: len(taken)]]
        own = [tf.matmul(m, p, transpose_a=True) for m, p in zip(matrices, lefts, strict=True)]
        sums = exchange.all_reduce(own)
        written = []
        for matrix, left, mine, total, residual, right in zip(
            matrices, lefts, own, sums, residuals, rights, strict=True
        ):
            rest = matrix - tf.matmul(left, mine, transpose_b=True)
            written.append(residual.assign(rest, read_value=False))
            written.append(right.assign(total, read_value=False))
        with tf.control_dependencies(written):
            products = [
                tf.reshape(multiply_transposed(p, q), t.shape)
                for p, q, t in zip(lefts, sums, taken, strict=True)
            ]
        return products, reduced[len(taken) :]

    def _right_of(self, state: GradientState, columns: int) -> tf.Variable:
        """Q: at first random numbers, the same on every rank."""
        shape = [columns, self.method.rank]
        return state.variable("right", lambda: tf.random.stateless_normal(shape, seed=(8, 1907)))


def matrix_shape(shape: tf.TensorShape) -> list[int]:
    """Rows and columns of a tensor seen as a matrix: its last dimension is the columns."""
    return [math.prod(shape[:-1]), shape[-1]]
