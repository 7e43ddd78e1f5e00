"""What distribution adds to a training step of `fit`: tfdist against TensorFlow's own, in one run.

    python benchmarks/training_step.py [--rounds 7] [--steps 6] [--models dense,cnn] [--json FILE]

Two workers on this machine train a dense network of 13 M parameters and a small CNN, 32 examples
each per step, SGD, float32:

    tfdist  Keras 3 with `tfdist.MultiWorkerMirroredStrategy`
    stock   tf_keras with `tf.distribute.MultiWorkerMirroredStrategy` (RING over gRPC); Keras 3 does
            not train under it

Beside each, two processes train with the same front end, batch and model, alone but at the same
time, so that they share the machine's cores as the workers do. What a step of the workers takes
longer is what distribution adds. Before anything is timed the workers must hold the same weights,
bit for bit, after three steps, and their loss must have fallen. The four take turns, round by
round; a step's time is the median of a round and of the slower process, the table shows medians
over the rounds.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from absl import app, flags
from contenders.processes import Remote
from contenders.training import MODELS, TITLES, WORKERS, TrainingRank, tf_configs, together

ROUNDS = flags.DEFINE_integer("rounds", 7, "counted rounds of each contender", lower_bound=3)
STEPS = flags.DEFINE_integer("steps", 6, "counted steps of a round", lower_bound=2)
KINDS = flags.DEFINE_list("models", list(MODELS), "which models")
JSON = flags.DEFINE_string("json", None, "file to write the figures to")

CONTENDERS = {
    "tfdist": ("keras", "tfdist"),
    "keras alone": ("keras", "none"),
    "stock": ("tf_keras", "stock"),
    "tf_keras alone": ("tf_keras", "none"),
}
GOAL = 3  # times as much as ours is what stock is to add


def verify(name: str, ranks: list[Remote], kind: str) -> None:
    """Raises unless training makes the loss fall and leaves all workers with the same weights."""
    before = together(ranks, "state", kind)
    together(ranks, "train", kind, 0, 3)
    after = together(ranks, "state", kind)
    if len(set(after)) > 1:
        raise AssertionError(f"{name}, {kind}: the workers differ: {after}")
    if not after[0][0] < before[0][0]:
        raise AssertionError(f"{name}, {kind}: the loss went from {before[0][0]} to {after[0][0]}")


def measure(contenders: dict[str, list[Remote]], kind: str) -> dict[str, float]:
    """Median seconds of a step of each contender, taking turns."""
    for name, ranks in contenders.items():
        together(ranks, "add", kind)
        verify(name, ranks, kind)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS.value + 1):
        for name, ranks in contenders.items():
            seconds[name].append(max(together(ranks, "train", kind, 0, STEPS.value)))
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}


def main(argv: list[str]) -> None:
    del argv
    contenders: dict[str, list[Remote]] = {}
    rows = []
    try:
        for name, (front_end, strategy) in CONTENDERS.items():
            contenders[name] = [
                Remote(TrainingRank, front_end, strategy, config) for config in tf_configs()
            ]
        for kind in KINDS.value:
            times = measure(contenders, kind)
            added = {
                "tfdist": times["tfdist"] - times["keras alone"],
                "stock": times["stock"] - times["tf_keras alone"],
            }
            rows.append({"model": kind, "seconds": times, "added": added})
    finally:
        for ranks in contenders.values():
            for rank in ranks:
                rank.stop()
    print(f"\n{WORKERS} workers on one machine, milliseconds per step of fit (median)")
    print(
        f"{'':>14} {'tfdist':>8} {'alone':>8} {'added':>8}   {'stock':>8} {'alone':>8} {'added':>8}"
    )
    for row in rows:
        ms = {name: value * 1e3 for name, value in row["seconds"].items()}
        ours, theirs = row["added"]["tfdist"] * 1e3, row["added"]["stock"] * 1e3
        verdict = "reached" if theirs >= GOAL * ours else "missed"
        print(
            f"{TITLES[row['model']]:>14} "
            f"{ms['tfdist']:8.1f} {ms['keras alone']:8.1f} {ours:8.1f}   "
            f"{ms['stock']:8.1f} {ms['tf_keras alone']:8.1f} {theirs:8.1f}   "
            f"goal: a third of stock's, {verdict}"
        )
    if JSON.value:
        path = Path(JSON.value)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"workers": WORKERS, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    app.run(main)
