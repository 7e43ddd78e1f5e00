"""The command `tfdist logs`. It starts fast: it imports the rest when it runs."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

DESCRIPTION = """\
Prints the newest output of a job that 'tfdist run' has started here, also after its end: 8 to 16 MB
of lines, with the prefix of each task."""
EPILOG = """\
examples:
  tfdist logs
      your only running job
  tfdist logs --follow worker-1
      the lines of one task, until the job ends
  tfdist logs --job /tmp/tfdist-1000/4711-3fa2.json
      a job of the last day; 'tfdist jobs' lists them

exit code:
  0; 1 if its output was not kept; 2 for a wrong command line, or if there is no such job; 130 after
  Ctrl-C.
"""
_PAUSE = 0.2  # seconds between two looks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    parser.set_defaults(takes_ended_jobs=True)
    parser.add_argument(
        "task", nargs="?", metavar="TASK", help="only its lines, such as worker-1 (default: all)"
    )
    parser.add_argument(
        "--job", type=Path, metavar="FILE", help="the job's file (default: your only running job)"
    )
    parser.add_argument(
        "--follow", "-f", action="store_true", help="continue with new lines, until the job ends"
    )


def run(chosen: argparse.Namespace) -> int:
    """Prints the lines; returns the exit code."""
    from tfdist.config.printing import printable
    from tfdist.errors import ClusterConfigError
    from tfdist.launch.job_registry import job_of

    try:
        job = job_of(chosen.job)
        task = None if chosen.task is None else _named(chosen.task, job.tasks)
    except ClusterConfigError as error:
        print(f"tfdist logs: error: {printable(str(error))}", file=sys.stderr)
        return 2
    log = job.log
    if log is None or not log.exists():
        print("tfdist logs: error: the output of this job was not kept", file=sys.stderr)
        return 1
    prefix = f"[{task}] " if task is not None else ""
    for line in _lines(log, chosen.follow, Path(job.job_file)):
        if line.startswith(prefix):
            print(printable(line), flush=chosen.follow)
    return 0


def _named(text: str, tasks: Sequence[str]) -> str:
    """Returns the task that a text names: "worker 1", or without quotes worker-1 or worker:1.

    Raises:
      ClusterConfigError: there is no such task.
    """
    from tfdist.errors import ClusterConfigError

    name = re.sub(r"[ _:/-]?(\d+)$", r" \1", text.strip())
    if name not in tasks:
        raise ClusterConfigError(f"TASK: expected one of {', '.join(tasks)}, received {text!r}")
    return name


def _lines(log: Path, follows: bool, job_file: Path) -> Iterator[str]:
    """Yields the lines of a log, and of the one before it; with `follows` until the job's end."""
    import time

    before = log.with_name(f"{log.name}.1")
    if before.exists():
        yield from _text(before.read_bytes())
    file = log.open("rb")
    try:
        rest = b""
        while True:
            has_ended = not job_file.exists()  # before the last look
            while data := file.read(1 << 20):
                *lines, rest = (rest + data).split(b"\n")
                yield from (line.decode(errors="replace") for line in lines)
            if not follows or has_ended:
                break
            if _is_replaced(log, file.fileno()):
                file.close()
                file = log.open("rb")
                continue
            time.sleep(_PAUSE)
        yield from _text(rest)
    finally:
        file.close()


def _text(data: bytes) -> list[str]:
    return data.decode(errors="replace").splitlines()


def _is_replaced(log: Path, descriptor: int) -> bool:
    """Whether the launcher has begun another file."""
    import os

    try:
        return not os.path.samestat(log.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
