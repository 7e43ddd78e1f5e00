"""Repair of `jit_compile="auto"`: XLA cannot compile tfdist's ops."""

from __future__ import annotations

from keras.src.trainers import trainer

from tfdist.keras.registry import repairs

_ISSUE = "keras-team/keras#19246"

if hasattr(trainer.Trainer, "_resolve_auto_jit_compile"):

    @repairs(trainer.Trainer, "_resolve_auto_jit_compile", issue=_ISSUE)
    def keep_ops_from_xla(original, self):
        """`jit_compile="auto"` chooses XLA for models that hold custom ops.

        Keras does not under a `tf.distribute` strategy, but a collective needs none.
        """
        return False

elif hasattr(trainer, "resolve_auto_jit_compile"):

    @repairs(trainer, "resolve_auto_jit_compile", issue=_ISSUE)
    def keep_ops_from_xla_in_first_releases(original, model):
        """As `keep_ops_from_xla`, in the first releases of Keras 3."""
        return False
