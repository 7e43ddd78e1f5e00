"""Tells the metrics of this task which runs update variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfdist.observe.metrics import counters

if TYPE_CHECKING:
    import tensorflow as tf

# For type checkers: a `tf.distribute.StrategyExtended` follows the mixin, and has no types.
_Base: Any = object


class NotedUpdates(_Base):
    """A mixin that notes updates of trainable variables: such a run is a training step.

    Comes before `tf.distribute.StrategyExtended` among the bases. Optimizers of Keras 3, tf_keras
    and TensorFlow 1 call these methods, and so do assignments to distributed variables.
    """

    def update(self, var, fn, args=(), kwargs=None, group=True):
        _note(var)
        return super().update(var, fn, args, kwargs, group)

    def _replica_ctx_update(self, var, fn, args=(), kwargs=None, group=True):
        _note(var)
        return super()._replica_ctx_update(var, fn, args, kwargs, group)


def _note(variable: tf.Variable) -> None:
    # tf_keras's counters of batches are "trainable" integers.
    if getattr(variable, "trainable", False) and not variable.dtype.is_integer:
        counters.note_update()
