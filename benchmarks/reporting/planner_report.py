"""The table and the chart of benchmarks/planner.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reporting import charts

GOAL = 0.1


def show(figures: dict[str, Any]) -> None:
    """Prints the table."""
    rates = ", ".join(
        f"{rate / 1e6:.2f} MB/s of {float(gigabits) * 125:g}"
        for gigabits, rate in figures["streams"].items()
    )
    print(f"\n{figures['hosts']} hosts; bare sockets between all at once: {rates}")
    if figures["load"] > 1:
        print(f"the machine was not idle: its load was {figures['load']:.1f}")
    print("seconds of a step; error of the plan with the link's rate, and with the sockets'\n")
    print(f"{'link':>12} {'parameters':>10} {'':10} {'alone':>8} {'measured':>9}", end="")
    print(f" {'plan':>8} {'error':>7} {'plan':>8} {'error':>7}  goal {GOAL:.0%}")
    for row in figures["rows"]:
        print(
            f"{row['gigabits']:5g} Gbit/s {row['parameters'] / 1e6:8.2f} M {row['kind']:10} "
            f"{row['alone']:8.3f} {row['seconds']:9.3f} "
            f"{row['link']:8.3f} {row['link_error']:+7.1%} "
            f"{row['sockets']:8.3f} {row['sockets_error']:+7.1%}  "
            f"{'reached' if _error(row) <= GOAL else 'missed'}"
        )
    print(f"largest error: {max(map(_error, figures['rows'])):.1%}")


def draw(file: Path, figures: dict[str, Any]) -> None:
    """Draws planned and measured steps beside each other."""
    groups: dict[str, dict[str, float]] = {}
    for row in figures["rows"]:
        name = f"{1e3 * row['gigabits']:g} Mbit/s\n{row['parameters'] / 1e6:.1f} M\n"
        bars = groups.setdefault(name + f"{row['alone']:.1f} s", {})
        bars[f"tfdist, {row['kind']}"] = row["seconds"]
        bars[f"plan, {row['kind']}"] = row["sockets"]
    charts.bars(
        file,
        f"tfdist plan and measured steps, {figures['hosts']} hosts",
        "seconds of a step",
        groups,
        log=True,
        note="link, parameters, computing of a step; exchange after the computing, or overlapped; "
        "plan with the rate of bare sockets",
    )


def _error(row: dict[str, Any]) -> float:
    return abs(row["sockets_error"])
