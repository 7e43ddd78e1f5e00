"""Releases resources without Python's lock."""

from __future__ import annotations

import tensorflow as tf

from tfdist.ops import library

_FUNCTIONS = library.CFunctions("tfdist_", plain={"release": [library.Handle]})


def hold(resource: tf.Tensor) -> int:
    """Keeps a resource of a CPU alive; returns the number that `release` takes.

    Args:
      resource: an eager tensor of dtype resource.
    """
    with tf.device("/device:CPU:0"):
        return int(library.graph_ops().tfdist_hold(resource))


def release(held: int) -> None:
    """Releases a resource. If nothing else uses it, waits for its destructor.

    Unlike the end of a tensor it lets other Python threads run meanwhile.

    Args:
      held: as from `hold`.
    """
    _FUNCTIONS.release(held)
