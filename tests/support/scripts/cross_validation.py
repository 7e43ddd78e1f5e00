"""Cross-validation: a new model for each of four folds, and a prediction for each row."""

import os
from pathlib import Path

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import KFold

import tfdist

OUTPUT = Path(os.environ.get("OUTPUT", "output"))
OUTPUT.mkdir(parents=True, exist_ok=True)
keras.backend.set_floatx("float64")
keras.utils.set_random_seed(4)
strategy = tfdist.MultiWorkerMirroredStrategy()

x, y = load_digits(return_X_y=True)
x, y = x[:400] / 16.0, y[:400]
predictions = np.zeros((len(x), 10))
scores = []

for fold, (train, test) in enumerate(KFold(4, shuffle=True, random_state=4).split(x)):
    keras.backend.clear_session()
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(24, activation="relu"),
                keras.layers.Dense(10, activation="softmax"),
            ]
        )
        model.compile(
            keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"]
        )
    checkpoint = OUTPUT / f"fold_{fold}.weights.h5"
    history = model.fit(
        x[train],
        y[train],
        batch_size=32,
        epochs=6,
        validation_data=(x[test], y[test]),
        verbose=0,
        callbacks=[
            keras.callbacks.ModelCheckpoint(
                checkpoint, monitor="val_loss", save_best_only=True, save_weights_only=True
            ),
            keras.callbacks.ReduceLROnPlateau(min_delta=0.2, patience=1, factor=0.5),
            keras.callbacks.CSVLogger(OUTPUT / f"fold_{fold}.csv"),
        ],
    )
    model.load_weights(checkpoint)
    loss, accuracy = model.evaluate(x[test], y[test], batch_size=32, verbose=0)
    predictions[test] = model.predict(x[test], batch_size=32, verbose=0)
    scores.append(accuracy)
    print(f"decision: fold {fold}: accuracy {accuracy:.3f}")

total = float(np.mean(np.argmax(predictions, axis=1) == y))
print(f"decision: mean accuracy {np.mean(scores):.3f}, over all rows {total:.3f}")
print(f"decision: the best fold is {int(np.argmax(scores))}")
