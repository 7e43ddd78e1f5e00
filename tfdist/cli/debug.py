"""The command `tfdist debug`. It starts fast: it imports the rest when it runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tfdist.cli.arguments import add_command
from tfdist.cli.job_options import add_job_options

DESCRIPTION = """\
Looks at a job that hangs, or has failed: names the last operations of its tasks, and the task and
the collective that are the cause."""
EPILOG = None
DUMP_DESCRIPTION = """\
Asks all tasks of a job on this machine to write what they did last, and prints where. The tasks
continue. A task answers also while its main thread waits, or runs an endless loop."""
DUMP_EPILOG = """\
examples:
  tfdist debug dump --job /tmp/tfdist-1000/4711.json
      a job that 'tfdist run' has started
  tfdist debug dump --dir /var/tmp/debug
      the tasks of this machine whose TFDIST_DEBUG_DIR this is

exit code:
  0 if all tasks have written; 1 if one has not; 2 for a wrong command line, or if the job has
  ended.
"""
EXPLAIN_DESCRIPTION = """\
Reads the files of the flight recorder, and names the task and the collective that differ or are
missing."""
EXPLAIN_EPILOG = """\
example:
  tfdist debug explain /tmp/tfdist-debug-x7a1

exit code:
  0, also if something is found; 2 if there is no dump to read.
"""


def add_arguments(debug: argparse.ArgumentParser) -> None:
    """Adds the commands `dump` and `explain`."""
    commands = debug.add_subparsers(
        dest="of_debug", title="commands", metavar="COMMAND", required=True
    )
    summary = "let all tasks write what they did last"
    dump = add_command(commands, "dump", summary, DUMP_DESCRIPTION, DUMP_EPILOG)
    add_job_options(dump)
    summary = "say in words what hangs, and why"
    explain = add_command(commands, "explain", summary, EXPLAIN_DESCRIPTION, EXPLAIN_EPILOG)
    explain.add_argument("directory", type=Path, metavar="DIR", help="the directory of the dumps")


def run(chosen: argparse.Namespace) -> int:
    """Runs `dump` or `explain`; returns the exit code."""
    try:
        return _dump(chosen) if chosen.of_debug == "dump" else _explain(chosen.directory)
    except KeyboardInterrupt:
        return 130


def _dump(chosen: argparse.Namespace) -> int:
    # Not above: --help does not need it.
    from tfdist.config.printing import printable_line
    from tfdist.observe import asking

    try:
        directory = asking.directory(chosen.job, chosen.dir)
        answers = asking.answers(directory, "tfdist debug dump", chosen.timeout)
    except asking.NoTasksError as error:
        return _refused("dump", str(error))
    for name, answer in answers.items():
        print(printable_line(f"{name}: {answer}"))
    print(printable_line(f"'tfdist debug explain {directory}' explains them"))
    return 0 if all(answer.startswith("written") for answer in answers.values()) else 1


def _explain(directory: Path) -> int:
    from tfdist.config.printing import printable_line
    from tfdist.observe import dumps
    from tfdist.observe.explain import explain

    try:
        found, crashes = dumps.read_all(directory), dumps.read_crashes(directory)
    except OSError as error:
        return _refused("explain", f"{directory}: expected a directory of dumps: {error.strerror}")
    except ValueError as error:
        return _refused("explain", str(error))
    if not found and not crashes:
        return _refused("explain", f"{directory}: there are no dumps")
    try:
        names = ", ".join(dump.task for dump in found) or "none"
        findings = explain(found, crashes)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # A file has all fields, and in them something else than a recorder writes.
        return _refused(
            "explain",
            f"{directory}: expected files of the flight recorder, received {error!r:.200} in one",
        )
    print(printable_line(f"dumps of: {names}"))
    for finding in findings:
        print(printable_line(finding.text))
    return 0


def _refused(command: str, reason: str) -> int:
    from tfdist.config.printing import printable

    print(f"tfdist debug {command}: error: {printable(reason)}", file=sys.stderr)
    return 2
