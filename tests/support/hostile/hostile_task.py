"""A task of the job of test_hostile_soak.py: `python hostile_task.py FOLDER PAUSE`.

The workers train until the step in FOLDER/stop; the chief writes its steps to FOLDER/step, and the
weights and rows in the end to FOLDER/result.npz.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.layers import Embedding

# Ranks of the job: two tasks train; the others are hostile members.
WORKERS, TRAINING = 4, 2
IDS, WIDTH, PER_EXAMPLE, BATCH = 2000, 8, 3, 64
OPTIONS = {"mode": "sync", "num_aggregate": TRAINING, "epoch_timeout": 0.0}


class UntilTold(keras.callbacks.Callback):
    """Ends training after the step in the file `stop`, once there is one."""

    def __init__(self, folder: Path, tells: bool, pause: float) -> None:
        super().__init__()
        self._folder = folder
        self._tells = tells
        self._pause = pause
        self._steps = 0

    def on_train_batch_end(self, batch, logs=None) -> None:
        self._steps += 1
        time.sleep(self._pause)
        if self._tells and self._steps % 10 == 0:
            write(self._folder / "step", str(self._steps))
        stop = self._folder / "stop"
        if stop.exists():
            last = int(stop.read_text())
            assert self._steps <= last, f"step {last} has passed: this is step {self._steps}"
            self.model.stop_training = self._steps == last


def write(path: Path, text: str) -> None:
    """Writes a file in one step."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text)
    new.replace(path)


def examples() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(5)
    ids = np.minimum(random.zipf(1.2, (4096, PER_EXAMPLE)), IDS) - 1
    return ids, random.normal(size=(4096, 1)).astype("float32")


def main() -> None:
    folder, pause = Path(sys.argv[1]), float(sys.argv[2])
    keras.utils.set_random_seed(1)
    strategy = tfdist.ParameterServerStrategy(
        checkpoint_dir=str(folder / "snapshots"), checkpoint_every=60.0, **OPTIONS
    )
    with strategy.scope():
        rows = Embedding(None, WIDTH, "adam", keras.initializers.Constant(0.1), name="rows")
        layers = [rows, keras.layers.Flatten(), keras.layers.Dense(16, "relu")]
        inputs = keras.Input((PER_EXAMPLE,), dtype="int64")
        model = keras.Sequential([inputs, *layers, keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.001), "mse")
    batches = tf.data.Dataset.from_tensor_slices(examples()).repeat().batch(BATCH)
    callback = UntilTold(folder, strategy.is_chief, pause)
    model.fit(batches, steps_per_epoch=10**9, verbose=0, callbacks=[callback])
    # The last step of both, not of this one only.
    weights = model.get_weights()
    if strategy.is_chief:
        found = rows.table.fetch(np.arange(IDS), default=np.nan)
        np.savez(folder / "new.npz", *weights, rows=np.asarray(found))
        (folder / "new.npz").rename(folder / "result.npz")


if __name__ == "__main__":
    main()
