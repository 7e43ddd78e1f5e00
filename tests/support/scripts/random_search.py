"""A random search: each trial trains another model; the best one is trained on all rows."""

import json
import os
import random
from pathlib import Path

import keras
import numpy as np
from sklearn.datasets import load_digits

import tfdist

OUTPUT = Path(os.environ.get("OUTPUT", "output"))
OUTPUT.mkdir(parents=True, exist_ok=True)
keras.backend.set_floatx("float64")
keras.utils.set_random_seed(3)
strategy = tfdist.MultiWorkerMirroredStrategy()

TRIALS = 5
x, y = load_digits(return_X_y=True)
x = x / 16.0
x_train, y_train, x_valid, y_valid = x[:300], y[:300], x[300:500], y[300:500]


def build(units, layers, optimizer, rate):
    with strategy.scope():
        model = keras.Sequential([keras.Input((64,))])
        for _ in range(layers):
            model.add(keras.layers.Dense(units, activation="relu"))
        model.add(keras.layers.Dense(10))
        chosen = {"adam": keras.optimizers.Adam, "sgd": keras.optimizers.SGD}[optimizer]
        model.compile(
            chosen(rate),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    return model


trials = []
for trial in range(TRIALS):
    parameters = {
        "units": random.choice([8, 16, 32]),
        "layers": random.choice([1, 2]),
        "optimizer": random.choice(["adam", "sgd"]),
        "rate": float(10 ** np.random.uniform(-2.5, -1.0)),
    }
    folder = OUTPUT / f"trial_{trial}"
    folder.mkdir(exist_ok=True)
    model = build(**parameters)
    try:
        history = model.fit(
            x_train,
            y_train,
            batch_size=48,
            epochs=5,
            validation_data=(x_valid, y_valid),
            verbose=0,
            callbacks=[
                keras.callbacks.ModelCheckpoint(
                    folder / "checkpoint.weights.h5",
                    monitor="val_accuracy",
                    save_best_only=True,
                    save_weights_only=True,
                ),
                keras.callbacks.EarlyStopping(monitor="val_loss", min_delta=0.05, patience=1),
            ],
        )
        score = max(history.history["val_accuracy"])
    except Exception as error:  # a trial that fails does not end the search
        print(f"decision: trial {trial} failed: {error}")
        score = 0.0
    trials.append({"parameters": parameters, "score": score})
    print(f"decision: trial {trial}: {json.dumps(parameters)}: {score:.3f}")

best = max(range(TRIALS), key=lambda trial: trials[trial]["score"])
print(f"decision: trial {best} is the best")
model = build(**trials[best]["parameters"])
model.load_weights(OUTPUT / f"trial_{best}" / "checkpoint.weights.h5")
model.fit(
    x[:500],
    y[:500],
    batch_size=48,
    epochs=3,
    verbose=0,
    callbacks=[keras.callbacks.CSVLogger(OUTPUT / "best.csv")],
)
loss, accuracy = model.evaluate(x[500:800], y[500:800], verbose=0)
print(f"decision: accuracy {accuracy:.3f}")
