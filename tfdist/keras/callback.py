"""The base class of tfdist's callbacks."""

from __future__ import annotations

import keras


class Callback(keras.callbacks.Callback):
    """A callback that `fit` of Keras 3 and of tf_keras takes."""

    # tf_keras asks which hooks a callback has.
    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False
