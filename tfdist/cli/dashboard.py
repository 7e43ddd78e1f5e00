"""The command `tfdist dashboard`. It starts fast: it imports the rest when it runs."""

from __future__ import annotations

import argparse

from tfdist.cli.arguments import whole_number
from tfdist.cli.top import add_target_options

DESCRIPTION = """\
Serves a web page about a running job: the states and connections of its tasks, the last seconds of
their collectives and steps, and the loss. The page only reads. The job must have been started with
TFDIST_METRICS_PORT."""
EPILOG = """\
examples:
  tfdist dashboard --job job.json
      prints the address of the page, which only this machine reaches
  ssh -L 8000:127.0.0.1:8000 machine tfdist dashboard --job job.json --port 8000
      the page of a job on another machine

exit code:
  130 after Ctrl-C; 2 for a wrong command line, a job that serves no metrics, or a port that is
  taken.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    add_target_options(parser)
    parser.add_argument(
        "--port",
        type=whole_number(0),
        default=0,
        metavar="P",
        help="where to listen (default: 0, any free port)",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="the numeric address to listen on (default: 127.0.0.1). The connection is not "
        "encrypted: prefer a tunnel to any other address",
    )


def run(chosen: argparse.Namespace) -> int:
    """Serves the page; returns the exit code."""
    from tfdist.observe.live import dashboard

    return dashboard.run(chosen.job, chosen.targets, chosen.host, chosen.port)
