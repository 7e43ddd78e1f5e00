"""Compressions under Horovod's names: classes that cast one tensor down and back.

For gradients `Compression.fp16` stands for the method `FP16`, whose kernels round values during
transport. Its `compress` and `decompress` are for tensors that a program sends itself.
"""

from __future__ import annotations

import abc

import tensorflow as tf

from tfdist.compression import methods


class Cast(abc.ABC):
    """The casts of one tensor; used as a class, never as an object."""

    # The method for gradients.
    method: type[methods.Compression]

    @staticmethod
    @abc.abstractmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, tf.DType | None]:
        """Returns the tensor to send, and the context that `decompress` needs."""

    @staticmethod
    @abc.abstractmethod
    def decompress(tensor: tf.Tensor, ctx: tf.DType | None) -> tf.Tensor:
        """Returns the tensor that `compress` was given, as precisely as it was sent."""


class NoCast(Cast):
    """Tensors are sent uncompressed."""

    method = methods.NoCompression

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, tf.DType | None]:
        """Returns the tensor and None."""
        return tf.convert_to_tensor(tensor), None

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: tf.DType | None) -> tf.Tensor:
        """Returns the tensor."""
        return tensor


class FP16Cast(Cast):
    """Floating-point tensors are sent as float16, others uncompressed."""

    method = methods.FP16

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, tf.DType | None]:
        """Returns the tensor as float16, if it is floating-point, and its own dtype."""
        tensor = tf.convert_to_tensor(tensor)
        small = tf.cast(tensor, tf.float16) if tensor.dtype.is_floating else tensor
        return small, tensor.dtype

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: tf.DType | None) -> tf.Tensor:
        """Returns the tensor as the dtype `ctx`."""
        return tf.cast(tensor, ctx)


class Compression:
    """Horovod's compressions, by its names, for every `compression=` of tfdist.

    Attributes:
      none: gradients travel uncompressed.
      fp16: float32 and float64 gradients of at least 1,024 elements travel as float16; it means
        `tfdist.compression.FP16()`.

    Each has `compress(tensor)`, which returns a tensor and a context, and `decompress(tensor,
    context)`.

    Example:
      >>> small, context = tfdist.Compression.fp16.compress(tf.constant([0.1]))
      >>> small.dtype.name, tfdist.Compression.fp16.decompress(small, context).dtype.name
      ('float16', 'float32')
    """

    none = NoCast
    fp16 = FP16Cast
