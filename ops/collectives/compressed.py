"""Ops for gradient compression: an all-reduce in 16 bits, top-k, one bit, low-rank factors."""

from collections.abc import Sequence

import tensorflow as tf

from tfdist.ops import library
from tfdist.ops.collectives.calls import attributes, reduced_by_dtype
from tfdist.ops.collectives.communicator import Communicator


def cast16_all_reduce(
    tensors: Sequence,
    communicator: Communicator,
    wire_dtype: tf.DType,
    reduce_op: str = "sum",
    *,
    label: str = "all_reduce",
    timeout: float | None = None,
) -> list[tf.Tensor]:
    """Sums or averages float tensors in a 16-bit wire format, a list of them in one fused pass.

    Values are rounded before they are sent, and so is every partial sum. It needs no memory besides
    the results.

    Args:
      tensors: a list of tensors of float32 or float64; the same shapes on every rank. Tensors of
        one dtype travel together.
      communicator: the ranks.
      wire_dtype: `tf.float16`, in which values and sums beyond 65504 become infinite, or
        `tf.bfloat16`.
      reduce_op: "sum" or "mean". The mean divides the sum after it is converted back: dividing the
        values first would make small values underflow in float16.
      label: the collective's name in error messages.
      timeout: as for `all_reduce`.

    Returns:
      Tensors of the same shapes and dtypes: the same values on every rank, bit for bit.

    Raises the errors of `all_reduce`.
    """
    values = [tf.convert_to_tensor(t) for t in tensors]

    def reduce(inputs):
        return library.graph_ops().tfdist_cast16_all_reduce(
            inputs=inputs,
            wire_dtype=wire_dtype,
            reduce_op=reduce_op,
            **attributes(communicator, label, timeout),
        )

    return reduced_by_dtype(values, reduce)


def top_k(tensors: Sequence[tf.Tensor], kept: Sequence[int]) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Removes the values of largest magnitude from each tensor; of equal values, the first.

    Args:
      tensors: float32 tensors.
      kept: for each tensor the number of values; at least 1.

    Returns:
      An int32 vector for `scatter_add_top_k`: the index of each value, then its bits. Also the
      tensors with zeros at these indices.

    Raises:
      tf.errors.InvalidArgumentError: a tensor has fewer values.
    """
    return library.graph_ops().tfdist_top_k(inputs=list(tensors), kept=list(kept))


def scatter_add_top_k(
    gathered: tf.Tensor, shapes: Sequence[tf.TensorShape], kept: Sequence[int], divisor: int = 1
) -> list[tf.Tensor]:
    """Sums the values that `top_k` removed on several ranks.

    Args:
      gathered: the int32 vectors of all ranks, concatenated.
      shapes: of the tensors.
      kept: as for `top_k`.
      divisor: each value is divided by it before it is added.

    Returns:
      float32 tensors, zero at indices without a value.

    Raises:
      tf.errors.InvalidArgumentError: `gathered` does not fit the shapes.
    """
    return library.graph_ops().tfdist_scatter_add_top_k(
        gathered=gathered, shapes=list(shapes), kept=list(kept), divisor=divisor, N=len(shapes)
    )


def one_bit_encode(
    matrices: Sequence[tf.Tensor], parts: int
) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
    """Encodes matrices with one bit per value and two levels per column.

    The levels of a column are the mean of its negative values and the mean of the others. Seide et
    al., "1-bit stochastic gradient descent", 2014.

    Args:
      matrices: float32 `[rows, columns]`.
      parts: into which the columns of each matrix are divided, as evenly as possible; the first
        parts are larger.

    Returns:
      An int32 vector for `one_bit_sum`, ordered by parts; the int64 lengths of its parts; and the
      values minus the encoded ones, of the shapes of `matrices`.

    Raises:
      tf.errors.InvalidArgumentError: a tensor is not a matrix.
    """
    payload, splits, rests = library.graph_ops().tfdist_one_bit_encode(
        inputs=list(matrices), parts=parts
    )
    return payload, splits, list(rests)


def one_bit_sum(
    received: tf.Tensor, shapes: Sequence[Sequence[int]], parts: int, payloads: int
) -> list[tf.Tensor]:
    """Decodes payloads of `one_bit_encode` and sums them.

    Args:
      received: the int32 vectors, concatenated; added in this order.
      shapes: `[rows, columns]` of the matrices.
      parts: as for `one_bit_encode`.
      payloads: the number of vectors.

    Returns:
      float32 tensors of these shapes.

    Raises:
      tf.errors.InvalidArgumentError: `received` does not fit the shapes.
    """
    return library.graph_ops().tfdist_one_bit_sum(
        received=received, shapes=list(shapes), parts=parts, payloads=payloads, N=len(shapes)
    )


def orthonormalize(matrix: tf.Tensor) -> tf.Tensor:
    """Makes the columns of a matrix orthonormal, with the same arithmetic on every machine.

    A column that depends linearly on earlier columns becomes an arbitrary one.

    Args:
      matrix: float32 `[rows, columns]`, columns <= rows.

    Returns:
      A matrix of the same shape.
    """
    return library.graph_ops().tfdist_orthonormalize(matrix=matrix)


def multiply_transposed(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Computes `left right^T`, with the same arithmetic on every machine.

    Args:
      left: float32 `[rows, rank]`, with few columns.
      right: float32 `[columns, rank]`.

    Returns:
      float32 `[rows, columns]`.
    """
    return library.graph_ops().tfdist_multiply_transposed(left=left, right=right)
