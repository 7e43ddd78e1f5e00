"""Batch prediction: its cost beside a plain loop, a second worker, and Ray Data under kills.

    python benchmarks/prediction.py [--records 100000] [--rounds 5] [--ray PYTHON] [--json FILE]

The records are in TFRecord files, the model is a network of three dense layers. The first table is
one process: `tfdist.predict` with a part for each file, a loop that calls `model.predict` for each
file, and one call of `model.predict` for all files. That call maps with AUTOTUNE, or 64 records at
once, as `tfdist.predict` does. All run in turn, and a cost is the median over the rounds, in time
and in CPU time, which other load changes less. All results must be equal up to rounding.

The second one is `tfdist predict` with one worker and with two, on a map that sleeps for 2 ms, in
the time in which all workers have committed a part and none has ended.

The third one needs `--ray`, a Python with TensorFlow and `ray[data]`. The same model, records and
number of workers, twice: undisturbed, and with kills of workers and then of the whole job, which is
started again with the same command. It counts rows that are lost or doubled. A run that has not
ended after `--limit` seconds is killed: its code is -9.
"""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags
from baselines.prediction_maps import FEATURES, parse
from reporting import results

RECORDS = flags.DEFINE_integer("records", 100_000, "in all files", lower_bound=1000)
ROUNDS = flags.DEFINE_integer("rounds", 5, "runs of each kind", lower_bound=1)
SLOW = flags.DEFINE_integer("slow_records", 20_000, "for the sleeping map", lower_bound=100)
RAY = flags.DEFINE_string("ray", None, "Python with ray[data]; None: without Ray")
LIMIT = flags.DEFINE_float("limit", 600.0, "seconds of a run beside Ray", lower_bound=1.0)
KILLS = flags.DEFINE_integer("kills", 4, "of workers, beside Ray", lower_bound=0)
PARTS = flags.DEFINE_list("parts", ["cost", "workers", "ray"], "the tables to make")
JSON = flags.DEFINE_string("json", None, "file to write the figures to")

HERE = Path(__file__).parent
FILES, BATCH = 20, 256
MAX_COST, MIN_SPEEDUP = 0.05, 1.9
OWN = "tfdist.predict"
AUTOTUNE = -1  # tf.data.AUTOTUNE


