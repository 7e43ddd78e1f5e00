"""A job on Kubernetes that begins with two workers, grows to eight, and gives way.

    docker build -t registry.example/train:1 .
    docker push registry.example/train:1
    tfdist k8s secret --name train | kubectl apply -f -
    kubectl apply -f keras_examples/clusters/kubernetes.yaml

The manifest beside this file was printed by the command in its first line. A claim `checkpoints`
that all pods can write, and one `scripts` with this file, must exist. Each worker prints the
same sum of weights at the end, however many there were:

    the weights' sum is ...

By hand, in one process: python keras_examples/clusters/kubernetes.py --output /tmp/train
"""

from __future__ import annotations

import argparse
from pathlib import Path

import keras
import numpy as np

import tfdist

ROWS, COLUMNS, BATCH = 2560, 8, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="the folder of the backup")
    parser.add_argument("--epochs", type=int, default=100)
    arguments = parser.parse_args()
    strategy = tfdist.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((COLUMNS,)), keras.layers.Dense(1)])
        model.compile(optimizer="adam", loss="mse")
    x = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype("float32")
    # A pod that is told to leave ends its step; a job that is told to end is saved here.
    backup = keras.callbacks.BackupAndRestore(arguments.output / "backup")
    model.fit(
        x,
        x.sum(axis=1),
        batch_size=BATCH,
        epochs=arguments.epochs,
        callbacks=[backup],
        verbose=2,
    )
    total = sum(float(np.sum(weights)) for weights in model.get_weights())
    print(f"the weights' sum is {total:.4f}")


if __name__ == "__main__":
    main()
