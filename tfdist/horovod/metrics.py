"""The callback that averages metrics over the ranks."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfdist import ops
from tfdist.job import process
from tfdist.keras.callback import Callback


class MetricAverageCallback(Callback):
    """Replaces an epoch's metrics by their mean over all ranks.

    Every rank has the same weight, regardless of the number of examples it has seen. Callbacks that
    read metrics, such as `ReduceLROnPlateau` and `ModelCheckpoint`, come after this one in the
    list, so that they decide by the same numbers on all ranks.

    Example:
      model.fit(data, callbacks=[tfdist.callbacks.MetricAverageCallback(), *others])
    """

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Averages `logs` in place."""
        if logs is None:
            return
        numbers = sorted(name for name, value in logs.items() if np.ndim(value) == 0)
        if not numbers or process.size() == 1:
            return
        own = tf.constant([float(logs[name]) for name in numbers], tf.float64)
        label = f"metrics of epoch {epoch + 1}: {', '.join(numbers)}"
        means = ops.all_reduce(own, reduce_op="mean", label=label).numpy()
        logs.update(zip(numbers, means.tolist(), strict=True))
