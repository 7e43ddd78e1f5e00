"""The commands `tfdist jobs`, `tfdist logs` and `tfdist stop`: the jobs of this user here."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfdist.launch.job_registry import JobEntry

DESCRIPTION = """\
Lists the jobs that 'tfdist run' has started here for you: running ones, and ended ones of the last
day."""
EPILOG = """\
examples:
  tfdist jobs
      a line for each, the newest first
  tfdist jobs --json
      for scripts

exit code:
  0; 2 for a wrong command line.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    parser.add_argument("--json", action="store_true", help="print one JSON list")


def run(chosen: argparse.Namespace) -> int:
    """Prints the jobs; returns the exit code."""
    from tfdist.config.printing import printable
    from tfdist.launch.job_registry import jobs

    found = jobs()
    if chosen.json:
        print(json.dumps([dataclasses.asdict(job) for job in found], indent=2))
        return 0
    if not found:
        print("no jobs", file=sys.stderr)
        return 0
    print(printable("\n".join(_aligned([_HEAD, *map(_cells, found)]))))
    return 0


_HEAD = ("state", "began", "tasks", "job file", "command")


def _cells(job: JobEntry) -> tuple[str, ...]:
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.began))
    return (state(job), began, str(len(job.tasks)), job.job_file, " ".join(job.command))


def state(job: JobEntry) -> str:
    """Returns "running", or how a job has ended."""
    if job.is_running:
        return "running"
    return "killed" if job.code is None else f"exit code {job.code}"


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in rows]
