"""Workers that train alone for many steps and then combine, beside workers that train in step.

    tfdist run --workers 2 keras_examples/local_updates.py --rule diloco --sync-every 32

prints once, from the chief:

    [worker 0] images: Fashion-MNIST in /usr/share/datasets/fashion-mnist
    [worker 0] Epoch 1/3
    ...
    [worker 0] diloco, a synchronization every 32 steps
    [worker 0] test accuracy: about 0.85
    [worker 0] bytes sent a step: about 30 times fewer than with --rule none

With --rule none the workers train in step, with tfdist.MultiWorkerMirroredStrategy.
"""

from __future__ import annotations

import argparse
import sys

import data
import keras
from common import SEED, batches, positive, training_parser

import tfdist
from tfdist import rules

RULES = {
    "averaging": lambda workers: rules.ModelAveraging(),
    "post-local-sgd": lambda workers: rules.PostLocalSGD(warmup_steps=50),
    "bmuf": lambda workers: rules.BMUF(1 - 1 / workers, nesterov=True),
    "diloco": lambda workers: rules.DiLoCo(),
    "easgd": lambda workers: rules.EASGD(0.9 / workers),
}


def parse_arguments() -> argparse.Namespace:
    parser = training_parser(__doc__, epochs=3, batch_size=128, together="in all workers")
    parser.add_argument("--rule", choices=[*RULES, "none"], default="diloco")
    parser.add_argument("--sync-every", type=positive, default=32, help="steps of a round")
    return parser.parse_args()


def build_and_compile() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((data.SIDE, data.SIDE)),
            keras.layers.Rescaling(1 / 255),
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


class CountBytes(keras.callbacks.Callback):
    """Counts what this worker sends in the steps after the first one."""

    def __init__(self, strategy: tfdist.MultiWorkerMirroredStrategy) -> None:
        super().__init__()
        self._strategy, self._before, self._steps = strategy, 0, -1

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self._steps += 1
        if self._steps == 0:
            self._before = self._strategy.communication_stats().bytes_sent

    def per_step(self) -> float:
        sent = self._strategy.communication_stats().bytes_sent - self._before
        return sent / max(self._steps, 1)


def main() -> None:
    arguments = parse_arguments()
    keras.utils.set_random_seed(SEED)

    cluster = tfdist.Cluster.from_environment()
    if arguments.rule == "none":
        strategy = tfdist.MultiWorkerMirroredStrategy()
    else:
        strategy = tfdist.LocalUpdateStrategy(
            arguments.sync_every, RULES[arguments.rule](cluster.world_size)
        )

    images = data.load_fashion_mnist(announce=cluster.is_chief)
    train_images = images.train_images[: arguments.limit]
    train_labels = images.train_labels[: arguments.limit]
    size = min(arguments.batch_size, len(train_images))
    with strategy.scope():
        model = build_and_compile()
    count = CountBytes(strategy)
    chief_verbosity = 1 if sys.stdout.isatty() else 2
    model.fit(
        batches(train_images, train_labels, size, training=True),
        epochs=arguments.epochs,
        steps_per_epoch=len(train_images) // size,
        callbacks=[count],
        shuffle=False,  # the dataset shuffles
        verbose=chief_verbosity if cluster.is_chief else 0,
    )
    sent = count.per_step()
    _, accuracy = model.evaluate(
        batches(images.test_images, images.test_labels, 500, training=False), verbose=0
    )
    if cluster.is_chief:
        if arguments.rule == "none":
            print("in step")
        else:
            print(f"{arguments.rule}, a synchronization every {arguments.sync_every} steps")
        print(f"test accuracy: {accuracy:.4f} ({images.source})")
        print(f"bytes sent a step: {sent:,.0f}")


if __name__ == "__main__":
    main()
