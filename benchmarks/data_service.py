"""The gain from data workers: an epoch of two training workers with an expensive map.

    python benchmarks/data_service.py [--rows 2048] [--rounds 3] [--json FILE]

Two workers of a `tfdist.MultiWorkerMirroredStrategy` take batches of the same pipeline and do
nothing else, so that a row costs what its preparation costs. Without data workers each prepares all
batches and keeps its part; with 1 and 2 data workers, `tfdist.data.distribute` moves the pipeline
there. Two pipelines:

    computes  a chain of small matrix products: one processor for about 0.2 ms a row
    waits     2 ms a row without a processor, a simulation of a remote storage's latency

Neither has `num_parallel_calls`: a data worker prepares one row at a time. Each job checks in its
first epoch that every row came once; the table has the median of the epochs after it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from absl import app, flags
from reporting import charts, results

ROWS = flags.DEFINE_integer("rows", 2048, "of an epoch", lower_bound=64)
ROUNDS = flags.DEFINE_integer("rounds", 3, "timed epochs of each job", lower_bound=1)
DATA_WORKERS = flags.DEFINE_list("data_workers", ["0", "1", "2"], "numbers to compare")
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

PIPELINES = ("computes", "waits")
TIMEOUT = 600  # s for a job
READER = Path(__file__).parent / "baselines" / "data_reader.py"


def measure(pipeline: str, data_workers: int) -> dict[str, Any]:
    """Runs a job; returns its rows per second, and the seconds of each timed epoch."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "tfdist", "run", "--workers", "2"]
        command += ["--data-workers", str(data_workers), "--timeout", str(TIMEOUT), str(READER)]
        command += [pipeline, str(ROWS.value), str(ROUNDS.value), str(report)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT + 60)
        if done.returncode:
            raise RuntimeError(f"{pipeline}, {data_workers} data workers: {done.stderr[-2000:]}")
        seconds = json.loads(report.read_text())
    return {
        "pipeline": pipeline,
        "data_workers": data_workers,
        "rows_per_second": ROWS.value / statistics.median(seconds),
        "seconds": seconds,
    }


def show(rows: list[dict[str, Any]]) -> None:
    print(f"\n{ROWS.value} rows, two training workers, median of {ROUNDS.value} epochs\n")
    print(f"{'':>10} {'data workers':>12} {'rows/s':>9}  of no data worker")
    for row in rows:
        base = next(r for r in rows if r["pipeline"] == row["pipeline"])
        ratio = row["rows_per_second"] / base["rows_per_second"]
        print(
            f"{row['pipeline']:>10} {row['data_workers']:12} {row['rows_per_second']:9.0f}  "
            f"{ratio:.2f}x"
        )


def draw(file: Path, rows: list[dict[str, Any]]) -> None:
    groups = {
        pipeline: {
            f"{row['data_workers']} data workers": row["rows_per_second"]
            for row in rows
            if row["pipeline"] == pipeline
        }
        for pipeline in PIPELINES
    }
    charts.bars(file, "Preparing rows for two training workers", "rows per second", groups)


def main(argv: list[str]) -> None:
    del argv
    rows = [
        measure(pipeline, int(number)) for pipeline in PIPELINES for number in DATA_WORKERS.value
    ]
    show(rows)
    results.save(JSON.value, {"rows": rows}, lambda file: draw(file, rows))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    app.run(main)
