"""`fit` with a distributed optimizer counts the rows of its steps, for the metrics of its task.

The optimizer counts the step itself, but does not see the batch.
"""

from __future__ import annotations

from tfdist._types import KerasOptimizer
from tfdist.internals.keras_3_trainer import Trainer
from tfdist.keras.registry import hooks
from tfdist.observe.metrics.counters import count_samples


@hooks(Trainer, "compute_loss")
def count_rows(original, self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
    """A training step with `tfdist.DistributedOptimizer` counts the rows of its batch."""
    if training and _is_distributed(getattr(self, "optimizer", None)):
        count_samples((x, y))
    return original(self, x, y, y_pred, sample_weight, training)


def _is_distributed(optimizer: KerasOptimizer) -> bool:
    # A LossScaleOptimizer has it inside.
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return hasattr(inner, "is_finite_on_all_ranks")
