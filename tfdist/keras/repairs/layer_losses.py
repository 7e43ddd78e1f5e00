"""Repairs of `add_loss`: each replica of a process has its own losses."""

from __future__ import annotations

from typing import Any

from keras import tree
from keras.layers import Layer

from tfdist.keras.registry import repairs
from tfdist.keras.workers import replica_with_peers

_DEVICES = "_tfdist_devices"


def _devices() -> Any:
    """What tells a replica from the others of this process; `None` outside of replicas."""
    replica = replica_with_peers()
    return None if replica is None else tuple(replica.devices)


@repairs(Layer, "add_loss")
def note_replica(original, self, loss):
    """The replicas of a process share a layer's list of losses, and each uses those of all.

    They meet within a forward pass where statistics are synchronized: all add their losses before
    one of them reads the list.
    """
    devices = _devices()
    for tensor in [] if devices is None else tree.flatten(loss):
        setattr(tensor, _DEVICES, devices)
    return original(self, loss)


@repairs(Layer, "_get_own_losses")
def own_losses(original, self):
    """A replica's losses are those of all replicas of its process."""
    devices = _devices()
    losses = original(self)
    if devices is None:
        return losses
    return [loss for loss in losses if getattr(loss, _DEVICES, devices) == devices]


@repairs(Layer, "_clear_losses")
def clear_own_losses(original, self):
    """A replica that begins a forward pass drops the losses of the others."""
    devices = _devices()
    losses = [] if devices is None else self._losses
    others = [loss for loss in losses if getattr(loss, _DEVICES, devices) != devices]
    original(self)
    self._losses.extend(others)
