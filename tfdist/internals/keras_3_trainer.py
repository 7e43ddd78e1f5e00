"""The classes that train models of Keras 3, of all its releases; `keras_3` needs Keras 3.8."""

import keras
from keras.src.trainers import trainer as base_trainer

from tfdist.errors import UnsupportedKerasError
from tfdist.internals.missing import told

with told("keras.src", f"Keras {keras.__version__}", UnsupportedKerasError):
    if hasattr(base_trainer, "Trainer"):
        from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
        from keras.src.trainers.trainer import Trainer
    else:  # since Keras 3.16
        from keras.src.backend.tensorflow.trainer import Trainer as TensorFlowTrainer
        from keras.src.trainers.trainer import BaseTrainer as Trainer

__all__ = ["TensorFlowTrainer", "Trainer", "base_trainer"]
