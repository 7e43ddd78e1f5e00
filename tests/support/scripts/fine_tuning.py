"""Transfer: a base that knows five digits gets a new head; then its upper layers are unfrozen."""

import os
from pathlib import Path

import keras
import numpy as np
from sklearn.datasets import load_digits

import tfdist

OUTPUT = Path(os.environ.get("OUTPUT", "output"))
OUTPUT.mkdir(parents=True, exist_ok=True)
keras.backend.set_floatx("float64")
keras.utils.set_random_seed(7)
strategy = tfdist.MultiWorkerMirroredStrategy()

x, y = load_digits(return_X_y=True)
x = (x / 16.0).reshape(-1, 8, 8, 1)
of_base, of_task = np.flatnonzero(y < 5)[:320], np.flatnonzero(y >= 5)[:400]
x_task, y_task = x[of_task], y[of_task] - 5
x_train, y_train, x_test, y_test = x_task[:250], y_task[:250], x_task[250:], y_task[250:]

with strategy.scope():
    base = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(6, 3, activation="relu", name="lower"),
            keras.layers.BatchNormalization(synchronized=True, name="norm"),
            keras.layers.Conv2D(8, 3, activation="relu", name="upper"),
            keras.layers.GlobalAveragePooling2D(),
        ]
    )
    pretrained = keras.Sequential([base, keras.layers.Dense(5, activation="softmax")])
    pretrained.compile(
        keras.optimizers.Adam(0.02), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
pretrained.fit(
    x[of_base],
    y[of_base],
    batch_size=40,
    epochs=4,
    verbose=0,
    callbacks=[keras.callbacks.ModelCheckpoint(OUTPUT / "pretrained.keras")],
)

base.trainable = False
with strategy.scope():
    images = keras.Input((8, 8, 1))
    features = base(images, training=False)
    model = keras.Model(images, keras.layers.Dense(5, activation="softmax")(features))
    model.compile(
        keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
history = model.fit(
    x_train,
    y_train,
    batch_size=40,
    epochs=5,
    validation_data=(x_test, y_test),
    verbose=0,
    callbacks=[
        keras.callbacks.CSVLogger(OUTPUT / "fine_tuning.csv"),
        keras.callbacks.EarlyStopping(monitor="val_accuracy", min_delta=0.02, patience=1),
    ],
)
_, frozen = model.evaluate(x_test, y_test, verbose=0)
print(f"decision: with a frozen base after {history.epoch[-1] + 1} epochs: accuracy {frozen:.3f}")

base.trainable = True
for layer in base.layers:
    layer.trainable = layer.name == "upper" or (layer.name == "lower" and frozen < 0.6)
print(f"decision: unfrozen: {[layer.name for layer in base.layers if layer.trainable_weights]}")
with strategy.scope():
    model.compile(
        keras.optimizers.Adam(0.005), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
tuned = model.fit(
    x_train,
    y_train,
    batch_size=40,
    initial_epoch=history.epoch[-1] + 1,
    epochs=history.epoch[-1] + 6,
    validation_data=(x_test, y_test),
    verbose=0,
    callbacks=[
        keras.callbacks.CSVLogger(OUTPUT / "fine_tuning.csv", append=True),
        keras.callbacks.ReduceLROnPlateau(
            monitor="val_accuracy", min_delta=0.05, patience=1, factor=0.5
        ),
        keras.callbacks.ModelCheckpoint(
            OUTPUT / "tuned.keras", monitor="val_accuracy", save_best_only=True
        ),
        keras.callbacks.BackupAndRestore(OUTPUT / "backup"),
    ],
)
_, accuracy = model.evaluate(x_test, y_test, verbose=0)
print(f"decision: fine-tuned for epochs {tuned.epoch}: accuracy {accuracy:.3f}")
