"""The command `tfdist stop`. It starts fast: it imports the rest when it runs."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from tfdist.cli.arguments import seconds

DESCRIPTION = """\
Tells a job of 'tfdist run' to end, as Ctrl-C or SIGTERM to its launcher do: a training ends its
step and saves. It waits for the end, and tells the job's exit code."""
EPILOG = """\
examples:
  tfdist stop
      your only running job
  tfdist stop --job /tmp/tfdist-1000/4711-3fa2.json --timeout 120
      a job of several; 'tfdist jobs' lists them

exit code:
  0 if the job has ended; 1 if it has not in time, and still ends; 2 for a wrong command line, or if
  there is no such job; 130 after Ctrl-C.
"""
_PAUSE = 0.1  # seconds between two looks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    parser.set_defaults(takes_ended_jobs=True)
    parser.add_argument(
        "--job", type=Path, metavar="FILE", help="the job's file (default: your only running job)"
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=60.0,
        metavar="S",
        help="seconds to wait for its end (default: 60); its --grace says when tasks are killed",
    )


def run(chosen: argparse.Namespace) -> int:
    """Ends the job; returns the exit code."""
    from tfdist.config.printing import printable
    from tfdist.errors import ClusterConfigError
    from tfdist.launch.job_registry import job_of, tell

    try:
        job = job_of(chosen.job)
        if not job.is_running:
            raise ClusterConfigError(f"{job.job_file}: the job has ended")
    except ClusterConfigError as error:
        print(f"tfdist stop: error: {printable(str(error))}", file=sys.stderr)
        return 2
    tell(job, signal.SIGTERM)
    deadline = time.monotonic() + chosen.timeout
    file = Path(job.job_file)
    while job.is_running:
        if time.monotonic() > deadline:
            print(
                printable(
                    f"tfdist stop: {file}: the job has not ended within {chosen.timeout:g} s; it "
                    "was told to"
                ),
                file=sys.stderr,
            )
            return 1
        time.sleep(_PAUSE)
        job = job_of(file)
    how = "its launcher was killed" if job.code is None else f"exit code {job.code}"
    print(printable(f"the job has ended: {how}"))
    return 0
