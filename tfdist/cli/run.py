"""The command `tfdist run`. It starts fast: it imports the launcher when it runs."""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

from tfdist.cli import start_options
from tfdist.cli.arguments import seconds, whole_number
from tfdist.config.printing import printable
from tfdist.errors import ClusterConfigError
from tfdist.launch.binding import Binding
from tfdist.launch.hosts.cooldown import Cooldown

DESCRIPTION = """\
Starts the tasks of a training job on this machine, or with --hosts on several over ssh: each runs
the script with its own TF_CONFIG.
Their output is shown with a prefix such as "[worker 1]". When one task fails, the others are
stopped and the first failure is reported, or with --restarts the job continues. The workers of an
elastic job (--workers MIN:MAX) fail, leave and join while the others continue."""
EPILOG = """\
Everything after the script is passed to it unchanged, options too.

examples:
  tfdist run --workers 2 train.py --epochs 3
      two workers; --epochs 3 is an option of train.py
  tfdist run --workers 3 --log-dir logs --timeout 3600 train.py
      three workers, for an hour at most; logs/worker-0.log etc. keep all output
  tfdist run --workers 2 --dashboard train.py
      also prints the address of a web page that shows losses, metrics and tasks
  tfdist run --workers 2 --restarts 3 train.py
      when a worker fails, all start again, three times at most
  tfdist run --hosts node1:2,node2:2 train.py
      four workers, two on each host
  tfdist run --workers 2:8:4 train.py
      an elastic job: four workers at first; what fails is started again alone, and
      'tfdist scale' starts and ends workers; with fewer than two the job fails

exit code:
  0 when all went well; else the code of the first task that failed (128 + n if signal n ended it);
  124 at the time limit; 130 after Ctrl-C; 143 after SIGTERM, also to one of the tasks, on which a
  scheduler can start the job again; 2 for a wrong command line. Of an elastic job: 0 when all
  workers that still ran have ended well, 143 when all have left after a SIGTERM to them.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    parser.usage = "tfdist run [options] (script.py | -m module) [its own arguments]"
    parser.add_argument(
        "--workers",
        type=start_options.worker_numbers,
        metavar="N",
        help="training tasks; with --ps or --evaluator the first is the chief (default: 1, or "
        "with hosts all their slots). "
        "MIN:MAX or MIN:MAX:START makes an elastic job without a chief, which begins with START "
        "workers (default: MIN)",
    )
    parser.add_argument(
        "--ps",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="parameter servers, for scripts that serve one (default: 0)",
    )
    parser.add_argument("--evaluator", action="store_true", help="start an evaluator too")
    parser.add_argument(
        "--data-workers",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="processes that prepare input, for tfdist.data.distribute (default: 0)",
    )
    parser.add_argument(
        "--timeline",
        type=Path,
        metavar="FILE",
        help="write what all tasks do, step by step, in Chrome's trace format "
        "(default: TFDIST_TIMELINE, if it is set)",
    )
    parser.add_argument(
        "--restarts",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="start again what fails, N times in all: with --ps the task that failed, also a data "
        "worker or an evaluator, else all tasks (default: 0)",
    )
    parser.add_argument(
        "--max-restarts",
        type=whole_number(0),
        metavar="N",
        help="of an elastic job: start tasks that fail again, N times in all (default: 10). A "
        "worker that fails three times in a row, each soon after its start, is left out",
    )
    parser.add_argument(
        "--start-timeout",
        type=seconds,
        metavar="S",
        help="of an elastic job: it begins with fewer than START workers this many seconds after "
        "MIN of them were there (default: TFDIST_ELASTIC_START_TIMEOUT, else it waits for START)",
    )
    start_options.add_hosts(parser)
    parser.add_argument(
        "--blacklist-cooldown-range",
        type=seconds,
        nargs=2,
        metavar=("S", "S"),
        help="of an elastic job: a host on which workers fail three times within 5 minutes takes "
        "none for the first number of seconds, then is tried again; each time that a worker fails "
        "there again for twice as long, up to the second number (default: 30 600)",
    )
    parser.add_argument(
        "--bind",
        choices=[binding.value for binding in Binding],
        default=Binding.NONE.value,
        help="bind each task to its share of its host's cores, or of its NUMA nodes "
        "(default: none)",
    )
    start_options.add_limits(parser)
    start_options.add_observation(parser)
    parser.add_argument(
        "-m",
        action="store_true",
        dest="module",
        help="the script is the name of a module, as with 'python -m'",
    )
    # One list: argparse then leaves all words from the script on unchanged, "--" included.
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    # For options that do not fit together.
    parser.set_defaults(parser=parser)


def run(chosen: argparse.Namespace) -> int:
    """Runs the job; returns the exit code.

    Raises:
      SystemExit: with code 2 for options that do not fit together.
    """
    parser: argparse.ArgumentParser = chosen.parser
    command = chosen.command[1:] if chosen.command[:1] == ["--"] else chosen.command
    if not command:
        parser.error("expected a script to run, received none")
    script, module = (None, command[0]) if chosen.module else (Path(command[0]), None)
    if script is not None and not script.exists():
        parser.error(f"expected a script, but {command[0]} does not exist")
    if script is not None and not script.is_file():
        parser.error(f"expected a script, but {command[0]} is not a file")
    _tell_options_of_the_script(chosen, command[0], command[1:])
    start_options.check(chosen)
    # Not above: --help and a wrong command line do not need it.
    from tfdist.launch import run as launch

    try:
        options = launch.LaunchOptions(
            script=script,
            module=module,
            arguments=command[1:],
            ps=chosen.ps,
            evaluator=chosen.evaluator,
            data_workers=chosen.data_workers,
            timeline=chosen.timeline,
            restarts=chosen.restarts,
            max_restarts=chosen.max_restarts,
            cooldown=Cooldown(*chosen.blacklist_cooldown_range)
            if chosen.blacklist_cooldown_range
            else None,
            start_timeout=chosen.start_timeout,
            binding=Binding(chosen.bind),
            workers=start_options.workers(chosen) or 1,
            **start_options.launch_options(chosen),
        )
    except ClusterConfigError as error:
        parser.error(str(error))
    try:
        return launch.run(options)
    except (OSError, ClusterConfigError) as error:
        print(f"tfdist run: error: {printable(str(error))}", file=sys.stderr)
        return 1


def _tell_options_of_the_script(chosen: argparse.Namespace, script: str, words: list[str]) -> None:
    """Says which of a script's words look like options of `tfdist run`.

    An option that also precedes the script is given to both on purpose.
    """
    parser: argparse.ArgumentParser = chosen.parser
    ours = {name: action for action in parser._actions for name in action.option_strings}
    for word, following in itertools.pairwise([*words, "--"]):
        name, equals, _ = word.partition("=")
        action = ours.get(name)
        if action is None or not name.startswith("--") or action.dest == "help":
            continue
        if getattr(chosen, action.dest) != action.default:
            continue
        has_value = action.nargs != 0 and not equals and not following.startswith("--")
        print(
            f"tfdist run: note: {f'{word} {following}' if has_value else word} comes after "
            f"{script} and is given to it; options of tfdist run come before {script}",
            file=sys.stderr,
        )
