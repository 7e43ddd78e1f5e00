"""A script of several stages loses a worker in two of them; its results equal one process's.

    tfdist run --workers 1:3:3 keras_examples/elastic_script.py --output /tmp/stages --kill 10 12

trains an autoencoder of Fashion-MNIST, a classifier of its codes, and the classifier again with the
labels that it is sure of. Rank 0 is killed after 10 steps of the first stage, and its successor
after 12 of the second. A killed worker begins at the script's first line; it leaves out what the
others have trained, and takes the results:

    tfdist run: worker 0 failed: killed by SIGKILL; starting it again in 1 s (restarts left: 9)
    ...
    [worker 2] labelled 698 of 1500 images; test accuracy 0.704
    [worker 2] the weights' sum is -77.620459609

Without --kill, and in one process, it prints the same lines.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import common
import data
import keras
import numpy as np

import tfdist

BATCH = 96
LABELLED, UNLABELLED, TESTED = 1500, 1500, 1000
SURE = 0.8


def build_models() -> tuple[keras.Model, keras.Model, keras.Model]:
    """An encoder of 32 numbers, the autoencoder around it, and a classifier of the codes."""
    images = keras.Input((data.SIDE * data.SIDE,))
    codes = keras.layers.Dense(32, activation="tanh")(images)
    copies = keras.layers.Dense(data.SIDE * data.SIDE, activation="sigmoid")(codes)
    encoder = keras.Model(images, codes)
    autoencoder = keras.Model(images, copies, name="encoder")
    autoencoder.compile(keras.optimizers.Adam(0.003), "mse")
    classifier = keras.Sequential(
        [
            keras.Input((32,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(data.CLASSES, activation="softmax"),
        ],
        name="classifier",
    )
    classifier.compile(
        keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return encoder, autoencoder, classifier


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="the folder of the files")
    parser.add_argument(
        "--kill",
        type=common.positive,
        nargs=2,
        metavar="STEP",
        help="rank 0, after so many steps of the first and of the second stage",
    )
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    arguments.output.mkdir(parents=True, exist_ok=True)
    # Sums of several workers then differ from one process's in the 16th digit only, and no
    # image is labelled in the one case and not in the other.
    keras.backend.set_floatx("float64")
    keras.utils.set_random_seed(7)
    strategy = tfdist.MultiWorkerMirroredStrategy()
    found = data.load_fashion_mnist(announce=strategy.is_chief)
    x = found.train_images[: LABELLED + UNLABELLED].reshape((-1, data.SIDE * data.SIDE)) / 255
    y = found.train_labels[:LABELLED].astype("int64")
    x_test = found.test_images[:TESTED].reshape((-1, data.SIDE * data.SIDE)) / 255
    y_test = found.test_labels[:TESTED].astype("int64")
    with strategy.scope():
        encoder, autoencoder, classifier = build_models()

    kills = {}
    if arguments.kill is not None:
        kills = {"encoder": arguments.kill[:1], "classifier": arguments.kill[1:]}

    def callbacks(name: str) -> list[keras.callbacks.Callback]:
        return [
            keras.callbacks.CSVLogger(str(arguments.output / f"{name}.csv")),
            common.KillRankZero(kills.get(name, []), arguments.output),
        ]

    def train(model: keras.Model, name: str, inputs: np.ndarray, targets: np.ndarray) -> None:
        model.fit(
            *(inputs, targets),
            batch_size=BATCH,
            epochs=12,
            callbacks=callbacks(name),
            verbose=0,
        )

    train(autoencoder, "encoder", x, x)
    codes = encoder.predict(x, verbose=0)
    train(classifier, "classifier", codes[:LABELLED], y)

    guesses = classifier.predict(codes[LABELLED:], verbose=0)
    sure = guesses.max(axis=1) > SURE
    more_codes = np.concatenate([codes[:LABELLED], codes[LABELLED:][sure]])
    train(classifier, "again", more_codes, np.concatenate([y, guesses.argmax(axis=1)[sure]]))

    _, accuracy = classifier.evaluate(encoder.predict(x_test, verbose=0), y_test, verbose=0)
    if strategy.is_chief:
        print(f"labelled {sure.sum()} of {UNLABELLED} images; test accuracy {accuracy:.3f}")
        weights = [*encoder.get_weights(), *classifier.get_weights()]
        print(f"the weights' sum is {sum(float(weight.sum()) for weight in weights):.9f}")


if __name__ == "__main__":
    main()
