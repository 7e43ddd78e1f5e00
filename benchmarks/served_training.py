"""The age of served rows while another job trains them.

    python benchmarks/served_training.py [--rows 1000000] [--batch 4096] [--every 1]
                                         [--seconds 30] [--folder FOLDER]
                                         [--json FILE]

A job of `tfdist run --workers 1 --ps 1` trains an embedding of zipfian ids without a pause. The
worker also writes the time into one row, after every tenth step. `tfdist ps follow --every` of the
benchmark publishes the job, and two servers of `tfdist ps serve --replicas 2 --follow` take that
up, of which this process looks up the row of the time, together with a batch of others.

    age         seconds between the time that a lookup reads and the time of its answer: median,
                99th percentile, and the longest
    failed      requests that raised an error
    steps       of the training per second, before it was followed and meanwhile
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from absl import app, flags
from baselines.table_servers import connected
from reporting import charts, results

from tfdist.launch.ports import free_ports
from tfdist.ops import library
from tfdist.ops.ps.table_config import TableConfig

ROWS = flags.DEFINE_integer("rows", 1_000_000, "different ids of the training", lower_bound=100)
BATCH = flags.DEFINE_integer("batch", 4096, "ids of a step", lower_bound=16)
EVERY = flags.DEFINE_float("every", 1, "seconds between two publications", lower_bound=0.1)
SECONDS = flags.DEFINE_float("seconds", 30, "of requests", lower_bound=1)
FOLDER = flags.DEFINE_string("folder", None, "temporary place of the job's files")
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

WIDTH, CLOCK = 16, -1
TRAINING = """
import sys, time
from pathlib import Path
import keras, numpy as np, tfdist
folder, rows, batch, width, begin = Path(sys.argv[1]), *map(int, sys.argv[2:5]), float(sys.argv[5])
strategy = tfdist.ParameterServerStrategy(checkpoint_dir=str(folder / "snapshots"))
with strategy.scope():
    table = tfdist.EmbeddingTable("rows", width)
    model = keras.Sequential([keras.Input((16,), dtype="int64"),
                              tfdist.layers.Embedding(table=table), keras.layers.Flatten(),
                              keras.layers.Dense(1)])
    model.compile("adam", "mse")
random, steps = np.random.default_rng(1), 0

class Clock(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        global steps
        steps += 1
        if steps % 10 == 0:
            table.upsert([-1], np.full([1, width], time.time() - begin))
            (folder / "steps.new").write_text(f"{steps} {time.time()}")
            (folder / "steps.new").rename(folder / "steps")

while not (folder / "stop").exists():
    ids = random.zipf(1.2, [50 * batch // 16, 16]) % rows
    model.fit(ids, np.zeros(len(ids)), batch_size=batch // 16, verbose=0, callbacks=[Clock()])
"""


def tfdist(*arguments: str, log: Path) -> subprocess.Popen:
    """Starts a command of tfdist, whose output goes to a file."""
    command = [sys.executable, "-m", "tfdist", *arguments]
    return subprocess.Popen(command, stdout=log.open("w"), stderr=subprocess.STDOUT)


def steps_per_second(folder: Path, seconds: float) -> float:
    """Measures the training's speed for so long."""
    before = list(map(float, (folder / "steps").read_text().split()))
    time.sleep(seconds)
    after = list(map(float, (folder / "steps").read_text().split()))
    return (after[0] - before[0]) / (after[1] - before[1])


def wait_for(path: Path, process: subprocess.Popen) -> None:
    """Waits for a file of a process."""
    while not path.exists():
        assert process.poll() is None, process.args
        time.sleep(0.05)


def measure(folder: Path, stack: contextlib.ExitStack) -> None:
    begin = time.time()
    script = folder / "train.py"
    script.write_text(TRAINING)
    job = folder / "job.json"
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]

    def start(name: str, *arguments: str) -> subprocess.Popen:
        process = tfdist(*arguments, log=folder / f"{name}.log")
        stack.callback(process.wait)
        stack.callback(process.terminate)
        return process

    training = start(
        *("run", "run", "--workers", "1", "--ps", "1", "--job-file", str(job), str(script)),
        *(str(folder), str(ROWS.value), str(BATCH.value), str(WIDTH), str(begin)),
    )
    wait_for(folder / "steps", training)
    alone = steps_per_second(folder, 10.0)
    published = folder / "published"
    following = start(
        *("follow", "ps", "follow", str(published), "--every", str(EVERY.value)),
        *("--job", str(job)),
    )
    wait_for(published / "manifest.json", following)
    servers = [
        start(
            *(f"serve-{index}", "ps", "serve", str(published), "--replicas", "2", "--follow"),
            *("--look-every", "0.2", "--servers", ",".join(addresses), "--index", str(index)),
        )
        for index in range(2)
    ]
    connection = connected(addresses, servers)
    stack.callback(connection.close)
    connection.client.tables.create("rows", TableConfig(width=WIDTH))
    ages, failed, before = [], 0, (folder / "steps").read_text()
    random = np.random.default_rng(2)
    end = time.monotonic() + SECONDS.value
    while time.monotonic() < end:
        ids = np.append(random.zipf(1.2, BATCH.value) % ROWS.value, CLOCK)
        try:
            rows = library.graph_ops().tfdist_served_lookup(
                client=connection.client.handle, ids=ids, table="rows", width=WIDTH
            )
            ages.append(time.time() - begin - float(rows[-1, 0]))
        except tf.errors.OpError as error:
            failed += 1
            print(f"failed: {error.message}", flush=True)
        time.sleep(0.01)
    first, last = (list(map(float, t.split())) for t in (before, (folder / "steps").read_text()))
    meanwhile = (last[0] - first[0]) / (last[1] - first[1])
    (folder / "stop").touch()
    training.wait(60)
    ordered = sorted(ages)
    print(f"a publication every {EVERY.value:g} s; {len(ages)} requests of {BATCH.value} ids")
    print(
        f"age      median {statistics.median(ages):.2f} s, 99 % "
        f"{ordered[int(0.99 * len(ages))]:.2f} s, longest {ordered[-1]:.2f} s"
    )
    print(f"failed   {failed}")
    print(f"steps    {alone:.0f} per second before it was followed, {meanwhile:.0f} meanwhile")
    age = {
        "median": statistics.median(ages),
        "99 %": ordered[int(0.99 * len(ages))],
        "longest": ordered[-1],
    }
    figures = {"age": age, "failed": failed, "steps": {"alone": alone, "followed": meanwhile}}
    title = f"Age of served rows, published every {EVERY.value:g} s"
    results.save(
        JSON.value, figures, lambda file: charts.bars(file, title, "seconds", {"served": age})
    )


def main(_: list[str]) -> None:
    os.environ.setdefault("TFDIST_SECRET", secrets.token_hex(32))
    folder = tempfile.mkdtemp(dir=FOLDER.value)
    try:
        with contextlib.ExitStack() as stack:
            measure(Path(folder), stack)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    app.run(main)
