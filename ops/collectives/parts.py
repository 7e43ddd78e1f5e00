"""All-gather of parts of known sizes: each tensor is a flat vector, cut as by reduce_scatter.

Unlike `all_gather`, these exchange no numbers of rows first.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdist.ops import library
from tfdist.ops.collectives.calls import attributes
from tfdist.ops.collectives.communicator import Communicator


def all_gather_parts(
    parts: Sequence[tf.Tensor],
    shapes: Sequence[tf.TensorShape],
    communicator: Communicator,
    *,
    label: str = "all_gather_parts",
    timeout: float | None = None,
) -> list[tf.Tensor]:
    """Returns tensors of which each rank gives a part; they travel as one message.

    The gradient of a part is the part of the sum of all ranks' gradients.

    Args:
      parts: of each tensor this rank's part, of one floating-point dtype and one dimension.
      shapes: of the tensors.
      communicator: the ranks.
      label: the collective's name in error messages.
      timeout: as for `all_reduce`.

    Returns:
      The tensors, the same on every rank.

    Raises:
      tf.errors.InvalidArgumentError: a part has another size, or the ranks have other shapes.

    Raises also the errors of `all_reduce`.
    """
    outputs = library.graph_ops().tfdist_all_gather_parts(
        parts=list(parts), shapes=list(shapes), **attributes(communicator, label, timeout)
    )
    return list(outputs)


def all_gather_into(
    variables: Sequence[tf.Variable],
    parts: Sequence[tf.Tensor],
    communicator: Communicator,
    *,
    label: str = "all_gather_into",
    timeout: float | None = None,
) -> tf.Operation | None:
    """Assigns variables of which each rank gives a part; they travel as one message.

    The values are received in the variables' own memory. After a failure they are partly those
    before. In a `tf.function` it runs after earlier reads of the variables, and before later ones.

    Args:
      variables: of one floating-point dtype, on the CPU.
      parts: of each variable this rank's part, of the same dtype and one dimension.
      communicator: the ranks.
      label: the collective's name in error messages.
      timeout: as for `all_reduce`.

    Returns:
      None; in a graph the operation that assigns.

    Raises:
      tf.errors.InvalidArgumentError: a part has another size, or the ranks have other variables.

    Raises also the errors of `all_reduce`.
    """
    return library.graph_ops().tfdist_all_gather_into(
        variables=[variable.handle for variable in variables],
        parts=list(parts),
        **attributes(communicator, label, timeout),
    )
