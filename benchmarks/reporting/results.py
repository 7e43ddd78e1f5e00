"""The output files of a benchmark: figures as JSON, with the machine, and a chart."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PACKAGES = ("tfdist", "tensorflow", "keras", "tf_keras", "numpy")


def save(file: str | None, figures: dict[str, Any], draw: Callable[[Path], None]) -> None:
    """Writes the figures and the chart, if there is a file name.

    Args:
      file: the JSON file; the chart is beside it, ending in .png. `None` writes nothing.
      figures: the measurements.
      draw: draws the chart into its argument; a missing matplotlib only prints a message.
    """
    if file is None:
        return
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {"command": command(), "machine": machine(), **figures}
    path.write_text(json.dumps(report, indent=2) + "\n")
    try:
        draw(path.with_suffix(".png"))
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        print(f"no chart beside {path}: pip install matplotlib", file=sys.stderr)


def command() -> str:
    """The command line of this program, without its output file."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--json")
    _, arguments = parser.parse_known_args()
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *arguments])


def machine() -> dict[str, Any]:
    """The machine and the versions that the figures depend on."""
    cpu = next(_values("/proc/cpuinfo", "model name"), platform.machine())
    memory = next(_values("/proc/meminfo", "MemTotal"), "0 kB")
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cpu": cpu,
        "processors": os.cpu_count(),
        "memory_gb": round(int(memory.split()[0]) / 2**20, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: version for name in PACKAGES if (version := _version(name))},
    }


def _values(file: str, key: str) -> Iterator[str]:
    path = Path(file)
    for line in path.read_text().splitlines() if path.exists() else []:
        name, _, value = line.partition(":")
        if name.strip() == key:
            yield value.strip()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
