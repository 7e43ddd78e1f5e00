"""The options of commands that ask the tasks of a running job on this machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from tfdist.cli.arguments import seconds


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """Adds --job, --dir, and --timeout."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--job",
        type=Path,
        metavar="FILE",
        help="the job file, which 'tfdist run' writes (default: your only running job's)",
    )
    parser.set_defaults(instead_of_job=("dir",))
    where.add_argument("--dir", type=Path, metavar="DIR", help="the tasks' TFDIST_DEBUG_DIR")
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=10.0,
        metavar="S",
        help="seconds to wait for the tasks (default: 10)",
    )
