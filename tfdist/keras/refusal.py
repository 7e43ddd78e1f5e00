"""What is refused of a Keras 3 that is too old to be repaired."""

from __future__ import annotations

import functools

import keras
import tensorflow as tf
from keras.src.trainers.trainer import Trainer

from tfdist.errors import UnsupportedKerasError
from tfdist.keras.workers import is_ours


def refuse_to_compile(oldest: str) -> None:
    """Before Keras 3.8 replicas' gradients are added up, under every strategy, as if averaged.

    `fit` would train with a learning rate that grows with the number of replicas. Keras 3.8 divides
    the loss by that number (`scale_loss_for_distribution`).

    Args:
      oldest: the first release that can be repaired, such as "3.8".
    """
    original = Trainer.compile

    @functools.wraps(original)
    def compile(self, *args, **kwargs):
        strategy = tf.distribute.get_strategy()
        if is_ours(strategy):
            raise UnsupportedKerasError(
                f"{type(strategy).__name__} trains models of Keras {oldest} or later, but Keras "
                f"{keras.__version__} is installed, which adds up the gradients of replicas "
                f"instead of averaging them. `pip install 'keras>={oldest}'` needs no other "
                "TensorFlow; tf_keras works as it is."
            )
        return original(self, *args, **kwargs)

    Trainer.compile = compile
