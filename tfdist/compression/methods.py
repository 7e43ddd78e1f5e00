"""The methods of compression, as frozen values that a user writes down."""

from __future__ import annotations

import abc
import dataclasses

import tensorflow as tf

from tfdist.compression.compressor import Compressor, NoCompressor
from tfdist.compression.narrow import NarrowCompressor
from tfdist.compression.power_sgd import PowerSGDCompressor
from tfdist.compression.top_k import TopKCompressor


@dataclasses.dataclass(frozen=True)
class Compression(abc.ABC):
    """How tensors travel; compares by value. All ranks must use the same.

    float32 and float64 tensors of at least `min_elements` elements are compressed. Whatever else
    there is (integers, 16-bit floats, small tensors) travels as it is.

    Args:
      min_elements: the size from which on a tensor is compressed, in elements.
    """

    min_elements: int = dataclasses.field(default=1024, kw_only=True)

    def __post_init__(self) -> None:
        _check(self, "min_elements", 1)

    @abc.abstractmethod
    def compressor(self) -> Compressor:
        """Makes what compresses for one strategy or one optimizer, with a state of its own."""


@dataclasses.dataclass(frozen=True)
class NoCompression(Compression):
    """Everything travels as it is, even where a strategy's options ask for a compression."""

    def compressor(self) -> Compressor:
        return NoCompressor(self)


@dataclasses.dataclass(frozen=True)
class FP16(Compression):
    """Values travel as float16, half the bytes of float32.

    Every sum of two values is rounded to 11 bits. What is beyond 65504, a sum too, becomes
    infinite; what is below 6e-8 becomes zero. A mean divides at the end, in full precision.
    """

    def compressor(self) -> Compressor:
        return NarrowCompressor(self, tf.float16)


@dataclasses.dataclass(frozen=True)
class BF16(Compression):
    """Values travel as bfloat16, half the bytes of float32.

    Every sum of two values is rounded to 8 bits; the range is that of float32. A mean divides at
    the end, in full precision.
    """

    def compressor(self) -> Compressor:
        return NarrowCompressor(self, tf.bfloat16)


@dataclasses.dataclass(frozen=True)
class TopK(Compression):
    """Of each tensor a rank sends the values of largest magnitude, and where they are.

    What is not sent is added to the next step's gradient: error feedback. Aji and Heafield, "Sparse
    communication for distributed gradient descent", 2017; Lin et al., "Deep gradient compression",
    2018; Stich, Cordonnier and Jaggi, "Sparsified SGD with memory", 2018.

    Each of N ranks sends N-1 times 8 bytes for each value, where an uncompressed all-reduce sends
    8 (N-1)/N bytes for each element: it saves bytes if `ratio` is below 1/N.

    Args:
      ratio: the part of each tensor's values that is sent, 0 < ratio <= 1; at least one value is.
      start_iteration: so many steps come before the first compressed one.
    """

    ratio: float = 0.01
    start_iteration: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self, "start_iteration", 0)
        if not _is_number(self.ratio) or not 0 < self.ratio <= 1:
            raise ValueError(f"TopK: expected 0 < ratio <= 1, received {self.ratio!r}")

    def compressor(self) -> Compressor:
        return TopKCompressor(self)


@dataclasses.dataclass(frozen=True)
class PowerSGD(Compression):
    """Of each matrix the ranks send two thin ones, whose product is close to it.

    A kernel of shape [..., n] counts as a matrix with n columns; vectors travel as they are. What
    the approximation misses is added to the next step's gradient: error feedback. Vogels,
    Karimireddy and Jaggi, "PowerSGD: practical low-rank gradient compression for distributed
    optimization", 2019.

    Args:
      rank: columns of the thin matrices, at least 1; more is closer, and more to send.
      start_iteration: so many steps come before the first compressed one.
    """

    rank: int = 4
    start_iteration: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self, "start_iteration", 0)
        _check(self, "rank", 1)

    def compressor(self) -> Compressor:
        return PowerSGDCompressor(self)


_NAMES = {
    "none": NoCompression,
    "fp16": FP16,
    "bf16": BF16,
    "topk": TopK,
    "powersgd": PowerSGD,
}


def method_of(compression: str | Compression | type | None) -> Compression | None:
    """Turns what users write into a method: "fp16" into `FP16()`.

    Args:
      compression: "none", "fp16", "bf16", "topk", "powersgd", a `Compression`, one of
        `tfdist.Compression`, or `None`.

    Returns:
      The method; `None` for `None`.

    Raises:
      ValueError: an unknown name, or something else.
    """
    if compression is None or isinstance(compression, Compression):
        return compression
    if isinstance(compression, str) and compression in _NAMES:
        return _NAMES[compression]()
    from tfdist.compression.casts import Cast  # it stands on this module

    if isinstance(compression, type) and issubclass(compression, Cast):
        return compression.method()
    names = ", ".join(repr(name) for name in _NAMES)
    raise ValueError(
        f"compression: expected {names} or a method of tfdist.compression, received {compression!r}"
    )


def compressor(compression: str | Compression | type | None) -> Compressor:
    """Makes what compresses for one strategy or one optimizer, with a state of its own.

    Args:
      compression: as for `method_of`; `None` means "none".

    Raises:
      ValueError: as `method_of`.
    """
    return (method_of(compression) or NoCompression()).compressor()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check(method: Compression, name: str, least: int) -> None:
    value = getattr(method, name)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(
            f"{type(method).__name__}: expected {name} to be an integer of at least {least}, "
            f"received {value!r}"
        )
