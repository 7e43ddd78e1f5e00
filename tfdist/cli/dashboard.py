"""The command `tfdist dashboard`. It starts fast: it imports the rest when it runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tfdist.cli.arguments import whole_number
from tfdist.cli.top import add_target_options

if TYPE_CHECKING:
    from tfdist.observe.live.job_record import JobRecord

DESCRIPTION = """\
Serves a web page about a running job: losses and metrics of fit with the time that is left, the
states and connections of the tasks, and the last seconds of their collectives and steps. After the
end of the job it shows the last state and the exit codes. The page only reads. 'tfdist run
--dashboard' serves the same page."""
EPILOG = """\
examples:
  tfdist dashboard
      prints the address of the page about your only running job, which only this machine reaches
  tfdist dashboard --job /tmp/tfdist-1000/4711-3fa2.json
      another job, as 'tfdist jobs' lists them; also one that has ended
  ssh -L 8000:127.0.0.1:8000 machine tfdist dashboard --job job.json --port 8000
      the page of a job on another machine

exit code:
  130 after Ctrl-C; 2 for a wrong command line, a job that serves no metrics, or a port that is
  taken.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    parser.set_defaults(takes_ended_jobs=True)
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
        help="the numeric address to listen on (default: 127.0.0.1). At another one the "
        "page is encrypted if the job is, with its certificate; else prefer a tunnel",
    )


def run(chosen: argparse.Namespace) -> int:
    """Serves the page; returns the exit code."""
    from tfdist.observe.live import dashboard
    from tfdist.observe.live.job_record import JobRecord

    record = JobRecord() if chosen.job is None else _record_of(chosen.job)
    return dashboard.run(chosen.job, chosen.targets, chosen.host, chosen.port, record)


def _record_of(file: Path) -> JobRecord:
    """Returns the launcher's notes of a job; nothing of a job that is not listed."""
    from tfdist.errors import ClusterConfigError
    from tfdist.launch.job_registry import job_of
    from tfdist.observe.live.job_record import JobEnd, JobRecord

    def end() -> JobEnd | None:
        try:
            entry = job_of(file)
        except ClusterConfigError:
            return None  # the launcher is just writing it
        return None if entry.is_running else JobEnd(entry.ended, entry.code, entry.exits)

    try:
        entry = job_of(file)
    except ClusterConfigError:
        return JobRecord()
    return JobRecord(entry.tasks, entry.states, end)
