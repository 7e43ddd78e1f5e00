"""The command `tfdist ps follow`. It starts fast: it imports the rest when it runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from tfdist.cli.arguments import seconds

DESCRIPTION = """\
Publishes the tables and variables of a running training in a folder, for servers and processes that
follow it: whole at first, then the rows that have changed. Each time it makes the job's parameter
servers write a snapshot to their checkpoint_dir, which it must be able to read, and writes the
values that have changed, without the optimizers' slots."""
EPILOG = """\
examples:
  tfdist ps follow published
      your only running job, every minute
  tfdist ps follow --every 30 published --job job.json
      a job that 'tfdist run' has started
  tfdist ps follow published --cluster "$TF_CONFIG" --checkpoint-dir /shared/snapshots
      a job that a scheduler has started; the secret: TFDIST_SECRET or TFDIST_SECRET_FILE
  tfdist ps follow published --checkpoint-dir /shared/snapshots
      the snapshots that a training writes by itself (checkpoint_every); also of a training without
      ps tasks, whose workers hold the tables

exit code:
  0 when the job of a job file has ended and its last snapshot is published; 1 if the first
  publication fails, or that; 2 for a wrong command line or a job without a checkpoint_dir; 130
  after Ctrl-C, 143 after SIGTERM.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    parser.add_argument("folder", metavar="DIR", help="the folder, which is made if necessary")
    parser.add_argument(
        "--every",
        type=seconds,
        default=60.0,
        metavar="S",
        help="seconds between two publications (default: 60)",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--job",
        type=Path,
        metavar="FILE",
        help="the job file of a 'tfdist run' (default: your only running job's)",
    )
    where.add_argument("--cluster", metavar="TF_CONFIG", help="a TF_CONFIG of the job")
    parser.add_argument(
        "--checkpoint-dir",
        metavar="DIR",
        help="the training's checkpoint_dir as it is seen here (default: as the servers say)",
    )
    parser.set_defaults(instead_of_job=("cluster", "checkpoint_dir"))


def run(chosen: argparse.Namespace) -> int:
    """Publishes; returns the exit code."""
    from tfdist.serving.tables import follow

    return follow.follow(
        chosen.folder, chosen.every, chosen.job, chosen.cluster, chosen.checkpoint_dir
    )
