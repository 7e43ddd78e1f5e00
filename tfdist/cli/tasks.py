"""The command `tfdist tasks`. It starts fast: it imports the rest when it runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from tfdist.cli.arguments import add_watch_options

DESCRIPTION = """\
Shows the data tasks of a running job: how many are done, which are pending, with which worker and
since when, which are parked, records per second and the time left. With TFDIST_SECRET, or
TFDIST_SECRET_FILE, as the job has it."""
EPILOG = """\
examples:
  tfdist tasks --job /tmp/tfdist-1000/4711.json
      a job that 'tfdist run' has started, which has told this file
  tfdist tasks --address host1:2222
      the task that deals them out: the first parameter server, or else rank 0
  tfdist tasks --output out
      a prediction into the folder out
  TF_CONFIG=... tfdist tasks --watch 10
      the cluster of TF_CONFIG, every ten seconds, until Ctrl-C

exit code:
  0; 1 if the job did not answer; 2 for a wrong command line; 130 after Ctrl-C.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="the control address of the task that deals them out (default: from TF_CONFIG)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="instead, the parts of a prediction, by its output folder",
    )
    add_watch_options(parser, "--address")


def run(chosen: argparse.Namespace) -> int:
    """Prints the tasks; returns the exit code."""
    if chosen.output is not None:
        from tfdist.prediction import report as of_prediction

        return of_prediction.run(chosen.output, chosen.watch)
    from tfdist.data.queue import report

    return report.run(chosen.address, chosen.job, chosen.watch)
