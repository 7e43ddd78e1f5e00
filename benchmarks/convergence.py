"""Accuracy lost by asynchrony: a network on Fashion-MNIST, trained in every mode.

    python benchmarks/convergence.py [--rate 0.1] [--epochs 5] [--seeds 3] [--rows ...]
                                      [--json FILE]

trains for the same number of epochs in one process and with four workers and one parameter server.
"In turns" scripts the delay: workers push in a fixed order, so that each gradient is late by
exactly one update per other worker, and a run is repeatable. Each row is the mean over the seeds;
the spread is the largest minus the smallest.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from reporting import charts, results

ROOT = Path(__file__).resolve().parents[1]
BATCH = 64
ROWS = {
    "one process": {"workers": 1},
    "sync": {"mode": "sync"},
    "ssp, staleness 2": {"mode": "ssp", "staleness": 2},
    "async": {},
    "in turns": {"in_turns": True},
    "in turns, dc-asgd": {"in_turns": True, "compensation": "dc-asgd"},
    "in turns, adadelay": {"in_turns": True, "compensation": "adadelay"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=0.1, help="the initial learning rate")
    parser.add_argument("--limit", type=int, help="use only the first LIMIT training images")
    parser.add_argument("--rows", nargs="*", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--json", help="file to write the figures to; a chart beside it")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        train(json.loads(arguments.task))
        return
    print(f"test accuracy after {arguments.epochs} epochs, {arguments.workers} workers and 1 ps")
    print(f"{'':28}{'accuracy':>10}{'spread':>10}{'loss':>10}")
    rows = []
    for name in arguments.rows:
        runs = [run(name, arguments, seed) for seed in range(arguments.seeds)]
        accuracies = [r["accuracy"] for r in runs]
        mean = {key: sum(r[key] for r in runs) / len(runs) for key in runs[0]}
        spread = max(accuracies) - min(accuracies)
        print(f"{name:28}{mean['accuracy']:10.4f}{spread:10.4f}{mean['loss']:10.4f}", flush=True)
        rows.append({"case": name, **mean, "spread": spread})
    figures = {"epochs": arguments.epochs, "workers": arguments.workers, "rows": rows}
    results.save(arguments.json, figures, lambda file: draw(file, figures))


def draw(file: Path, figures: dict) -> None:
    charts.bars(
        file,
        f"Fashion-MNIST after {figures['epochs']} epochs, {figures['workers']} workers and 1 ps",
        "wrong, % of the test images",
        {
            row["case"].replace(", ", ",\n"): {"mean of the seeds": 100 * (1 - row["accuracy"])}
            for row in figures["rows"]
        },
    )


def run(name: str, arguments: argparse.Namespace, seed: int) -> dict[str, float]:
    """Trains once, in new processes; returns the chief's figures."""
    with tempfile.TemporaryDirectory() as folder:
        task = {
            "workers": arguments.workers,
            **ROWS[name],
            "epochs": arguments.epochs,
            "limit": arguments.limit,
            "rate": arguments.rate,
            "seed": seed,
            "result": f"{folder}/result.json",
            "turn": f"{folder}/turn",
        }
        Path(task["turn"]).write_bytes(bytes(8))
        command = [sys.executable]
        if task["workers"] > 1:
            command += ["-m", "tfdist", "run", "--workers", str(task["workers"]), "--ps", "1"]
        command += [str(Path(__file__)), "--task", json.dumps(task)]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = dict(os.environ, PYTHONPATH=path, TF_CPP_MIN_LOG_LEVEL="3")
        finished = subprocess.run(command, env=environment, capture_output=True, text=True)
        if finished.returncode != 0:
            sys.exit(finished.stdout[-3000:] + finished.stderr[-3000:])
        return json.loads(Path(task["result"]).read_text())


class Turns:
    """A counter in a file that all workers map: it says whose turn it is."""

    def __init__(self, path: str, rank: int, workers: int) -> None:
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)
        self._rank, self._workers = rank, workers
        self._mine = False

    def wait(self) -> None:
        while int.from_bytes(self._memory[:8], "little") % self._workers != self._rank:
            time.sleep(0.0002)
        self._mine = True

    def end(self) -> None:
        if self._mine:
            self._mine = False
            turn = int.from_bytes(self._memory[:8], "little")
            self._memory[:8] = (turn + 1).to_bytes(8, "little")


def train(task: dict) -> None:
    """The program of each task of a run."""
    sys.path.insert(0, str(ROOT / "keras_examples"))
    import data
    import keras
    import tensorflow as tf

    import tfdist

    cluster = tfdist.init()
    keras.utils.set_random_seed(task["seed"])
    options = {key: task[key] for key in ("mode", "staleness", "compensation") if key in task}
    # A worker gives up its turn only after `fit`, so an epoch's end must not wait.
    strategy = tfdist.ParameterServerStrategy(epoch_timeout=0.0, **options)
    images = data.load_fashion_mnist(announce=False)
    x = images.train_images[: task["limit"]].reshape(-1, data.SIDE**2).astype("float32") / 255
    y = images.train_labels[: task["limit"]]
    # Steps of all workers together: a slow worker makes fewer.
    total = task["epochs"] * (len(x) // BATCH)
    turns = Turns(task["turn"], cluster.rank, task["workers"]) if "in_turns" in task else None

    class InTurns(keras.Model):
        """Pushes when it is this worker's turn. The turn ends with the next step's pull."""

        def train_step(self, batch):
            features, labels = batch
            variables = [v.value for v in self.trainable_variables]
            with tf.control_dependencies([tf.identity(v) for v in variables]):
                passed = tf.py_function(turns.end, [], [])
            with tf.control_dependencies([passed]), tf.GradientTape() as tape:
                loss = self.compute_loss(features, labels, self(features, training=True))
            gradients = tape.gradient(loss, variables)
            with tf.control_dependencies(gradients):
                waited = tf.py_function(turns.wait, [], [])
            with tf.control_dependencies([waited]):
                gradients = [tf.identity(g) for g in gradients]
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss}

    with strategy.scope():
        inputs = keras.Input((data.SIDE**2,))
        hidden = keras.layers.Dense(128, activation="relu")(inputs)
        kind = keras.Model if turns is None else InTurns
        model = kind(inputs, keras.layers.Dense(data.CLASSES)(hidden))
        rate = keras.optimizers.schedules.CosineDecay(task["rate"], total)
        model.compile(
            keras.optimizers.SGD(rate),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    dataset = dataset.shuffle(len(x), seed=task["seed"]).repeat().batch(BATCH)
    choices = tf.data.Options()
    choices.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = dataset.with_options(choices)
    if turns is None:
        last = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: setattr(
                model, "stop_training", int(model.optimizer.iterations.numpy()) >= total
            )
        )
        model.fit(dataset, steps_per_epoch=total, callbacks=[last], verbose=0)
    else:
        model.fit(dataset, steps_per_epoch=total // task["workers"], verbose=0)
        turns.end()
    if not strategy.is_chief:
        return
    logits = model.predict(images.test_images.reshape(-1, data.SIDE**2) / 255, verbose=0)
    labels = images.test_labels
    result = {
        "accuracy": float((logits.argmax(1) == labels).mean()),
        "loss": float(model.loss(labels, logits)),
    }
    Path(task["result"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
