"""Models that were made in `deferred` get their values when `fit` begins."""

from __future__ import annotations

from tfdist.internals.keras_3_trainer import TensorFlowTrainer
from tfdist.keras.deferred_models import initialize, is_deferred
from tfdist.keras.registry import hooks
from tfdist.keras.workers import is_ours


@hooks(TensorFlowTrainer, "_maybe_symbolic_build")
def initialize_deferred_models(original, self, iterator=None, data_batch=None):
    """A model that was made in `tfdist.keras.deferred` gets its values when `fit` begins."""
    strategy = self._distribute_strategy
    if is_ours(strategy) and any(map(is_deferred, self.variables)):
        with strategy.scope():
            initialize(self)
    return original(self, iterator=iterator, data_batch=data_batch)
