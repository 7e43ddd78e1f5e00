"""Self-training: rows that the model is sure of get its labels, and it is trained again."""

import os
from pathlib import Path

import keras
import numpy as np
from sklearn.datasets import load_digits

import tfdist

OUTPUT = Path(os.environ.get("OUTPUT", "output"))
OUTPUT.mkdir(parents=True, exist_ok=True)
keras.backend.set_floatx("float64")
keras.utils.set_random_seed(6)
strategy = tfdist.MultiWorkerMirroredStrategy()

x, y = load_digits(return_X_y=True)
x = x / 16.0
x_known, y_known, x_open = x[:150], y[:150], x[150:550]
x_test, y_test = x[550:800], y[550:800]

with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )

counts = []
x_train, y_train = x_known, y_known
for turn in range(5):
    model.fit(
        x_train,
        y_train,
        batch_size=40,
        epochs=6 if turn == 0 else 3,
        validation_data=(x_test, y_test),
        verbose=0,
        callbacks=[
            keras.callbacks.EarlyStopping(monitor="val_loss", patience=1, min_delta=0.01),
            keras.callbacks.CSVLogger(OUTPUT / f"turn_{turn}.csv"),
            keras.callbacks.ModelCheckpoint(OUTPUT / f"turn_{turn}.keras", save_best_only=True),
            keras.callbacks.BackupAndRestore(OUTPUT / "backup", save_freq=4),
        ],
    )
    probabilities = model.predict(x_open, batch_size=80, verbose=0)
    is_sure = probabilities.max(axis=1) > 0.8
    x_train = np.concatenate([x_known, x_open[is_sure]])
    y_train = np.concatenate([y_known, probabilities[is_sure].argmax(axis=1)])
    counts.append(int(is_sure.sum()))
    loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
    print(f"decision: turn {turn}: {counts[-1]} pseudo-labels, accuracy {accuracy:.3f}")
    if turn > 0 and counts[-1] < counts[-2]:
        print("decision: no more pseudo-labels")
        break
