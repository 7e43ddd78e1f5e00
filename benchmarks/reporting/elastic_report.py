"""The tables and the chart of benchmarks/elastic.py."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from reporting import charts


def show(figures: dict[str, Any]) -> None:
    """Prints the tables."""
    if "recovery" in figures:
        _show_recovery(figures["recovery"], figures)
    if "restart" in figures or "torchrun" in figures:
        _show_restarts(figures)
    if why := figures.get("no_torch"):
        print(f"\nPyTorch: {why}")
    if figures["steady"]:
        _show_steady(figures["steady"], figures["goals"]["steady"])
    if why := figures.get("no_network"):
        print(f"\nnetwork namespaces cannot be made here: {why}")
    print(f"\n{figures['took']:.0f} s in all")


def _show_recovery(found: dict[str, Any], figures: dict[str, Any]) -> None:
    goals, workers = figures["goals"], figures["workers"]
    print(
        f"\nelastic job of {workers} workers, a step takes {found['step'] * 1e3:.0f} ms: seconds\n"
    )
    print(f"{'':>30} {'count':>6} {'median':>8} {'maximum':>8}  goal")
    kills, leaves, joins = found["kills"], found["leaves"], found["joins"]
    seconds = [kill["seconds"] for kill in kills]
    _line("recovery after SIGKILL", seconds, goals["recovery"], goals["recovery, maximum"])
    _line("  of rank 0", [kill["seconds"] for kill in kills if kill["rank"] == 0])
    _line("  all others have noticed", [kill["noticed"] for kill in kills])
    _line("  they are connected", [kill["formed"] for kill in kills])
    _line("lost by a leave", [leave["seconds"] for leave in leaves])
    _line("  in steps", [leave["steps"] for leave in leaves], goals["leave"])
    _line("joiner, start to ready", [join["ready"] for join in joins])
    _line("joiner, ready to first step", [join["seconds"] for join in joins], goals["join"])


def _line(name: str, values: list[float], goal: float | None = None, limit: float | None = None):
    if not values:
        return
    median, maximum = statistics.median(values), max(values)
    print(f"{name:<30} {len(values):6} {median:8.3f} {maximum:8.3f}", end="")
    if goal is not None:
        print(f"  median {goal:g}: {_outcome(median <= goal)}", end="")
    if limit is not None:
        print(f"; maximum {limit:g}: {_outcome(maximum <= limit)}", end="")
    print()


def _outcome(is_reached: bool) -> str:
    return "reached" if is_reached else "missed"


def _show_restarts(figures: dict[str, Any]) -> None:
    print("\nafter SIGKILL, all workers start again from a checkpoint: seconds to a new step\n")
    print(f"{'':>30} {'count':>6} {'median':>8} {'maximum':>8} {'step':>8} {'repeated':>9}")
    for key, name in (("restart", "tfdist run --restarts"), ("torchrun", "torchrun, DDP, Gloo")):
        if key not in figures:
            continue
        kills = figures[key]["kills"]
        seconds = [kill["seconds"] for kill in kills]
        repeated = statistics.median(kill["repeated"] for kill in kills)
        print(
            f"{name:<30} {len(kills):6} {statistics.median(seconds):8.3f} {max(seconds):8.3f} "
            f"{figures[key]['step'] * 1e3:5.0f} ms {repeated:9g}"
        )


def _show_steady(rows: list[dict[str, Any]], goal: float) -> None:
    print("\nsteps of two workers, milliseconds (median); ratio of rounds side by side\n")
    print(f"{'':>28} {'elastic':>9} {'not':>9} {'ratio':>7} {'95 % interval':>15}  goal {goal:g}")
    for row in rows:
        name = row["model"]
        if row["gigabits"]:
            name += f", {row['gigabits']:g} Gbit/s"
        # The gate holds the updates back until all gradients have come, which costs their time.
        outcome = _outcome(row["ratio"] <= goal) if "SGD" in row["model"] else ""
        interval = f"{row['low']:.3f} to {row['high']:.3f}"
        print(
            f"{name:<28} {row['elastic'] * 1e3:9.2f} {row['other'] * 1e3:9.2f} {row['ratio']:7.3f} "
            f"{interval:>15}  {outcome}"
        )


def draw(file: Path, figures: dict[str, Any]) -> None:
    """Draws the seconds until training continues after a kill."""
    names = {"recovery": "tfdist", "restart": "tfdist run --restarts", "torchrun": "torchrun"}
    seconds = {
        name: [kill["seconds"] for kill in figures[key]["kills"]]
        for key, name in names.items()
        if key in figures
    }
    if not seconds:
        return
    groups = {
        "median": {name: statistics.median(values) for name, values in seconds.items()},
        "maximum": {name: max(values) for name, values in seconds.items()},
    }
    title = f"From SIGKILL of one of {figures['workers']} workers to the next new step"
    charts.bars(file, title, "seconds", groups, log=True)
