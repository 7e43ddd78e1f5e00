"""Predicted ratings for all lines of MovieLens's file, in parts that workers share.

    pip install --no-deps recbole       # contains the data; --data FOLDER reads your own copy
    tfdist run --workers 2 keras_examples/batch_prediction.py --output /tmp/ratings

prints (on two cores, in about half a minute):

    [worker 0] 100000 rows in 50 parts, mean absolute error 0.74
    [worker 0] first row: {'user': 196, 'film': 242, 'stars': ...}

Both workers train a small model together, and then share the parts: each takes one when it needs
one. Start it again with the same output: the training gives the same weights, and nothing is left
to predict. Kill it in the middle: the next start continues. Meanwhile

    tfdist tasks --output /tmp/ratings

shows who predicts which lines. The parts are lines of JSON; `format="parquet"` would make tables.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import keras
import movielens_data
import numpy as np
import tensorflow as tf
from common import positive

import tfdist

USERS, FILMS, FACTORS = 944, 1683, 8


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="folder of the MovieLens-100K files")
    parser.add_argument("--output", type=Path, required=True, help="folder of the parts")
    parser.add_argument("--steps", type=positive, default=300, help="of the training")
    parser.add_argument("--task-size", type=positive, default=2000, help="lines of a part")
    return parser.parse_args()


def file_of_ratings(folder: Path | None) -> tuple[Path, int]:
    """The file of the ratings, and the number of lines of its header."""
    folder = movielens_data.find(folder)
    own = folder / "u.data"
    return (own, 0) if own.is_file() else (folder / "ml-100k.inter", 1)


def parse(line: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Features and label of a line "user, film, stars, time"."""
    columns = tf.strings.split(line, "\t")
    user, film = (tf.strings.to_number(columns[i], tf.int64) for i in (0, 1))
    return {"user": user, "film": film}, tf.strings.to_number(columns[2])


def build_model() -> keras.Model:
    """A product of the factors of user and film, around the mean rating."""
    inputs = {name: keras.Input((), dtype="int64", name=name) for name in ("user", "film")}
    user = keras.layers.Embedding(USERS, FACTORS)(inputs["user"])
    film = keras.layers.Embedding(FILMS, FACTORS)(inputs["film"])
    joined = keras.layers.concatenate([user * film, user, film])
    return keras.Model(inputs, {"stars": keras.layers.Dense(1)(joined)[:, 0]})


def main() -> None:
    arguments = parse_arguments()
    keras.utils.set_random_seed(1)
    strategy = tfdist.MultiWorkerMirroredStrategy()
    file, header = file_of_ratings(arguments.data)
    lines = tf.data.Dataset.from_tensor_slices(file.read_text().splitlines()[header:])
    batches = lines.map(parse).batch(512, drop_remainder=True).repeat()
    with strategy.scope():
        model = build_model()
        model.compile(keras.optimizers.Adam(0.01), "mse")
    model.fit(batches, steps_per_epoch=arguments.steps, verbose=0)

    data = tfdist.data.from_files(
        str(file), "lines", arguments.task_size, header=header, name="predict"
    )
    result = tfdist.predict(
        model,
        data,
        arguments.output,
        map=parse,
        keep=["user", "film"],
        format="jsonl",
        metrics=["mae"],
        verbose=0,
    )
    if tfdist.rank() == 0:
        (error,) = map(np.float32, result.metrics.values())
        print(
            f"{result.rows} rows in {len(result.parts)} parts, mean absolute error {error:.2f}",
            flush=True,
        )
        with open(arguments.output / result.parts[0]) as part:
            print("first row:", json.loads(part.readline()), flush=True)


if __name__ == "__main__":
    main()
