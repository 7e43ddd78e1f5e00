"""Refuses models of a Keras 3 that is too old to be repaired."""

from __future__ import annotations

import keras
import tensorflow as tf

from tfdist._version import MIN_KERAS
from tfdist.errors import UnsupportedKerasError
from tfdist.internals.keras_3_trainer import Trainer
from tfdist.keras.registry import hooks
from tfdist.keras.workers import is_ours


@hooks(Trainer, "compile", until="3.7")
def refuse_to_compile(original, self, *args, **kwargs):
    """`compile` refuses models of a Keras older than 3.8 in the scope of our strategies.

    Before Keras 3.8 replicas' gradients are added up, under every strategy, as if averaged. `fit`
    would train with a learning rate that grows with the number of replicas. Keras 3.8 divides the
    loss by that number (`scale_loss_for_distribution`).
    """
    strategy = tf.distribute.get_strategy()
    if is_ours(strategy):
        oldest = ".".join(map(str, MIN_KERAS))
        raise UnsupportedKerasError(
            f"{type(strategy).__name__} trains models of Keras {oldest} or later, but Keras "
            f"{keras.__version__} is installed, which adds up the gradients of replicas "
            f"instead of averaging them. `pip install 'keras>={oldest}'` needs no other "
            "TensorFlow; tf_keras works as it is."
        )
    return original(self, *args, **kwargs)
