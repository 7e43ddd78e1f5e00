"""Elastic training: workers are killed, come back and leave, and the result stays the same.

    tfdist run --workers 1:3:3 keras_examples/elastic.py --output /tmp/elastic --kill 20 45

trains on Fashion-MNIST with three workers. After 20 and 45 steps the worker that is rank 0 then is
killed. The others continue, one of them as rank 0, and the launcher starts the killed one again:

    tfdist run: worker 0 failed: killed by SIGKILL; starting it again in 1 s (restarts left: 9)
    ...
    [worker 2] after 100 steps the weights' sum is ...

Without --kill, and in one process, it prints the same sum. The script is the same as any
multi-worker job's: all workers get the callbacks, and rank 0, whichever worker that is, writes the
files.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import common
import data
import keras
import numpy as np
import tensorflow as tf

import tfdist

BATCH = 192


def build_and_compile() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((data.SIDE, data.SIDE)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(data.CLASSES),
        ],
        name="images",
    )
    model.compile(
        optimizer=keras.optimizers.Adam(0.001),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="the folder of the checkpoints")
    parser.add_argument("--epochs", type=common.positive, default=4)
    parser.add_argument("--steps-per-epoch", type=common.positive, default=25)
    parser.add_argument(
        "--kill", type=common.positive, nargs="*", default=[], metavar="STEP", help="rank 0, then"
    )
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    arguments.output.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(7)

    # With `tfdist run --workers MIN:MAX` elastic; or tfdist.Elastic(min_workers=1, max_workers=3).
    strategy = tfdist.MultiWorkerMirroredStrategy()

    images = data.load_fashion_mnist(announce=strategy.is_chief)
    with strategy.scope():
        model = build_and_compile()
    batches = tf.data.Dataset.from_tensor_slices((images.train_images, images.train_labels))
    batches = batches.shuffle(len(images.train_images), seed=7).repeat().batch(BATCH)
    model.fit(
        batches,
        epochs=arguments.epochs,
        steps_per_epoch=arguments.steps_per_epoch,
        validation_data=(images.test_images[:1000], images.test_labels[:1000]),
        callbacks=[
            keras.callbacks.ModelCheckpoint(str(arguments.output / "epoch-{epoch:02d}.keras")),
            common.KillRankZero(arguments.kill, arguments.output),
        ],
        shuffle=False,  # the dataset shuffles
        verbose=2,  # shown by rank 0
    )
    if strategy.is_chief:
        total = sum(float(np.sum(weight, dtype=np.float64)) for weight in model.get_weights())
        steps = int(model.optimizer.iterations.numpy())
        print(f"after {steps} steps the weights' sum is {total:.3f}")


if __name__ == "__main__":
    main()
