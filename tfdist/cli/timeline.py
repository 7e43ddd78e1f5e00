"""The command `tfdist timeline`. It starts fast: it imports the rest when it runs."""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path

from tfdist.cli.arguments import add_command
from tfdist.cli.job_options import add_job_options

DESCRIPTION = """\
Records what the tasks of a job do while it runs: steps, collectives, requests to parameter servers,
checkpoints. 'tfdist run --timeline FILE' records a whole job."""
EPILOG = None
START_DESCRIPTION = """\
Lets all tasks of a job on this machine begin to record. The job continues."""
START_EPILOG = """\
examples:
  tfdist timeline start slow.json --job /tmp/tfdist-1000/4711.json
      a job that 'tfdist run' has started
  tfdist timeline start /shared/slow.json --dir /var/tmp/debug
      the tasks of this machine whose TFDIST_DEBUG_DIR this is

exit code:
  0 if all tasks record; 1 if one does not; 2 for a wrong command line, a file that cannot be
  written, or if the job has ended.
"""
STOP_DESCRIPTION = """\
Ends what 'tfdist timeline start' or 'tfdist run --timeline' has begun, and writes the file. Open it
with https://ui.perfetto.dev or chrome://tracing."""
STOP_EPILOG = """\
example:
  tfdist timeline stop --job /tmp/tfdist-1000/4711.json

exit code:
  0 if all tasks have stopped, and the file is written; 1 if not; 2 for a wrong command line, or if
  the job has ended.
"""
MERGE_DESCRIPTION = """\
Merges the parts that tasks have left beside FILE, where neither 'tfdist run' nor the last task of
the job could: when a task of a scheduler's job was killed."""
MERGE_EPILOG = """\
example:
  tfdist timeline merge /shared/job.json

exit code:
  0; 2 if there are no parts, or the file cannot be written.
"""


def add_arguments(timeline: argparse.ArgumentParser) -> None:
    """Adds the commands `start`, `stop` and `merge`."""
    commands = timeline.add_subparsers(
        dest="of_timeline", title="commands", metavar="COMMAND", required=True
    )
    add = functools.partial(add_command, commands)
    start = add("start", "let all tasks record", START_DESCRIPTION, START_EPILOG)
    start.add_argument("file", type=Path, metavar="FILE", help="the timeline to write")
    add_job_options(start)
    add_job_options(add("stop", "end the recording", STOP_DESCRIPTION, STOP_EPILOG))
    merge = add("merge", "merge what tasks have left", MERGE_DESCRIPTION, MERGE_EPILOG)
    merge.add_argument("file", type=Path, metavar="FILE", help="the timeline to write")


def run(chosen: argparse.Namespace) -> int:
    """Runs `start`, `stop` or `merge`; returns the exit code."""
    commands = {"start": _start, "stop": _stop, "merge": _merge}
    try:
        return commands[chosen.of_timeline](chosen)
    except KeyboardInterrupt:
        return 130


def _start(chosen: argparse.Namespace) -> int:
    # Not above: --help does not need it.
    from tfdist.config.printing import printable_line
    from tfdist.observe import asking, channel
    from tfdist.observe.timeline import parts

    timeline: Path = chosen.file.absolute()
    request = f"{channel.START_TIMELINE}{timeline}"
    if len(request.encode()) > channel.MAX_BYTES:
        return _refused("start", f"expected a path of less than {channel.MAX_BYTES} bytes")
    try:
        where = asking.directory(chosen.job, chosen.dir)
        parts.make_directory(timeline)
        answers = asking.answers(where, request, chosen.timeout)
    except asking.NoTasksError as error:
        parts.remove_empty(timeline)
        return _refused("start", str(error))
    except OSError as error:
        return _refused("start", f"cannot write {timeline}: {error}")
    for name, answer in answers.items():
        print(printable_line(f"{name}: {answer}"))
    parts.remove_empty(timeline)
    return 0 if all(answer.startswith("recording") for answer in answers.values()) else 1


def _stop(chosen: argparse.Namespace) -> int:
    from tfdist.config.printing import printable_line
    from tfdist.observe import asking, channel

    try:
        where = asking.directory(chosen.job, chosen.dir)
        answers = asking.answers(where, channel.STOP_TIMELINE, chosen.timeout)
    except asking.NoTasksError as error:
        return _refused("stop", str(error))
    for name, answer in answers.items():
        print(printable_line(f"{name}: {answer}"))
    stopped = [answer for answer in answers.values() if answer.startswith("stopped ")]
    codes = [
        _write("stop", Path(timeline), code=1)
        for timeline in sorted({answer.removeprefix("stopped ") for answer in stopped})
    ]
    return 0 if len(stopped) == len(answers) and not any(codes) else 1


def _merge(chosen: argparse.Namespace) -> int:
    return _write("merge", chosen.file.absolute(), code=2)


def _write(command: str, timeline: Path, code: int) -> int:
    """Merges the parts, and describes the timeline; returns the exit code."""
    from tfdist.config.printing import printable
    from tfdist.observe.timeline import parts
    from tfdist.observe.timeline.merge import merge

    try:
        print(printable(str(merge(timeline))))
    except FileNotFoundError:
        folder = parts.directory_of(timeline)
        return _refused(command, f"{folder}: expected a directory with parts: no such file", code)
    except (OSError, ValueError) as error:
        return _refused(command, str(error), code)
    return 0


def _refused(command: str, reason: str, code: int = 2) -> int:
    from tfdist.config.printing import printable

    print(f"tfdist timeline {command}: error: {printable(reason)}", file=sys.stderr)
    return code
