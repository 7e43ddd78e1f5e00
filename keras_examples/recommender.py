"""A recommender from training to predictions, which must equal the results of plain Keras.

    pip install --no-deps recbole       # contains the data; --data FOLDER reads your own copy
    pip install "tensorflow-serving-api>=2.16,<3" "tensorflow==2.21.*"    # your TensorFlow
    python keras_examples/recommender.py --output /tmp/recommender

prints (on two cores, in about a minute and a half, with other numbers of requests):

    the model server answers; the training continues
    killed table server 0
    643 requests, 0 failed
    18860 scores; user 1 may like film 98
    AUC on a fifth of the ratings: 0.77
    largest difference from Keras in one process: 1.8e-07 of the parts, 1.2e-07 of the answers

It starts these programs, as they would run on several machines; their output is in `*.log`:

    tfdist run --workers 2 --ps 1 keras_examples/recommender.py --train ...   the training
    tfdist ps follow --every 1 .../published --job .../job.json               publishes its rows
    tfdist ps serve .../published --follow --replicas 2 ...                   twice: serves them
    tfdist serve .../models/likes --tables ...                                answers requests
    tfdist predict --model .../whole --input .../pairs.tsv ...                scores all pairs

The training is synchronous, so that Keras can repeat it: both begin with the same rows and weights,
and make the same steps. Sums have another order in each, so their results differ by rounding, which
this model's tanh keeps small. With relu instead, single rows come to differ by 0.005: where a unit
is within rounding of 0, one of both passes its gradient and the other does not.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path

import keras
import movielens_data
import numpy as np
import tensorflow as tf
from common import SEED, area_under_curve, positive
from movielens_data import Ratings
from processes import SECONDS, Command, Commands, free_addresses, wait_until

import tfdist

ROWS = {"users": 944, "films": 1683}  # ids are below
FACTORS, BATCH = 8, 1000
FILMS_EACH = 20  # of the films that most users have rated, scored for each user
ASKED = 5 * FILMS_EACH  # pairs of a request
PAUSE = 0.02  # s, between two requests
ALLOWED = 1e-5  # the largest difference of two probabilities
FIRST_ROWS = "first_rows.npz"

Inputs = dict[str, np.ndarray]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, help="folder of the MovieLens-100K files")
    parser.add_argument("--output", type=Path, required=True, help="a new folder")
    parser.add_argument("--epochs", type=positive, default=20)
    parser.add_argument("--train", action="store_true", help="be the training (internal)")
    return parser.parse_args()


def build_model(rows_of: Callable[[str], keras.Layer]) -> keras.Model:
    """Scores a film for a user: the probability of four or five stars.

    Args:
      rows_of: makes the layer that has a row for each user, or film.
    """
    user = keras.Input((), dtype="int64", name="user")
    film = keras.Input((), dtype="int64", name="film")
    of_user, of_film = rows_of("users")(user), rows_of("films")(film)
    vector = keras.layers.Concatenate()([of_user * of_film, of_user, of_film])
    for units, activation in ((16, "tanh"), (1, "sigmoid")):
        first = keras.initializers.GlorotUniform(seed=SEED)
        vector = keras.layers.Dense(units, activation, kernel_initializer=first)(vector)
    model = keras.Model({"user": user, "film": film}, {"score": vector[:, 0]})
    # Plain Keras adds the gradients of equal ids only if it clips, as tfdist always does.
    model.compile(keras.optimizers.Adagrad(0.3, global_clipnorm=1.0), "binary_crossentropy")
    return model


def inputs_and_labels(ratings: Ratings) -> tuple[Inputs, np.ndarray]:
    ids = {"user": ratings.features["user"], "film": ratings.features["item"]}
    return ids, ratings.liked


def train(x: Inputs, y: np.ndarray, epochs: int, folder: Path) -> None:
    """Trains together with the other workers; the chief writes the models."""
    strategy = tfdist.ParameterServerStrategy(mode="sync", checkpoint_dir=str(folder / "snapshots"))
    with strategy.scope():
        model = build_model(lambda name: tfdist.layers.Embedding(None, FACTORS, name=name))
    is_chief = strategy.is_chief
    if is_chief:
        # An id without a row has its initial value.
        first = {n: model.get_layer(n).table.fetch(np.arange(k)) for n, k in ROWS.items()}
        np.savez(folder / FIRST_ROWS, **first)
    for epoch in range(epochs):
        model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=2 if is_chief else 0)
        if is_chief and epoch in (0, epochs - 1):
            write_version(model, folder / "models", 1 if epoch == 0 else 2)
    if is_chief:
        tfdist.export_for_serving(model, str(folder / "whole"))


def write_version(model: keras.Model, folder: Path, version: int) -> None:
    """Writes a version without rows, and gives it its number when it is complete."""
    tfdist.export_for_serving(model, str(folder / "arriving"), tables="served")
    (folder / "likes").mkdir(exist_ok=True)
    (folder / "arriving").rename(folder / "likes" / str(version))


def train_alone(x: Inputs, y: np.ndarray, epochs: int, folder: Path) -> keras.Model:
    """Trains the same in this process, with Keras's own embeddings."""
    first = np.load(folder / FIRST_ROWS)
    model = build_model(
        lambda name: keras.layers.Embedding(*first[name].shape, weights=[first[name]], name=name)
    )
    model.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0)
    return model


