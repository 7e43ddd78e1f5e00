"""A curriculum: each stage adds the rows that the model finds easiest, by its own loss."""

import os
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import tfdist

OUTPUT = Path(os.environ.get("OUTPUT", "output"))
OUTPUT.mkdir(parents=True, exist_ok=True)
keras.backend.set_floatx("float64")
keras.utils.set_random_seed(5)
strategy = tfdist.MultiWorkerMirroredStrategy()

x, y = load_digits(return_X_y=True)
x = x / 16.0
x_train, y_train, x_test, y_test = x[:480], y[:480], x[480:700], y[480:700]

with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.005), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )

order = np.arange(len(x_train))
accuracies = []
for stage, rows in enumerate((96, 192, 320, 480)):
    chosen = order[:rows]
    batches = tf.data.Dataset.from_tensor_slices((x_train[chosen], y_train[chosen]))
    batches = batches.shuffle(rows, seed=stage).batch(32)
    model.fit(
        batches,
        epochs=4,
        validation_data=(x_test, y_test),
        verbose=0,
        callbacks=[
            keras.callbacks.CSVLogger(OUTPUT / "stages.csv", append=stage > 0),
            keras.callbacks.ReduceLROnPlateau(
                monitor="val_accuracy", min_delta=0.03, patience=1, factor=0.7
            ),
            keras.callbacks.ModelCheckpoint(
                OUTPUT / "stage_{epoch:02d}.weights.h5", save_weights_only=True
            ),
        ],
    )
    # The next stage begins with the rows that are easiest now.
    of_labels = model.predict(x_train, batch_size=96, verbose=0)[np.arange(len(y_train)), y_train]
    order = np.argsort(-of_labels, kind="stable")
    accuracies.append(model.evaluate(x_test, y_test, verbose=0)[1])
    print(f"decision: stage {stage}: the easiest rows are {order[:3].tolist()}")
    print(f"decision: stage {stage}: accuracy {accuracies[-1]:.3f}")
