"""The course of a multi-worker Keras job: train, back up, restart, save, use the model.

    tfdist run --workers 2 keras_examples/multi_worker_with_keras.py --output /tmp/job

prints once, from the chief:

    [worker 0] images: Fashion-MNIST in /usr/share/datasets/fashion-mnist
    [worker 0] Epoch 1/3
    ...
    [worker 0] saved /tmp/job/model.keras; read back, its test accuracy is about 0.8
    [worker 0] after 210 steps the weights' sum is ...

It is the job of TensorFlow's multi-worker Keras tutorial, with one line changed (marked below).
Stop it in the middle and run the same command again: it continues with the batch after the last
backup, and ends with the same weights. To see that, let it kill itself:

    tfdist run --workers 2 --restarts 1 keras_examples/multi_worker_with_keras.py \
        --output /tmp/killed --backup-every 20 --kill-after 90

prints the same sum of all weights as without --kill-after. Only the chief needs the output folder.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

import data
import keras
import numpy as np
import tensorflow as tf

import tfdist

BATCH_PER_WORKER = 64


def training_batches(images: np.ndarray, labels: np.ndarray, size: int) -> tf.data.Dataset:
    """Endless shuffled global batches of `size` images."""
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.shuffle(len(images), seed=7).repeat().batch(size).with_options(options)


def build_and_compile() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((data.SIDE, data.SIDE)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Reshape((data.SIDE, data.SIDE, 1)),
            keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(data.CLASSES),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def save(model: keras.Model, path: Path, is_chief: bool) -> None:
    """Saves the model to `path` on the chief.

    The others save too, to a temporary folder: variables that each worker updates itself, as some
    layers have, are reduced when they are read, and all workers must take part.
    """
    if is_chief:
        path.parent.mkdir(parents=True, exist_ok=True)
        model.save(path)
        return
    with tempfile.TemporaryDirectory() as scratch:
        model.save(Path(scratch, path.name))


class KillOnce(keras.callbacks.Callback):
    """Kills this process after a number of steps, unless one was killed before."""

    def __init__(self, steps: int, mark: Path) -> None:
        super().__init__()
        self._left, self._mark = steps, mark

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self._left -= 1
        if self._left == 0 and not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="the chief's folder")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps-per-epoch", type=int, default=70)
    parser.add_argument("--backup-every", type=int, help="steps; by default an epoch")
    parser.add_argument("--kill-after", type=int, help="steps until this job kills itself, once")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    keras.utils.set_random_seed(7)

    strategy = tfdist.MultiWorkerMirroredStrategy()  # was: tf.distribute.Multi...

    cluster = tfdist.Cluster.from_environment()
    images = data.load_fashion_mnist(announce=cluster.is_chief)
    size = BATCH_PER_WORKER * strategy.num_replicas_in_sync
    with strategy.scope():
        model = build_and_compile()

    # The same on every worker. tfdist keeps the chief's files only, and all workers resume from the
    # chief's backup.
    output = arguments.output
    callbacks = [
        keras.callbacks.BackupAndRestore(
            str(output / "backup"), save_freq=arguments.backup_every or "epoch"
        ),
        keras.callbacks.ModelCheckpoint(str(output / "epoch-{epoch:02d}.keras")),
    ]
    if arguments.kill_after is not None and cluster.is_chief:
        callbacks.append(KillOnce(arguments.kill_after, output / "killed"))
    model.fit(
        training_batches(images.train_images, images.train_labels, size),
        epochs=arguments.epochs,
        steps_per_epoch=arguments.steps_per_epoch,
        callbacks=callbacks,
        shuffle=False,  # the dataset shuffles
        verbose=0 if not cluster.is_chief else 1 if sys.stdout.isatty() else 2,
    )
    path = output / "model.keras"
    save(model, path, cluster.is_chief)

    if cluster.is_chief:
        # Loaded outside the strategy's scope: an ordinary model, without the other workers.
        single = keras.models.load_model(path)
        _, accuracy = single.evaluate(images.test_images, images.test_labels, 500, verbose=0)
        print(f"saved {path}; read back, its test accuracy is {accuracy:.2f}")
        total = sum(float(np.sum(weight, dtype=np.float64)) for weight in single.get_weights())
        print(f"after {int(single.optimizer.iterations)} steps the weights' sum is {total:.3f}")


if __name__ == "__main__":
    main()
