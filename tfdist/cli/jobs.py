"""The commands `tfdist jobs`, `tfdist logs` and `tfdist stop`: the jobs of this user here."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfdist.launch.job_registry import JobEntry
    from tfdist.observe.metrics.fit_progress import FitProgress

DESCRIPTION = """\
Lists the jobs that 'tfdist run' has started here for you: running ones, with the epoch of fit and
the time left, and ended ones of the last day."""
EPILOG = """\
examples:
  tfdist jobs
      a line for each that runs and for the newest others, 20 in all, the newest first
  tfdist jobs --all
      also the older ones
  tfdist jobs --json
      for scripts

exit code:
  0; 2 for a wrong command line.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    parser.add_argument("--all", action="store_true", help="also list older jobs, which have ended")
    parser.add_argument("--json", action="store_true", help="print one JSON list of all jobs")


def run(chosen: argparse.Namespace) -> int:
    """Prints the jobs; returns the exit code."""
    from tfdist.config.printing import printable
    from tfdist.launch.job_registry import jobs

    found = jobs()
    if chosen.json:
        print(json.dumps([_fields(job) for job in found], indent=2))
        return 0
    if not found:
        print("no jobs", file=sys.stderr)
        return 0
    shown = found if chosen.all else _newest(found)
    print(printable("\n".join(_aligned([_HEAD, *map(_cells, shown)]))))
    if left := len(found) - len(shown):
        print(f"{left} older ones have ended: tfdist jobs --all", file=sys.stderr)
    return 0


def _newest(jobs: Sequence[JobEntry]) -> list[JobEntry]:
    """Returns all running jobs, and of the others the newest, as far as they fit in a screen."""
    room = max(0, _SHOWN - sum(job.is_running for job in jobs))
    ended = [job for job in jobs if not job.is_running][:room]
    return [job for job in jobs if job.is_running or job in ended]


_HEAD = ("state", "began", "tasks", "progress", "job file", "command")
# Seconds in which the tasks of a job must tell how far they are.
_TIMEOUT = 1.0
_SHOWN = 20


def _progress(job: JobEntry) -> FitProgress | None:
    from tfdist.observe.live.job_progress import progress_of

    return progress_of(Path(job.job_file), _TIMEOUT) if job.is_running else None


def _fields(job: JobEntry) -> dict[str, object]:
    fit = _progress(job)
    return {**dataclasses.asdict(job), "fit": None if fit is None else dataclasses.asdict(fit)}


def _cells(job: JobEntry) -> tuple[str, ...]:
    from tfdist.observe.live.table import progress

    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.began))
    fit = _progress(job)
    stands = "" if fit is None else progress(fit)
    command = " ".join(job.command)
    return (state(job), began, str(len(job.tasks)), stands, job.job_file, command)


def state(job: JobEntry) -> str:
    """Returns "running", or how a job has ended."""
    if job.is_running:
        return "running"
    return "killed" if job.code is None else f"exit code {job.code}"


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in rows]
