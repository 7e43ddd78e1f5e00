"""The grace that a preemption notice needs: from SIGTERM to the end of the job.

    python benchmarks/preemption.py [--megabytes 1 100] [--rounds 3] [--json FILE]

`tfdist run` trains a dense network with Adam on two workers, and gets SIGTERM during the first
epoch. The chief saves weights and optimizer, three times the size of the weights, with
`keras.callbacks.BackupAndRestore`. The table has the maximum over the rounds:

    step     seconds of a step of `fit`, before the signal
    saving   seconds in which the chief saves
    saved    seconds from the signal until a worker has saved, by its log
    ended    seconds from the signal to the end of `tfdist run`

Each round is verified: all workers have stopped after the same step, and the backup has its number.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from absl import app, flags
from reporting import charts, results

MEGABYTES = flags.DEFINE_multi_integer("megabytes", [1, 100], "of weights", lower_bound=1)
ROUNDS = flags.DEFINE_integer("rounds", 3, "jobs of each size", lower_bound=1)
JSON = flags.DEFINE_string("json", None, "file to write the figures to; a chart beside it")

SCRIPT = Path(__file__).parent / "baselines" / "preempted_fit.py"
STOPPED = re.compile(
    r"after batch (\d+); saved .* "
    r"\((\S+) s since the signal, of them (\S+) s for saving\)"
)
TIMEOUT = 120.0


def one_job(megabytes: int, folder: Path) -> dict[str, float]:
    """Runs a job, tells it to end, and returns the seconds of each part."""
    command = [sys.executable, "-m", "tfdist", "run", "--workers", "2", str(SCRIPT)]
    job = subprocess.Popen(
        [*command, str(folder), str(megabytes)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert job.stdout is not None
    step, lines = 0.0, []
    for line in job.stdout:
        lines.append(line)
        if "worker 0] steps of" in line:
            step = float(line.split()[-2])
            break
    began = time.monotonic()
    job.send_signal(signal.SIGTERM)
    lines += job.communicate(timeout=TIMEOUT)[0].splitlines()
    ended = time.monotonic() - began
    found = [match for match in map(STOPPED.search, lines) if match]
    if job.returncode != 143 or len(found) != 2 or found[0][1] != found[1][1]:
        raise AssertionError(f"exit code {job.returncode}: {'; '.join(lines[-10:])}")
    saved = json.loads((folder / "training_metadata.json").read_text())
    if saved != {"epoch": 0, "batch": int(found[0][1]) - 1}:
        raise AssertionError(f"expected batch {found[0][1]} of epoch 1, received {saved}")
    return {
        "step": step,
        "saving": max(float(match[3]) for match in found),
        "saved": max(float(match[2]) for match in found),
        "ended": ended,
    }


def draw(file: Path, rows: list[dict[str, Any]]) -> None:
    groups = {
        f"{row['megabytes']} MB": {name: row[name] for name in ("step", "saving", "saved", "ended")}
        for row in rows
    }
    charts.bars(file, "After SIGTERM", "seconds", groups)


def main(argv: list[str]) -> None:
    del argv
    rows: list[dict[str, Any]] = []
    for megabytes in MEGABYTES.value:
        rounds = []
        for _ in range(ROUNDS.value):
            with tempfile.TemporaryDirectory() as folder:
                rounds.append(one_job(megabytes, Path(folder)))
        maxima = {name: max(found[name] for found in rounds) for name in rounds[0]}
        rows.append({"megabytes": megabytes, **maxima})
    print(f"\nseconds, the maximum of {ROUNDS.value} jobs of two workers\n")
    print(f"{'weights':>10} {'step':>8} {'saving':>8} {'saved':>8} {'ended':>8}")
    for row in rows:
        figures = " ".join(f"{row[name]:8.2f}" for name in ("step", "saving", "saved", "ended"))
        print(f"{row['megabytes']:>7} MB {figures}")
    results.save(JSON.value, {"rows": rows}, lambda file: draw(file, rows))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    app.run(main)
