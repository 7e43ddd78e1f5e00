"""Compression to 16-bit floats."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.compression.compressor import Compressor


class Cast16Compressor(Compressor):
    """Rounds values to 16 bits for transport; has no state.

    Args:
      method: `FP16` or `BF16`.
      wire_dtype: the dtype that travels.
    """

    def __init__(self, method: Any, wire_dtype: tf.DType) -> None:
        super().__init__(method)
        self._wire_dtype = wire_dtype

    def _reduce(self, taken, plain, variables, exchange):
        return exchange.cast16_all_reduce(taken, self._wire_dtype), exchange.all_reduce(plain)
