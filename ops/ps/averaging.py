"""Values that workers combine outside of pushes."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdist.ops import library
from tfdist.ops.collectives import collective_keys


class Averaging:
    """Values that workers combine outside of pushes.

    A face of a `ParameterClient`.

    Args:
      handle: the client's.
    """

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def exchange(
        self, parameters: Sequence[int], values: Sequence[tf.Tensor], alpha: float
    ) -> list[tf.Tensor]:
        """Lets parameters on the servers and a worker's values for them attract each other.

        A server adds `alpha * (value - parameter)` to each parameter, under its lock: elastic
        averaging (Zhang, Choromanska and LeCun 2015).

        Args:
          parameters: ids of floating-point parameters.
          values: of the parameters' shapes and dtypes.
          alpha: above 0 and at most 1.

        Returns:
          The sums added to each parameter; the worker subtracts them from its values.

        Raises:
          tf.errors.InvalidArgumentError: `alpha` or a shape is wrong.
          tf.errors.OpError: a server refused or did not answer.
        """
        return library.graph_ops().tfdist_ps_exchange(
            values=values,
            alpha=tf.constant(alpha, tf.float64),
            client=self.handle,
            parameters=list(parameters),
        )

    def reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums tensors over the workers of a synchronous job."""
        key = collective_keys.next_key(("workers of a client", self.handle))
        return library.graph_ops().tfdist_ps_reduce(inputs=tensors, client=self.handle, key=key)
