"""Averages of weights at the end of the training: SwapEMAWeights, then SWA by a callback."""

import os
from pathlib import Path

import keras
from sklearn.datasets import load_digits

import tfdist

OUTPUT = Path(os.environ.get("OUTPUT", "output"))
OUTPUT.mkdir(parents=True, exist_ok=True)
keras.backend.set_floatx("float64")
keras.utils.set_random_seed(8)
strategy = tfdist.MultiWorkerMirroredStrategy()


class StochasticWeightAveraging(keras.callbacks.Callback):
    """Averages the weights of the last epochs; the model has the average in the end."""

    def __init__(self, begin):
        super().__init__()
        self.begin = begin
        self.count = 0
        self.average = None

    def on_epoch_end(self, epoch, logs=None):
        if epoch < self.begin:
            return
        weights = self.model.get_weights()
        if self.average is None:
            self.average = [weight * 0.0 for weight in weights]
        self.count += 1
        for mean, weight in zip(self.average, weights, strict=True):
            mean += (weight - mean) / self.count

    def on_train_end(self, logs=None):
        self.model.set_weights(self.average)


def build(use_ema):
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(32, activation="relu"),
                keras.layers.Dense(10, activation="softmax"),
            ]
        )
        model.compile(
            keras.optimizers.Adam(0.01, use_ema=use_ema, ema_momentum=0.9),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
    return model


x, y = load_digits(return_X_y=True)
x = x / 16.0
data = {"x": x[:400], "y": y[:400], "batch_size": 40, "verbose": 0}
test = {"x": x[400:600], "y": y[400:600], "verbose": 0}

with_ema = build(use_ema=True)
with_ema.fit(
    **data,
    epochs=8,
    validation_data=(test["x"], test["y"]),
    callbacks=[
        keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
        keras.callbacks.ModelCheckpoint(OUTPUT / "ema.keras", save_best_only=True),
        keras.callbacks.CSVLogger(OUTPUT / "ema.csv"),
    ],
)
of_ema = with_ema.evaluate(**test)[1]

with_swa = build(use_ema=False)
with_swa.fit(
    **data,
    epochs=10,
    callbacks=[
        StochasticWeightAveraging(begin=4),
        keras.callbacks.CSVLogger(OUTPUT / "swa.csv"),
    ],
)
of_swa = with_swa.evaluate(**test)[1]

print(f"decision: accuracy {of_ema:.3f} with EMA, {of_swa:.3f} with SWA")
print(f"decision: {'SWA' if of_swa > of_ema else 'EMA'} is the better one")
