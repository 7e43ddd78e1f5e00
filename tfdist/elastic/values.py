"""Variables and texts that one member sends to the others."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfdist import ops
from tfdist.elastic.atomic_step import read, type_of

# Values are sent in messages of about this size, so that few are held twice.
_BYTES_PER_MESSAGE = 64 << 20


def fingerprint(handles: Sequence[tf.Tensor]) -> int:
    """Returns a number in [0, 2**63) that tells lists of variables apart by dtypes and shapes.

    Args:
      handles: the variables' resources.
    """
    kinds = [(dtype.name, str(shape)) for dtype, shape in filter(None, map(type_of, handles))]
    digest = hashlib.blake2b(repr(kinds).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def broadcast_values(
    handles: Sequence[tf.Tensor], communicator: ops.Communicator, root: int, label: str
) -> list[tf.Tensor]:
    """Returns the values that variables have on one rank; all ranks call it together.

    Args:
      handles: the variables' resources, the same list on every rank.
      communicator: the ranks.
      root: the rank whose values are sent.
      label: the name in error messages.

    Raises:
      tf.errors.OpError: as for any collective.
    """
    values: list[tf.Tensor] = []
    with tf.device("/device:CPU:0"):
        for message in _messages(handles):
            own = [tf.identity(read(handle)) for handle in message]
            values += ops.broadcast(own, communicator, root, label=label)
    return values


def assign_values(handles: Sequence[tf.Tensor], values: Sequence[tf.Tensor]) -> None:
    """Assigns values to the variables of resources."""
    for handle, value in zip(handles, values, strict=True):
        with tf.device(handle.device):
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def broadcast_bytes(content: bytes, communicator: ops.Communicator, root: int, label: str) -> bytes:
    """Returns the bytes that one rank has; all ranks call it together.

    Args:
      content: of the root; other ranks' is ignored.
      communicator: the ranks.
      root: the rank whose bytes are sent.
      label: the name in error messages.

    Raises:
      tf.errors.OpError: as for any collective.
    """
    is_root = communicator.rank == root
    with tf.device("/device:CPU:0"):
        size = tf.constant([len(content) if is_root else 0], tf.int64)
        (size,) = ops.broadcast(size, communicator, root, label=label).numpy()
        own = np.frombuffer(content, np.uint8) if is_root else np.zeros(size, np.uint8)
        return ops.broadcast(tf.constant(own), communicator, root, label=label).numpy().tobytes()


def _messages(handles: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
    messages: list[list[tf.Tensor]] = []
    filled = _BYTES_PER_MESSAGE
    for handle in handles:
        found = type_of(handle)
        assert found is not None
        dtype, shape = found
        if filled >= _BYTES_PER_MESSAGE:
            messages.append([])
            filled = 0
        messages[-1].append(handle)
        filled += (shape.num_elements() or 0) * dtype.size
    return messages
