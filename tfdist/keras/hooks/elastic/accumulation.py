"""Elastic training with `gradient_accumulation_steps`: accumulators are the same on all members."""

from __future__ import annotations

from tfdist.internals.keras_3 import BaseOptimizer, TFOptimizer, Variable
from tfdist.keras.hooks.table_gradients import table_of
from tfdist.keras.registry import hooks
from tfdist.keras.workers import elastic_job_of, replica_of_ours


@hooks(BaseOptimizer, "_backend_apply_gradients")
def reduce_before_accumulating(original, self, grads, trainable_variables):
    """In elastic training gradients are reduced in each step, and their sums are accumulated.

    Keras accumulates the gradients of each replica. The gradients of a worker that dies would be
    lost.
    """
    replica = replica_of_ours()
    if (
        replica is None
        or elastic_job_of(replica.strategy) is None
        or not self.gradient_accumulation_steps
    ):
        return original(self, grads, trainable_variables)
    tables = [v.name for v in trainable_variables if table_of(v) is not None]
    if tables:
        raise ValueError(
            f"optimizer {self.name!r}: expected no gradient_accumulation_steps in an elastic job "
            f"with embedding tables ({', '.join(tables)}), received "
            f"{self.gradient_accumulation_steps}: the gradients of their rows that a worker has "
            "accumulated would be lost with it"
        )
    values = [v.value if isinstance(v, Variable) else v for v in trainable_variables]
    pairs = self._all_reduce_sum_gradients(zip(grads, values, strict=True))
    self.tfdist_gradients_are_sums = True
    try:
        return original(self, [grad for grad, _ in pairs], trainable_variables)
    finally:
        self.tfdist_gradients_are_sums = False


@hooks(TFOptimizer, "_all_reduce_sum_gradients")
def reduce_accumulated_once(original, self, grads_and_vars):
    """Gradients that were reduced before they were accumulated are not reduced again."""
    if getattr(self, "tfdist_gradients_are_sums", False):
        return list(grads_and_vars)
    return original(self, grads_and_vars)
