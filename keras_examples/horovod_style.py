"""Fashion-MNIST with Horovod's interface: no strategy, each worker trains on its own images.

    tfdist run --workers 2 keras_examples/horovod_style.py

prints (on two cores, in about a minute):

    [worker 0] images: Fashion-MNIST in /usr/share/datasets/fashion-mnist
    [worker 0] 2 workers, 468 steps of 64 images each an epoch; learning rate 0.1
    [worker 0] Epoch 1/3
    ...
    [worker 0] test accuracy: 0.88

With `--loop` it trains in a custom loop instead of `fit`. Lines that differ from a Horovod script
are marked with the original; docs/start/porting.md has the details. Without `tfdist run` the same
script trains alone.
"""

from __future__ import annotations

import argparse
import sys

import data
import keras
import numpy as np
import tensorflow as tf
from common import SEED, positive, training_parser

import tfdist  # was: import horovod.tensorflow.keras as hvd

RATE = 0.05  # for the batch of one worker


def parse_arguments() -> argparse.Namespace:
    parser = training_parser(__doc__, epochs=3, batch_size=64, together="in each worker")
    parser.add_argument("--loop", action="store_true", help="train in a loop instead of fit")
    parser.add_argument("--passes", type=positive, default=1, help="backward passes per step")
    return parser.parse_args()


def build_model() -> keras.Model:
    """Two convolutions that halve the image, normalized over the batches of all workers."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((data.SIDE, data.SIDE)),
            layers.Rescaling(1 / 255),
            layers.Reshape((data.SIDE, data.SIDE, 1)),
            layers.Conv2D(16, 5, strides=2, padding="same", use_bias=False),
            tfdist.SyncBatchNormalization(momentum=0.9),  # was: hvd.SyncBatchNormalization
            layers.ReLU(),
            layers.Conv2D(32, 3, strides=2, padding="same", use_bias=False),
            tfdist.SyncBatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dense(data.CLASSES),
        ]
    )


def own_batches(images: np.ndarray, labels: np.ndarray, size: int) -> tf.data.Dataset:
    """Endless shuffled batches of this worker's images, every N-th image."""
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    dataset = dataset.shard(tfdist.size(), tfdist.rank())  # was: hvd.size(), hvd.rank()
    return dataset.shuffle(len(images), seed=SEED).repeat().batch(size).prefetch(2)


def train_with_fit(model: keras.Model, batches: tf.data.Dataset, epochs: int, steps: int) -> None:
    callbacks = [  # all three were hvd.callbacks
        tfdist.callbacks.BroadcastGlobalVariablesCallback(0),
        tfdist.callbacks.MetricAverageCallback(),
        tfdist.callbacks.LearningRateWarmupCallback(RATE * tfdist.size(), warmup_epochs=1),
    ]
    is_first = tfdist.rank() == 0
    model.fit(
        batches,
        epochs=epochs,
        steps_per_epoch=steps,
        callbacks=callbacks,
        shuffle=False,  # the dataset shuffles
        verbose=(1 if sys.stdout.isatty() else 2) if is_first else 0,
    )


def train_in_a_loop(model: keras.Model, batches: tf.data.Dataset, epochs: int, steps: int) -> None:
    variables = model.trainable_variables
    model.optimizer.build(variables)
    # was: hvd.broadcast_variables
    tfdist.broadcast_variables([*model.weights, *model.optimizer.variables], root_rank=0)

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = model.loss(labels, model(images, training=True))
        # The optimizer is distributed. With an ordinary one, this line goes here:
        # tape = tfdist.DistributedGradientTape(tape)  # was: hvd.DistributedGradientTape
        model.optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    batches = iter(batches)
    for epoch in range(epochs):
        loss = tf.reduce_mean([step(*next(batches)) for _ in range(steps)])
        mean = tfdist.ops.all_reduce(loss, reduce_op="mean")  # was: hvd.allreduce(loss)
        if tfdist.rank() == 0:
            print(f"Epoch {epoch + 1}/{epochs}: loss {float(mean):.4f}", flush=True)


def main() -> None:
    arguments = parse_arguments()
    tfdist.init()  # was: hvd.init()
    is_first, workers = tfdist.rank() == 0, tfdist.size()
    images = data.load_fashion_mnist(announce=is_first)
    train_images = images.train_images[: arguments.limit]
    train_labels = images.train_labels[: arguments.limit]
    size = max(1, min(arguments.batch_size, len(train_images) // workers))
    steps = len(train_images) // (size * workers)

    keras.utils.set_random_seed(SEED + tfdist.rank())
    model = build_model()
    optimizer = tfdist.DistributedOptimizer(  # was: hvd.DistributedOptimizer
        keras.optimizers.SGD(RATE * workers, momentum=0.9),
        backward_passes_per_step=arguments.passes,
        average_aggregated_gradients=True,
    )
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    if is_first:
        print(
            f"{workers} worker{'s' * (workers > 1)}, {steps} steps of {size} images each an "
            f"epoch; learning rate {RATE * workers:g}",
            flush=True,
        )
    train = train_in_a_loop if arguments.loop else train_with_fit
    train(model, own_batches(train_images, train_labels, size), arguments.epochs, steps)
    # All workers have the same model: each evaluates a part of the images.
    part = slice(tfdist.rank(), None, workers)
    _, accuracy = model.evaluate(
        images.test_images[part], images.test_labels[part], batch_size=500, verbose=0
    )
    accuracy = tfdist.ops.all_reduce(tf.constant(accuracy), reduce_op="mean")
    if is_first:
        print(f"test accuracy: {float(accuracy):.4f} ({images.source})")


if __name__ == "__main__":
    main()
