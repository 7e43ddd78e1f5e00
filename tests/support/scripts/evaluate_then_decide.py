"""Two candidates; the better one is trained until it is good enough, with a smaller rate."""

import os
from pathlib import Path

import keras
from sklearn.datasets import load_digits

import tfdist

OUTPUT = Path(os.environ.get("OUTPUT", "output"))
OUTPUT.mkdir(parents=True, exist_ok=True)
keras.backend.set_floatx("float64")
keras.utils.set_random_seed(9)
strategy = tfdist.MultiWorkerMirroredStrategy()

x, y = load_digits(return_X_y=True)
x = x / 16.0
x_train, y_train, x_test, y_test = x[:400], y[:400], x[400:600], y[400:600]


def candidate(activation, units):
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(units, activation=activation),
                keras.layers.Dense(10, activation="softmax"),
            ]
        )
        model.compile(
            keras.optimizers.Adam(0.003), "sparse_categorical_crossentropy", metrics=["accuracy"]
        )
    model.fit(
        x_train,
        y_train,
        batch_size=40,
        epochs=4,
        verbose=0,
        callbacks=[keras.callbacks.CSVLogger(OUTPUT / f"{activation}.csv")],
    )
    return model


wide, narrow = candidate("relu", 32), candidate("tanh", 12)
of_wide = wide.evaluate(x_test, y_test, batch_size=50, return_dict=True, verbose=0)
of_narrow = narrow.evaluate(x_test, y_test, batch_size=50, return_dict=True, verbose=0)
is_wide = of_wide["accuracy"] >= of_narrow["accuracy"]
model = wide if is_wide else narrow
print(f"decision: {of_wide['accuracy']:.3f}, {of_narrow['accuracy']:.3f}: keep {model.name}")

accuracy, turns, best = model.evaluate(x_test, y_test, verbose=0)[1], 0, 0.0
while accuracy < 0.96 and turns < 10:
    model.fit(
        x_train,
        y_train,
        batch_size=40,
        epochs=2,
        verbose=0,
        callbacks=[
            keras.callbacks.CSVLogger(OUTPUT / "turns.csv", append=True),
            keras.callbacks.BackupAndRestore(OUTPUT / f"backup_{turns}"),
        ],
    )
    accuracy = model.evaluate(x_test, y_test, batch_size=50, verbose=0)[1]
    turns += 1
    if accuracy <= best:
        model.optimizer.learning_rate = 0.5 * float(model.optimizer.learning_rate.numpy())
        print(f"decision: turn {turns}: a smaller rate")
    best = max(best, accuracy)
    print(f"decision: turn {turns}: accuracy {accuracy:.3f}")
print(f"decision: {turns} turns were enough")
