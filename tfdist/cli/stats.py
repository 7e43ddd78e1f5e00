"""The command `tfdist ps stats`. It starts fast: it imports the rest when it runs."""

from __future__ import annotations

import argparse

from tfdist.cli.arguments import add_watch_options, seconds

DESCRIPTION = """\
Asks the parameter servers of a running job what they hold and what they do, per second, between two
readings. With TFDIST_SECRET, or TFDIST_SECRET_FILE, as the job has it."""
EPILOG = """\
examples:
  tfdist ps stats --job /tmp/tfdist-1000/4711.json
      a job that 'tfdist run' has started, which has told this file
  tfdist ps stats --cluster host1:2222,host2:2222
      two servers, read twice within a second
  TF_CONFIG=... tfdist ps stats --watch 10
      the cluster of TF_CONFIG, every ten seconds, until Ctrl-C

exit code:
  0; 1 if a server did not answer; 2 for a wrong command line; 130 after Ctrl-C.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    parser.add_argument(
        "--cluster",
        metavar="CLUSTER",
        help='the control addresses of the servers, "host:port,host:port", or a TF_CONFIG '
        "(default: the variable TF_CONFIG)",
    )
    add_watch_options(parser, "--cluster")
    parser.add_argument(
        "--interval",
        type=seconds,
        default=1.0,
        metavar="S",
        help="seconds between the two readings (default: 1)",
    )


def run(chosen: argparse.Namespace) -> int:
    """Prints the statistics; returns the exit code."""
    from tfdist.ps.stats import report

    return report.run(chosen.cluster, chosen.interval, chosen.watch, chosen.job)
