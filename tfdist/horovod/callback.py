"""What the callbacks of this package have in common."""

from __future__ import annotations

import keras


class Callback(keras.callbacks.Callback):
    """A callback that `fit` of Keras 3 takes, and that of tf_keras."""

    # Which hooks there are, for tf_keras.
    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False
