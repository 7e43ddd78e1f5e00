"""The methods of compression, as frozen values."""

from __future__ import annotations

import abc
import dataclasses

import tensorflow as tf

from tfdist.compression.cast16 import Cast16Compressor
from tfdist.compression.compressor import Compressor, NoCompressor
from tfdist.compression.one_bit import OneBitCompressor
from tfdist.compression.power_sgd import PowerSGDCompressor
from tfdist.compression.top_k import TopKCompressor


@dataclasses.dataclass(frozen=True)
class Compression(abc.ABC):
    """A method of compression; compares by value. All ranks must use the same.

    float32 and float64 tensors of at least `min_elements` elements are compressed. All others
    (integers, 16-bit floats, small tensors) travel uncompressed.

    Args:
      min_elements: the smallest size of a tensor that is compressed, in elements.
    """

    min_elements: int = dataclasses.field(default=1024, kw_only=True)

    def __post_init__(self) -> None:
        _check(self, "min_elements", 1)

    @abc.abstractmethod
    def compressor(self) -> Compressor:
        """Makes a compressor with its own state, for one strategy or one optimizer."""


@dataclasses.dataclass(frozen=True)
class NoCompression(Compression):
    """Nothing is compressed, even if a strategy's options say otherwise."""

    def compressor(self) -> Compressor:
        return NoCompressor(self)


@dataclasses.dataclass(frozen=True)
class FP16(Compression):
    """Values travel as float16, half the bytes of float32.

    Every sum of two values is rounded to 11 bits. A value or sum beyond 65504 becomes infinite, one
    below 6e-8 becomes zero. A mean divides at the end, in full precision.
    """

    def compressor(self) -> Compressor:
        return Cast16Compressor(self, tf.float16)


@dataclasses.dataclass(frozen=True)
class BF16(Compression):
    """Values travel as bfloat16, half the bytes of float32.

    Every sum of two values is rounded to 8 bits; the range is float32's. A mean divides at
    the end, in full precision.
    """

    def compressor(self) -> Compressor:
        return Cast16Compressor(self, tf.bfloat16)


@dataclasses.dataclass(frozen=True)
class TopK(Compression):
    """A rank sends the values of largest magnitude of each tensor, with their indices.

    Values that are not sent are added to the next step's gradient: error feedback. Aji and
    Heafield, "Sparse communication for distributed gradient descent", 2017; Lin et al., "Deep
    gradient compression", 2018; Stich, Cordonnier and Jaggi, "Sparsified SGD with memory", 2018.

    Each of N ranks sends N-1 times 8 bytes for each value, where an uncompressed all-reduce sends
    8 (N-1)/N bytes for each element: it saves bytes if `ratio` is below 1/N.

    Args:
      ratio: the part of each tensor's values that is sent, 0 < ratio <= 1; at least one value.
      start_iteration: the number of uncompressed steps before the first compressed one.
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
class OneBit(Compression):
    """A value travels as one bit; each column of a matrix has two levels that the bits select.

    A tensor counts as a matrix whose columns are its last dimension, so a column holds the weights
    of one unit or filter; a vector is one column. Every rank sums a part of the columns, and sends
    the sum in one bit too. The part that a step could not express, of its gradient and of its sum,
    is added in the next step: error feedback. Seide, Fu, Droppo, Li and Yu, "1-bit stochastic
    gradient descent and its application to data-parallel distributed training of speech DNNs",
    2014.

    Each of N ranks sends 2 (N-1)/N times one bit for each value and 8 bytes for each column, nearly
    1/32 of an uncompressed all-reduce for tall matrices.

    Args:
      start_iteration: the number of uncompressed steps before the first compressed one.
    """

    start_iteration: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self, "start_iteration", 0)

    def compressor(self) -> Compressor:
        return OneBitCompressor(self)


@dataclasses.dataclass(frozen=True)
class PowerSGD(Compression):
    """For each matrix the ranks send two thin matrices, whose product approximates it.

    A kernel of shape [..., n] counts as a matrix with n columns; vectors travel uncompressed. The
    error of the approximation is added to the next step's gradient: error feedback. Vogels,
    Karimireddy and Jaggi, "PowerSGD: practical low-rank gradient compression for distributed
    optimization", 2019.

    Args:
      rank: columns of the thin matrices, at least 1; more columns are more accurate and more to
        send.
      start_iteration: the number of uncompressed steps before the first compressed one.
    """

    rank: int = 4
    start_iteration: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self, "start_iteration", 0)
        _check(self, "rank", 1)

    def compressor(self) -> Compressor:
        return PowerSGDCompressor(self)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check(method: Compression, name: str, least: int) -> None:
    value = getattr(method, name)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(
            f"{type(method).__name__}: expected {name} to be an integer of at least {least}, "
            f"received {value!r}"
        )
