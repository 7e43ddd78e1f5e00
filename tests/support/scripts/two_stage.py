"""An autoencoder of digits, then a classifier of the codes that its encoder predicts."""

import os
from pathlib import Path

import keras
from sklearn.datasets import load_digits

import tfdist

OUTPUT = Path(os.environ.get("OUTPUT", "output"))
OUTPUT.mkdir(parents=True, exist_ok=True)
keras.backend.set_floatx("float64")
keras.utils.set_random_seed(1)
strategy = tfdist.MultiWorkerMirroredStrategy()

x, y = load_digits(return_X_y=True)
x = x / 16.0
x_train, y_train, x_test, y_test = x[:500], y[:500], x[500:800], y[500:800]

with strategy.scope():
    images = keras.Input((64,))
    codes = keras.layers.Dense(16, activation="tanh", name="codes")(images)
    copies = keras.layers.Dense(64, activation="sigmoid")(codes)
    encoder = keras.Model(images, codes)
    autoencoder = keras.Model(images, copies)
    autoencoder.compile(keras.optimizers.Adam(0.01), "mse")

autoencoder.fit(
    x_train,
    x_train,
    batch_size=48,
    epochs=6,
    validation_data=(x_test, x_test),
    verbose=0,
    callbacks=[
        keras.callbacks.ModelCheckpoint(OUTPUT / "autoencoder.keras", save_best_only=True),
        keras.callbacks.CSVLogger(OUTPUT / "autoencoder.csv"),
    ],
)

z_train = encoder.predict(x_train, batch_size=64, verbose=0)
z_test = encoder.predict(x_test, batch_size=64, verbose=0)
error = autoencoder.evaluate(x_test, x_test, batch_size=64, verbose=0)
print(f"decision: the autoencoder is {'good' if error < 0.03 else 'poor'}: {error:.4f}")

with strategy.scope():
    classifier = keras.Sequential(
        [
            keras.Input((16,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    classifier.compile(
        keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )

history = classifier.fit(
    z_train,
    y_train,
    batch_size=48,
    epochs=12,
    validation_data=(z_test, y_test),
    verbose=0,
    callbacks=[
        keras.callbacks.EarlyStopping(
            monitor="val_accuracy", min_delta=0.01, patience=2, restore_best_weights=True
        ),
        keras.callbacks.CSVLogger(OUTPUT / "classifier.csv"),
        keras.callbacks.BackupAndRestore(OUTPUT / "backup"),
    ],
)
_, accuracy = classifier.evaluate(z_test, y_test, verbose=0)
print(f"decision: stopped after {len(history.history['loss'])} epochs")
print(f"decision: accuracy {accuracy:.3f}")