def parse(line: tf.Tensor) -> dict[str, tf.Tensor]:
    """The ids of a line "user, film", for `tfdist predict`."""
    ids = tf.strings.to_number(tf.strings.split(line, "\t"), tf.int64)
    return {"user": ids[0], "film": ids[1]}


def write_pairs(ratings: Ratings, file: Path) -> Inputs:
    """Writes each user with each of the most rated films; returns the same."""
    (ids, _), users = inputs_and_labels(ratings), np.unique(ratings.features["user"])
    films, counts = np.unique(ids["film"], return_counts=True)
    films = films[np.argsort(-counts, kind="stable")[:FILMS_EACH]]
    pairs = {"user": np.repeat(users, len(films)), "film": np.tile(films, len(users))}
    np.savetxt(file, np.stack([pairs["user"], pairs["film"]], 1), "%d", "\t")
    return pairs


def read_parts(folder: Path) -> dict[str, np.ndarray]:
    """The rows that `tfdist predict` has written, in order, by columns."""
    parts = sorted(folder.glob("part-*"))
    rows = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    return {name: np.array([row[name] for row in rows]) for name in ("user", "film", "score")}


def largest_difference(scores: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(scores - expected).max())


class Asking:
    """Asks the model server again and again, in a thread; a context.

    Args:
      address: of REST, "http://host:port".
      inputs: of each request.

    Attributes:
      scores: of the last answer.
      answered, failed: the numbers of requests.
    """

    def __init__(self, address: str, inputs: Inputs) -> None:
        self.scores = np.zeros(len(inputs["user"]))
        self.answered = self.failed = 0
        self._url = f"{address}/v1/models/likes:predict"
        self._body = json.dumps({"inputs": {n: ids.tolist() for n, ids in inputs.items()}}).encode()
        self._is_ended = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Asking:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_ended.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._is_ended.wait(PAUSE):
            try:
                with urllib.request.urlopen(self._url, self._body, SECONDS) as answer:
                    self.scores = np.array(json.loads(answer.read())["outputs"])
                self.answered += 1
            except (OSError, ValueError) as error:
                print(f"failed: {error}", flush=True)
                self.failed += 1


