"""The command `tfdist top`. It starts fast: it imports the rest when it runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from tfdist.cli.arguments import seconds

DESCRIPTION = """\
Shows what the tasks of a running job do: steps and rows per second, the share of time in which they
communicate and wait, the task that they wait for, bytes, processors, memory, and data tasks."""
EPILOG = """\
examples:
  tfdist top
      your only running job, to its end
  tfdist top --job job.json --once
      one table, for scripts
  TFDIST_SECRET_FILE=job.secret tfdist top --targets host1:9100,host2:9101
      tasks that a scheduler has started, by the addresses of their metrics

exit code:
  0; with --once 1 if a task did not answer; 2 for a wrong command line, a job that has ended or
  serves no metrics; 130 after Ctrl-C.
"""


def add_target_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that name the job."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--job",
        type=Path,
        metavar="FILE",
        help="the job file of a 'tfdist run', with addresses and secret (default: your "
        "only running job's)",
    )
    parser.set_defaults(instead_of_job=("targets",))
    where.add_argument(
        "--targets",
        metavar="HOST:PORT,...",
        help="addresses of the tasks' metrics; the secret: TFDIST_SECRET or TFDIST_SECRET_FILE",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    add_target_options(parser)
    parser.add_argument(
        "--interval",
        type=seconds,
        default=2.0,
        metavar="S",
        help="seconds between two looks (default: 2)",
    )
    parser.add_argument("--once", action="store_true", help="print one table, and end")


def run(chosen: argparse.Namespace) -> int:
    """Shows the tasks; returns the exit code."""
    from tfdist.observe.live import top

    return top.run(chosen.job, chosen.targets, chosen.interval, chosen.once)
