"""Many short calls of fit, each of one epoch; the script looks at the model between them."""

import os
from pathlib import Path

import keras
import numpy as np

import tfdist

OUTPUT = Path(os.environ.get("OUTPUT", "output"))
OUTPUT.mkdir(parents=True, exist_ok=True)
keras.backend.set_floatx("float64")
keras.utils.set_random_seed(10)
strategy = tfdist.MultiWorkerMirroredStrategy()

EPOCHS = 40
rows = np.random.default_rng(10)
x = rows.normal(size=(200, 6))
y = np.sin(x @ np.arange(1.0, 7.0) / 3.0)[:, None]

with strategy.scope():
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])

log = keras.callbacks.CSVLogger(OUTPUT / "epochs.csv", append=True)
losses = []
for epoch in range(EPOCHS):
    history = model.fit(
        x[:160],
        y[:160],
        batch_size=40,
        initial_epoch=epoch,
        epochs=epoch + 1,
        verbose=0,
        callbacks=[log],
    )
    losses.append(history.history["loss"][-1])
    if epoch % 10 == 9:
        error, _ = model.evaluate(x[160:], y[160:], verbose=0)
        is_better = losses[-1] < 0.9 * min(losses[:-5])
        print(f"decision: epoch {epoch}: {'better' if is_better else 'no better'}, {error:.3f}")
        if not is_better:
            model.optimizer.learning_rate = 0.5 * float(model.optimizer.learning_rate.numpy())
print(f"decision: the best epoch is {int(np.argmin(losses))}")
