"""The extended class of `OneDeviceStrategy`, which TensorFlow calls."""

from __future__ import annotations

# See mirrored_strategy.py for why these.
from tfdist.internals.tensorflow import one_device_strategy
from tfdist.strategies._noted_updates import NotedUpdates


class OneDeviceExtended(NotedUpdates, one_device_strategy.OneDeviceExtended):
    """TensorFlow's own, whose training steps are counted."""
