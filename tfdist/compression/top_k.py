"""The largest values of each tensor, and where they are.

    gradient + residual of rank 0   [ 3  -1   0   8]   sends 8 at 3   keeps [ 3 -1  0  0]
    gradient + residual of rank 1   [-7   2   1  -2]   sends -7 at 0  keeps [ 0  2  1 -2]
    sum, on both                    [-7   0   0   8]

All tensors of a call travel in one all-gather, of 8 bytes for each value.
"""

from __future__ import annotations

import tensorflow as tf

from tfdist import ops
from tfdist.compression.feedback import FeedbackCompressor, residual_of


class TopKCompressor(FeedbackCompressor):
    """Sums what each rank chose of its own tensors."""

    def _reduce_compressed(self, taken, plain, states, exchange):
        shapes = [t.shape for t in taken]
        kept = [kept_of(shape.num_elements(), self.method.ratio) for shape in shapes]
        residuals = [residual_of(s, shape) for s, shape in zip(states, shapes, strict=True)]
        payload, rests = ops.top_k([t + r for t, r in zip(taken, residuals, strict=True)], kept)
        written = [
            r.assign(rest, read_value=False) for r, rest in zip(residuals, rests, strict=True)
        ]
        with tf.control_dependencies(written):
            gathered = exchange.all_gather(payload)
        sums = ops.scatter_add_top_k(gathered, shapes, kept, exchange.divisor)
        return sums, exchange.all_reduce(plain)


def kept_of(elements: int, ratio: float) -> int:
    """How many values of a tensor are sent."""
    return min(max(1, round(elements * ratio)), elements)
