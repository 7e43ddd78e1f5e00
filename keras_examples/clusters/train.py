"""A training that any cluster may interrupt: Fashion-MNIST, saved at a preemption notice.

    srun python keras_examples/clusters/train.py --output run
    mpirun -np 4 python keras_examples/clusters/train.py --output run

Started again with the same --output, it continues with the batch after the last one. Its last line
is

    after 2000 steps the weights' sum is ...

and the sum is the same, up to rounding, with any number of workers and interruptions.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfdist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import data
from common import positive

BATCH = 192


def build_and_compile() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((data.SIDE, data.SIDE)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Flatten(),
            # Smooth: at the bend of a ReLU, the rounding of sums decides about a whole gradient.
            keras.layers.Dense(64, activation="tanh"),
            keras.layers.Dense(data.CLASSES),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(0.05),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def train(output: str, epochs: int, steps_per_epoch: int) -> float:
    """Trains as one worker of the job that this process is started in.

    Args:
      output: the folder of the backup, which all workers share.
      epochs: the number of epochs.
      steps_per_epoch: steps in each.

    Returns:
      The sum of all weights.
    """
    keras.utils.set_random_seed(7)
    strategy = tfdist.MultiWorkerMirroredStrategy()
    images = data.load_fashion_mnist(announce=strategy.is_chief)
    with strategy.scope():
        model = build_and_compile()
    batches = tf.data.Dataset.from_tensor_slices((images.train_images, images.train_labels))
    model.fit(
        batches.shuffle(len(images.train_images), seed=7).repeat().batch(BATCH),
        epochs=epochs,
        steps_per_epoch=steps_per_epoch,
        callbacks=[keras.callbacks.BackupAndRestore(f"{output}/backup")],
        shuffle=False,  # the dataset shuffles
        verbose=2,
    )
    total = sum(float(np.sum(weight, dtype=np.float64)) for weight in model.get_weights())
    if strategy.is_chief:
        steps = int(model.optimizer.iterations.numpy())
        print(f"after {steps} steps the weights' sum is {total:.2f}", flush=True)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", required=True, help="the folder of the backup")
    parser.add_argument("--epochs", type=positive, default=40)
    parser.add_argument("--steps-per-epoch", type=positive, default=50)
    arguments = parser.parse_args()
    train(arguments.output, arguments.epochs, arguments.steps_per_epoch)


if __name__ == "__main__":
    main()