def start_training(commands: Commands, folder: Path) -> tuple[Command, Command]:
    """Starts the training and the publishing of its rows; returns when there is a first model."""
    job, published = folder / "job.json", folder / "published"
    training = commands.start(
        "train",
        *("run", "--workers", "2", "--ps", "1", "--job-file", job),
        *(__file__, "--train", *sys.argv[1:]),
    )
    training.wait_for("a first model", (folder / "models/likes/1").exists)
    following = commands.start("follow", "ps", "follow", "--every", "1", published, "--job", job)
    following.wait_for("a publication", (published / "manifest.json").exists)
    return training, following


def start_serving(commands: Commands, folder: Path) -> tuple[list[Command], str]:
    """Starts two table servers and a model server; returns the former, and the latter's address."""
    tables = free_addresses(2)
    table_servers = [
        commands.start(
            f"tables-{index}",
            *("ps", "serve", folder / "published", "--follow", "--look-every", "0.5"),
            *("--replicas", "2", "--servers", ",".join(tables), "--index", index),
        )
        for index in range(2)
    ]
    model_server = commands.start(
        "serve",
        *("serve", folder / "models/likes", "--tables", ",".join(tables)),
        *("--port", "0", "--rest-port", "0"),
    )
    return table_servers, model_server.wait_for_text(r"REST at (\S+)")


def start_predicting(commands: Commands, folder: Path) -> Command:
    """Starts two workers that score all pairs."""
    return commands.start(
        "predict",
        *("predict", "--workers", "2", "--model", folder / "whole", "--output", folder / "scores"),
        *("--input", folder / "pairs.tsv", "--reader", "lines", "--map", f"{__file__}:parse"),
        *("--keep", "user", "--keep", "film", "--task-size", "2000", "--format", "jsonl"),
    )


def main() -> int:
    arguments = parse_arguments()
    folder = arguments.output.resolve()
    ratings = movielens_data.load(movielens_data.find(arguments.data))
    known, unknown = movielens_data.split(ratings, SEED)
    x, y = inputs_and_labels(known)
    if arguments.train:
        train(x, y, arguments.epochs, folder)
        return 0

    folder.mkdir(parents=True)
    pairs = write_pairs(ratings, folder / "pairs.tsv")
    # The servers share it; the training has one of its own.
    os.environ.setdefault("TFDIST_SECRET", secrets.token_hex(32))
    with Commands(folder) as commands:
        training, following = start_training(commands, folder)
        table_servers, address = start_serving(commands, folder)
        with Asking(address, {name: ids[:ASKED] for name, ids in pairs.items()}) as asking:
            wait_until(lambda: asking.answered > 10)
            state = "continues" if training.process.poll() is None else "has ended"
            print(f"the model server answers; the training {state}", flush=True)
            table_servers[0].process.kill()
            print("killed table server 0", flush=True)
            training.finish()
            following.finish()
            predicting = start_predicting(commands, folder)
            alone = train_alone(x, y, arguments.epochs, folder)
            expected = alone.predict(pairs, batch_size=1000, verbose=0)["score"]
            predicting.finish()
            # Until the servers have taken up the last rows and the second version.
            wait_until(lambda: largest_difference(asking.scores, expected[:ASKED]) <= ALLOWED)
    print(f"{asking.answered} requests, {asking.failed} failed")

    predicted = read_parts(folder / "scores")
    best = predicted["film"][predicted["score"][:FILMS_EACH].argmax()]
    print(f"{len(predicted['score'])} scores; user {predicted['user'][0]} may like film {best}")
    ids, liked = inputs_and_labels(unknown)
    auc = area_under_curve(liked, alone.predict(ids, batch_size=1000, verbose=0)["score"])
    print(f"AUC on a fifth of the ratings: {auc:.2f}")
    of_parts = largest_difference(predicted["score"], expected)
    of_answers = largest_difference(asking.scores, expected[:ASKED])
    print(
        f"largest difference from Keras in one process: {of_parts:.1e} of the parts, "
        f"{of_answers:.1e} of the answers"
    )
    return 0 if max(of_parts, of_answers) <= ALLOWED and not asking.failed else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    sys.exit(main())
