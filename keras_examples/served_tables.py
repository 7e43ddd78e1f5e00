"""Trains embeddings in one job and serves them from others, while a server dies.

    python keras_examples/served_tables.py --output /tmp/served

prints (on two cores, in about a minute):

    the training has exported its model
    two servers of tables answer; snapshot 10
    killed server 0
    5382 requests, 0 failed; the slowest took 0.03 s
    the model has followed the training from snapshot 10 to 20: its answers moved by 0.11

It starts four programs, as they would run on several machines:

    tfdist run --workers 1 --ps 1 keras_examples/served_tables.py --train ...   the training
    tfdist ps follow --every 1 .../published --job .../job.json                 publishes changes
    tfdist ps serve .../published --follow --replicas 2 --servers ... --index I     twice

and is itself the process that answers requests: it loads the model with `tfdist.serving.load`.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from common import SEED, positive
from processes import SECONDS, Command, Commands, free_addresses

import tfdist

USERS, FILMS = 5000, 2000
BATCH = 256


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="an empty or new folder")
    parser.add_argument("--seconds", type=positive, default=10, help="of requests")
    parser.add_argument("--train", action="store_true", help="be the training (internal)")
    return parser.parse_args()


def build_model() -> keras.Model:
    """Scores a film for a user: the product of their rows, and a dense layer."""
    user = keras.Input((), dtype="int64", name="user")
    film = keras.Input((), dtype="int64", name="film")
    rows = [
        tfdist.layers.Embedding(None, 8, name=name)(ids)
        for name, ids in (("users", user), ("films", film))
    ]
    both = keras.layers.Concatenate()([*rows, keras.layers.Multiply()(rows)])
    return keras.Model([user, film], keras.layers.Dense(1)(both))


def ratings(count: int, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Draws users, films and ratings, which depend on both."""
    random = np.random.default_rng(seed)
    users = random.zipf(1.3, count) % USERS
    films = random.zipf(1.3, count) % FILMS
    return [users, films], np.sin(users) + np.cos(films) + random.normal(0, 0.1, count)


def train(folder: Path) -> None:
    """Trains until the file `stop` is there; exports the model after the first epoch."""
    keras.utils.set_random_seed(SEED)
    strategy = tfdist.ParameterServerStrategy(checkpoint_dir=str(folder / "snapshots"))
    with strategy.scope():
        model = build_model()
        model.compile(keras.optimizers.Adam(0.01), "mse")
    for epoch in range(100_000):
        model.fit(*ratings(20 * BATCH, SEED + epoch), batch_size=BATCH, verbose=0)
        if epoch == 0:
            tfdist.export_for_serving(model, str(folder / "model"), tables="served")
            (folder / "exported").touch()
        if (folder / "stop").exists():
            return


def load(folder: Path, servers: list[Command], addresses: list[str]) -> Any:
    """Loads the model as soon as the servers answer."""
    end = time.monotonic() + SECONDS
    while True:
        try:
            return tfdist.serving.load(
                str(folder / "model"), servers=addresses, cache_rows=1000, cache_seconds=0.5
            )
        except tf.errors.UnavailableError as error:
            if any(server.process.poll() is not None for server in servers):
                sys.exit(f"a server has ended: {error.message}")
            if time.monotonic() > end:
                sys.exit(f"the servers have not answered for {SECONDS:g} s: {error.message}")


def serve(folder: Path, servers: list[Command], addresses: list[str], seconds: int) -> int:
    """Answers requests, kills a server meanwhile, and prints the outcome; returns the failures."""
    model = load(folder, servers, addresses)
    follower = tfdist.serving.TableFollower(model, str(folder / "published"), every=0.5)
    first = follower.number
    print(f"two servers of tables answer; snapshot {first}", flush=True)
    inputs, _ = ratings(BATCH, SEED)
    before = model.serve(inputs).numpy()
    end, times, failed, killed = time.monotonic() + seconds, [], 0, False
    while time.monotonic() < end:
        if not killed and time.monotonic() > end - seconds / 2:
            servers[0].process.kill()
            killed = True
            print("killed server 0", flush=True)
        began = time.monotonic()
        try:
            after = model.serve(ratings(BATCH, len(times))[0])
        except Exception as error:
            failed += 1
            print(f"failed: {error}", flush=True)
        times.append(time.monotonic() - began)
    follower.update()
    after = model.serve(inputs).numpy()
    print(f"{len(times)} requests, {failed} failed; the slowest took {max(times):.2f} s")
    print(
        f"the model has followed the training from snapshot {first} to {follower.number}: its "
        f"answers moved by {np.abs(after - before).mean():.2f}",
        flush=True,
    )
    follower.close()
    model.table_connection.close()
    return failed


def main() -> int:
    arguments = parse_arguments()
    folder = arguments.output.resolve()
    if arguments.train:
        train(folder)
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    # The servers and this process share it; the training has one of its own.
    os.environ.setdefault("TFDIST_SECRET", secrets.token_hex(32))
    job, published = folder / "job.json", folder / "published"
    addresses = free_addresses(2)
    with Commands(folder) as commands:
        training = commands.start(
            *("train", "run", "--workers", "1", "--ps", "1", "--job-file", job),
            *(__file__, "--train", "--output", folder),
        )
        training.wait_for("an exported model", (folder / "exported").exists)
        print("the training has exported its model", flush=True)
        following = commands.start(
            "follow", "ps", "follow", "--every", "1", published, "--job", job
        )
        following.wait_for("a publication", (published / "manifest.json").exists)
        servers = [
            commands.start(
                *(f"serve-{index}", "ps", "serve", published, "--replicas", "2"),
                *("--servers", ",".join(addresses), "--index", index),
                *("--follow", "--look-every", "0.2"),
            )
            for index in range(2)
        ]
        failed = serve(folder, servers, addresses, arguments.seconds)
        (folder / "stop").touch()
        training.finish()
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    sys.exit(main())
