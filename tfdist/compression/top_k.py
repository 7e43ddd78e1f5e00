"""The values of largest magnitude of each tensor, and their indices.

    gradient + residual of rank 0   [ 3  -1   0   8]   sends 8 at 3   keeps [ 3 -1  0  0]
    gradient + residual of rank 1   [-7   2   1  -2]   sends -7 at 0  keeps [ 0  2  1 -2]
    sum, on both                    [-7   0   0   8]

All tensors of a call are sent in one all-gather, 8 bytes per value.
"""

from __future__ import annotations

import tensorflow as tf

from tfdist.compression.feedback import FeedbackCompressor, residual_of
from tfdist.ops.collectives.compressed import scatter_add_top_k, top_k


class TopKCompressor(FeedbackCompressor):
    """Sums the values that each rank selected from its own tensors."""

    def _reduce_compressed(self, taken, plain, states, exchange):
        shapes = [t.shape for t in taken]
        counts = [selected_count(shape.num_elements(), self.method.ratio) for shape in shapes]
        residuals = [residual_of(s, shape) for s, shape in zip(states, shapes, strict=True)]
        payload, rests = top_k([t + r for t, r in zip(taken, residuals, strict=True)], counts)
        written = [
            r.assign(rest, read_value=False) for r, rest in zip(residuals, rests, strict=True)
        ]
        with tf.control_dependencies(written):
            gathered = exchange.all_gather(payload)
        sums = scatter_add_top_k(gathered, shapes, counts, exchange.divisor)
        return sums, exchange.all_reduce(plain)


def selected_count(elements: int, ratio: float) -> int:
    """The number of values of a tensor that are sent."""
    return min(max(1, round(elements * ratio)), elements)
