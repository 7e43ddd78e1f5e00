"""The method that a user's argument names."""

from __future__ import annotations

from collections.abc import Callable

from tfdist.compression.casts import Cast
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

_NAMES: dict[str, Callable[[], Compression]] = {
    "none": NoCompression,
    "fp16": FP16,
    "bf16": BF16,
    "topk": TopK,
    "onebit": OneBit,
    "powersgd": PowerSGD,
}


def method_of(compression: str | Compression | type | None) -> Compression | None:
    """Converts a user's argument to a method: "fp16" to `FP16()`.

    Args:
      compression: "none", "fp16", "bf16", "topk", "onebit", "powersgd", a `Compression`, one
        of `tfdist.Compression`, or `None`.

    Returns:
      The method; `None` for `None`.

    Raises:
      ValueError: an unknown name, or something else.
    """
    if compression is None or isinstance(compression, Compression):
        return compression
    if isinstance(compression, str) and compression in _NAMES:
        return _NAMES[compression]()
    if isinstance(compression, type) and issubclass(compression, Cast):
        return compression.method()
    names = ", ".join(repr(name) for name in _NAMES)
    raise ValueError(
        f"compression: expected {names} or a method of tfdist.compression, received {compression!r}"
    )


def compressor(compression: str | Compression | type | None) -> Compressor:
    """Makes a compressor with its own state, for one strategy or one optimizer.

    Args:
      compression: as for `method_of`; `None` means "none".

    Raises:
      ValueError: as `method_of`.
    """
    return (method_of(compression) or NoCompression()).compressor()
