"""Compression of gradients that travel between workers.

A method, such as `TopK(ratio=0.01)`, is a value. `compressor(method)` makes the object that
compresses, with the state that it needs from one step to the next. See docs/guides/compression.md.
"""

from tfdist.compression.choice import compressor, method_of
from tfdist.compression.compressor import Compressor
from tfdist.compression.methods import (
    BF16,
    FP16,
    Compression,
    NoCompression,
    OneBit,
    PowerSGD,
    TopK,
)

__all__ = [
    "BF16",
    "FP16",
    "Compression",
    "Compressor",
    "NoCompression",
    "OneBit",
    "PowerSGD",
    "TopK",
    "compressor",
    "method_of",
]
