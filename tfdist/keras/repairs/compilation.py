"""Repair of `jit_compile="auto"`: XLA cannot compile tfdist's ops."""

from __future__ import annotations

from tfdist.internals.keras_3_trainer import Trainer, base_trainer
from tfdist.keras.registry import repairs

_ISSUE = "keras-team/keras#19246"

if hasattr(Trainer, "_resolve_auto_jit_compile"):

    @repairs(Trainer, "_resolve_auto_jit_compile", issue=_ISSUE)
    def keep_ops_from_xla(original, self):
        """`jit_compile="auto"` chooses XLA for models that hold custom ops.

        Keras does not under a `tf.distribute` strategy, but a collective needs none.
        """
        return False

elif hasattr(base_trainer, "resolve_auto_jit_compile"):

    @repairs(base_trainer, "resolve_auto_jit_compile", issue=_ISSUE)
    def keep_ops_from_xla_in_first_releases(original, model):
        """As `keep_ops_from_xla`, in the first releases of Keras 3."""
        return False