def make_input(folder: Path, records: int) -> Path:
    """Writes records and a model; returns the model's path."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(256, "relu") for _ in range(3)]
    model = keras.Sequential([keras.Input((FEATURES,)), *layers, keras.layers.Dense(10)])
    model.save(folder / "model.keras")
    generator = np.random.default_rng(0)
    (folder / "in").mkdir()
    for file in range(FILES):
        with tf.io.TFRecordWriter(str(folder / f"in/{file:03d}.tfrecord")) as writer:
            for i in range(file, records, FILES):
                x = generator.normal(size=FEATURES).astype(np.float32)
                writer.write(np.float32(i).tobytes() + x.tobytes())
    return folder / "model.keras"


def plain_loop(model: Any, folder: Path, output: Path) -> None:
    """Predicts each file with `model.predict`, and saves its result."""
    import tensorflow as tf

    output.mkdir()
    for path in sorted((folder / "in").iterdir()):
        records = tf.data.TFRecordDataset(str(path))
        features = records.map(lambda r: parse(r)["x"], num_parallel_calls=tf.data.AUTOTUNE)
        rows = model.predict(features.batch(BATCH).prefetch(2), verbose=0)
        np.savez(output / f"{path.stem}.npz", prediction=rows)


def one_call(model: Any, folder: Path, output: Path, parallel_calls: int = AUTOTUNE) -> None:
    """Predicts all files with one call of `model.predict`, and saves its result."""
    import tensorflow as tf

    output.mkdir()
    records = tf.data.TFRecordDataset(sorted(map(str, (folder / "in").iterdir())))
    features = records.map(lambda r: parse(r)["x"], num_parallel_calls=parallel_calls)
    rows = model.predict(features.batch(BATCH).prefetch(2), verbose=0)
    np.savez(output / "all.npz", prediction=rows)


def ours(model: Any, folder: Path, output: Path) -> None:
    """The same with `tfdist.predict`."""
    import tfdist

    data = tfdist.data.from_files(str(folder / "in/*"), task_size=10**9, name="predict")
    tfdist.predict(
        model, data, output, map=lambda r: parse(r)["x"], batch_size=BATCH, format="npz", verbose=0
    )


def rows_in(output: Path) -> np.ndarray:
    files = sorted(output.glob("*.npz"))
    return np.concatenate([np.load(path)["prediction"] for path in files])


def measure_cost(folder: Path, records: int, rounds: int) -> dict[str, Any]:
    """Times all kinds in turns."""
    import keras

    model = keras.models.load_model(folder / "model.keras")
    kinds = {
        OWN: ours,
        "a call for each file": plain_loop,
        "one call": one_call,
        "one call, map of 64": functools.partial(one_call, parallel_calls=64),
    }
    times: dict[str, list[float]] = {name: [] for name in kinds}
    cpu_times: dict[str, list[float]] = {name: [] for name in kinds}
    for i in range(rounds + 1):
        found = {}
        for name in list(kinds)[:: 1 if i % 2 else -1]:
            output = folder / f"{name} {i}"
            began, cpu_began = time.perf_counter(), time.process_time()
            kinds[name](model, folder, output)
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_began
            found[name] = rows_in(output)
            shutil.rmtree(output)
            if i:  # the first round warms up
                times[name].append(seconds)
                cpu_times[name].append(cpu)
        for rows in found.values():
            np.testing.assert_allclose(rows, found[OWN], rtol=1e-4, atol=1e-5)
    return {
        "records_per_second": {n: records / statistics.median(s) for n, s in times.items()},
        "cpu_seconds": {n: statistics.median(s) for n, s in cpu_times.items()},
        "cost": _costs(times),
        "cpu_cost": _costs(cpu_times),
    }


def _costs(times: dict[str, list[float]]) -> dict[str, float]:
    """The median cost of `tfdist.predict` beside each other kind."""
    return {
        name: statistics.median(a / b - 1 for a, b in zip(times[OWN], others, strict=True))
        for name, others in times.items()
        if name != OWN
    }


def command(folder: Path, output: Path, function: str, workers: int, size: int) -> list[str]:
    return [
        *(sys.executable, "-m", "tfdist", "predict", "--workers", str(workers)),
        *("--model", str(folder / "model.keras"), "--input", str(folder / "in/*")),
        *(
            "--map",
            f"{HERE}/baselines/prediction_maps.py:{function}",
            "--batch-size",
            str(BATCH),
            "--keep",
            "id",
        ),
        *("--task-size", str(size), "--output", str(output)),
    ]


def seconds_of_parts(output: Path) -> float:
    """Seconds of a part while all workers work: one starts later, and one ends earlier."""
    times: dict[str, list[float]] = {}
    for path in (output / "_job/records").iterdir():
        (file,) = json.loads(path.read_text())["files"]
        owner = file["staged"].split(".")[-2]
        times.setdefault(owner, []).append(path.stat().st_mtime)
    first = max(min(ends) for ends in times.values())
    last = min(max(ends) for ends in times.values())
    parts = sum(first < end <= last for ends in times.values() for end in ends)
    return (last - first) / parts


def measure_workers(folder: Path) -> dict[str, float]:
    """Seconds of a part with one and with two workers, on a sleeping map."""
    found = {}
    for workers in (1, 2):
        output = folder / f"slow {workers}"
        subprocess.run(
            command(folder, output, "parse_slowly", workers, 50),
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        found[str(workers)] = seconds_of_parts(output)
    return found


def workers_of(pid: int, name: str) -> list[int]:
    """The processes below `pid` that have a word in their command line."""
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            found += workers_of(child, name)
            try:
                if name in Path(f"/proc/{child}/cmdline").read_text():
                    found.append(child)
            except OSError:
                pass
    return found


def run_with_kills(words: list[str], name: str, kills: int, is_done: Any) -> tuple[float, int]:
    """Runs a command; kills its workers, then itself, and starts it again.

    A run that does not end within the limit is killed too.

    Returns:
      Seconds, and the exit code of the last run.
    """
    choose = random.Random(5)
    began = time.perf_counter()
    log = open(os.devnull, "w")
    process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
    for kill in range(kills):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(choose.uniform(0.5, 1.5))
            living = workers_of(process.pid, name)
            if living and is_done(kill):
                os.kill(choose.choice(living), signal.SIGKILL)
                break
    if kills:
        time.sleep(2.0)
        if process.poll() is None:  # else it was faster
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
    try:
        code = process.wait(max(1.0, LIMIT.value - (time.perf_counter() - began)))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    log.close()
    return time.perf_counter() - began, code


def ids_of(output: Path) -> Counter[int]:
    import pyarrow.parquet as parquet

    found: Counter[int] = Counter()
    for path in sorted(output.rglob("*.parquet")):
        if "_job" not in path.parts:
            found.update(parquet.read_table(path, columns=["id"])["id"].to_pylist())
    return found


def compare_with_ray(folder: Path, records: int, kills: int) -> list[dict[str, Any]]:
    """Rows per second, lost and doubled rows of both."""
    rows = []
    size = records // 100
    for name, count in (("undisturbed", 0), ("killed", kills)):
        for system in ("tfdist", "Ray Data"):
            output = folder / f"{system} {name}"
            words = command(folder, output, "parse", 2, size)
            worker = "prediction.command"
            if system != "tfdist":
                words = [RAY.value, str(HERE / "baselines/ray_prediction.py")]
                words += [str(folder), str(output), str(BATCH)]
                worker = "ray::"
            seconds, code = run_with_kills(words, worker, count, lambda kill: True)
            ids = ids_of(output)
            rows.append(
                {
                    "system": system,
                    "run": name,
                    "seconds": seconds,
                    "rows_per_second": records / seconds,
                    "code": code,
                    "lost": sum(i not in ids for i in range(records)),
                    "doubled": sum(n > 1 for n in ids.values()),
                }
            )
    return rows


def show_cost(cost: dict[str, Any]) -> None:
    print("\nOne process\n")
    print(f"{'':>20} {'records/s':>10} {'CPU s':>7} {'cost':>7} {'in CPU':>7}")
    for name, rate in cost["records_per_second"].items():
        line = f"{name:>20} {rate:10.0f} {cost['cpu_seconds'][name]:7.2f}"
        if name != OWN:
            verdict = "reached" if cost["cost"][name] <= MAX_COST else "missed"
            line += f" {cost['cost'][name]:7.1%} {cost['cpu_cost'][name]:7.1%}"
            line += f"  goal {MAX_COST:.0%}: {verdict}"
        print(line, flush=True)


def show_workers(seconds: dict[str, float]) -> None:
    ratio = seconds["1"] / seconds["2"]
    verdict = "reached" if ratio >= MIN_SPEEDUP else "missed"
    text = f"two workers are {ratio:.2f} times as fast as one"
    print(f"\nA map that sleeps: {text}, goal {MIN_SPEEDUP}: {verdict}", flush=True)


def show_ray(rows: list[dict[str, Any]]) -> None:
    print("\nTwo workers, with start-up\n")
    heads = [("", 10), ("run", 12), ("rows/s", 8), ("seconds", 8)]
    heads += [("lost", 7), ("doubled", 8), ("code", 5)]
    print(" ".join(f"{head:>{width}}" for head, width in heads))
    for row in rows:
        # A run that was ended at the limit, or by an error, has no rate.
        rate = f"{row['rows_per_second']:8.0f}" if row["code"] == 0 else f"{'-':>8}"
        print(
            f"{row['system']:>10} {row['run']:>12} {rate} "
            f"{row['seconds']:8.1f} {row['lost']:7} {row['doubled']:8} {row['code']:5}"
        )


def main(argv: list[str]) -> None:
    del argv
    figures: dict[str, Any] = {"records": RECORDS.value}
    with tempfile.TemporaryDirectory(prefix="tfdist-predict-") as name:
        folder, slow = Path(name) / "all", Path(name) / "slow"
        for path, records in ((folder, RECORDS.value), (slow, SLOW.value)):
            path.mkdir()
            make_input(path, records)
        if "cost" in PARTS.value:
            figures["cost"] = measure_cost(folder, RECORDS.value, ROUNDS.value)
            show_cost(figures["cost"])
        if "workers" in PARTS.value:
            figures["workers"] = measure_workers(slow)
            show_workers(figures["workers"])
        if "ray" in PARTS.value and RAY.value is not None:
            figures["ray"] = compare_with_ray(folder, RECORDS.value, KILLS.value)
            show_ray(figures["ray"])
    results.save(JSON.value, figures, lambda file: None)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    app.run(main)
