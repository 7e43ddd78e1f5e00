"""Repairs of `add_loss`: each replica of a process has its own losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf
from keras import tree
from keras.layers import Layer

from tfdist.keras.registry import repairs
from tfdist.keras.workers import replica_with_peers

if TYPE_CHECKING:
    import numpy as np

_REPLICA = "_tfdist_replica"


def _index() -> np.ndarray | None:
    """Tells a replica from the others of this process; `None` if there are no others."""
    replica = replica_with_peers()
    if replica is None or len(replica.strategy.extended.worker_devices) < 2:
        return None
    return tf.get_static_value(replica.replica_id_in_sync_group)


@repairs(Layer, "add_loss")
def note_replica(original, self, loss):
    """The replicas of a process share a layer's list of losses, and each uses the losses of all.

    They meet within a forward pass where statistics are synchronized: all add their losses before
    one of them reads the list.
    """
    index = _index()
    for tensor in [] if index is None else tree.flatten(loss):
        setattr(tensor, _REPLICA, index)
    return original(self, loss)


@repairs(Layer, "_get_own_losses")
def own_losses(original, self):
    """A replica's losses are the losses of all replicas of its process."""
    index = _index()
    losses = original(self)
    if index is None:
        return losses
    return [loss for loss in losses if getattr(loss, _REPLICA, index) == index]


@repairs(Layer, "_clear_losses")
def clear_own_losses(original, self):
    """A replica that begins a forward pass drops the losses of the others."""
    index = _index()
    losses = [] if index is None else self._losses
    others = [loss for loss in losses if getattr(loss, _REPLICA, index) != index]
    original(self)
    self._losses.extend(others)
