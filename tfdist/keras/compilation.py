"""XLA, which cannot compile our ops."""

from __future__ import annotations

import functools
import sys


def keep_ops_from_xla() -> None:
    """keras-team/keras#19246: `jit_compile="auto"` chooses XLA for models that hold custom ops.

    Keras does not under a `tf.distribute` strategy, but a collective needs none. Where Keras has
    not been imported there is nothing to repair yet.
    """
    keras = sys.modules.get("keras")
    if keras is not None and keras.__version__[0] == "3":
        if keras.backend.backend() == "tensorflow":
            _repair()


@functools.cache
def _repair() -> None:
    from keras.src.trainers import trainer

    if hasattr(trainer.Trainer, "_resolve_auto_jit_compile"):
        trainer.Trainer._resolve_auto_jit_compile = lambda self: False
    elif hasattr(trainer, "resolve_auto_jit_compile"):  # in the first releases of Keras 3
        trainer.resolve_auto_jit_compile = lambda model: False
