"""Tables and charts of benchmarks/network.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reporting import charts

MB = 1 << 20
OF_PAYLOAD, FP16_FASTER = 0.95, 1.9  # the goals of tfdist
KINDS = {"overlapped": "tfdist, overlapped", "after": "tfdist, after", "stock": "TensorFlow"}


def show(figures: dict[str, Any]) -> None:
    """Prints the tables."""
    streams = figures["streams"]
    print(
        f"\n{_situation(figures)}\n"
        f"bare sockets: {_mbit(streams['one'])} Mbit/s from one host to another, "
        f"{_mbit(streams['all'])} from every host to the next at once "
        f"(TCP: {figures['congestion_control']})\n"
    )
    print(f"{'':>7} {'':12} {'ms':>9} {'of line':>8} {'payload':>8} {'goodput':>8}", end="")
    print(f" {'faster':>7} {'sent':>6} {'CPU':>5}  goal")
    slow = {row["bytes"]: row["seconds"] for row in figures["rows"] if _is_ours(row)}
    for row in figures["rows"]:
        faster = slow[row["bytes"]] / row["seconds"]
        line = (
            f"{row['bytes'] // MB:4} MB {row['implementation']:12} {row['seconds'] * 1e3:9.1f} "
            f"{row['of_line']:8.1%} {row['of_payload']:8.1%} {row['of_goodput']:8.1%} "
            f"{faster:6.2f}x {row['sent']:6.3f} {row['processors']:5.0%}  {_goal(row, faster)}"
        )
        print(line.rstrip())
    print("share of the ring's bound at the line rate, the payload rate, the rate of bare sockets;")
    print("speedup over tfdist; bytes on the first host's link per byte; load of all processors")
    if "training" in figures:
        _show_training(figures["training"])


def _show_training(training: dict[str, Any]) -> None:
    print(
        f"\ntraining steps, {training['parameters'] / 1e6:.2f} M parameters, "
        f"Tt = {training['transfer']:.3f} s: seconds, and efficiency\n"
    )
    print(f"{'Ts':>8} {'predicted':>10}", end="")
    print("".join(f" {name:>20}" for name in KINDS.values()))
    for row in training["rows"]:
        print(f"{row['alone']:8.3f} {row['predicted']:10.1%}", end="")
        print("".join(f" {row[k]:12.3f} {row['alone'] / row[k]:7.1%}" for k in KINDS))


def draw(file: Path, figures: dict[str, Any]) -> None:
    """Draws time against size into `file`, and the training steps into NAME_training.png."""
    rows = figures["rows"]
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        series.setdefault(row["implementation"], []).append((row["bytes"], row["seconds"]))
        if _is_ours(row):
            series.setdefault("bound", []).append((row["bytes"], row["bound_line"]))
    charts.lines(
        file,
        f"All-reduce: {_situation(figures)}",
        "size of the tensor, float32",
        "seconds (median)",
        {row["bytes"]: f"{row['bytes'] // MB} MB" for row in rows},
        series,
        note="bound: 2(N-1)/N x bytes at the line's speed; "
        + ", ".join(
            f"{row['implementation']} {row['of_line']:.1%}"
            for row in rows
            if row["bytes"] == rows[-1]["bytes"]
        )
        + f" of it at {rows[-1]['bytes'] // MB} MB",
    )
    if "training" not in figures:
        return
    training = figures["training"]
    charts.bars(
        file.with_stem(f"{file.stem}_training"),
        f"Training steps, {training['parameters'] / 1e6:.1f} M parameters: {_situation(figures)}",
        "parallel efficiency, %",
        {
            f"Ts = {row['alone']:.2f} s": {"predicted": 100 * row["predicted"]}
            | {name: 100 * row["alone"] / row[kind] for kind, name in KINDS.items()}
            for row in training["rows"]
        },
        note=f"Ts: simulated computing; Tt = {training['transfer']:.2f} s: the gradients at the "
        "rate of bare sockets; predicted: 1/(1 + Tt/Ts), communication after computing",
    )


def _goal(row: dict[str, Any], faster: float) -> str:
    if row["implementation"] == "tfdist":
        return f"{OF_PAYLOAD:.0%} of payload: {_verdict(row['of_payload'] >= OF_PAYLOAD)}"
    if row["implementation"] == "tfdist fp16":
        return f"{FP16_FASTER:g}x: {_verdict(faster >= FP16_FASTER)}"
    return ""


def _verdict(reached: bool) -> str:
    return "reached" if reached else "missed"


def _is_ours(row: dict[str, Any]) -> bool:
    return row["implementation"] == "tfdist"


def _situation(figures: dict[str, Any]) -> str:
    ranks = f" x {figures['per_host']} ranks" if figures["per_host"] > 1 else ""
    return f"{figures['hosts']} hosts{ranks}, {figures['gigabits']:g} Gbit/s links"


def _mbit(bytes_per_second: float) -> str:
    return f"{bytes_per_second * 8 / 1e6:.1f}"
