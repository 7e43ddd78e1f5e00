"""The command `tfdist`. It starts fast: the tasks import TensorFlow, this program does not."""

from __future__ import annotations

import argparse
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tfdist._version import __version__
from tfdist.cli import check as check_command
from tfdist.cli import dashboard as dashboard_command
from tfdist.cli import debug as debug_command
from tfdist.cli import env as env_command
from tfdist.cli import jobs as jobs_command
from tfdist.cli import k8s as kubernetes_command
from tfdist.cli import logs as logs_command
from tfdist.cli import metrics as metrics_command
from tfdist.cli import plan as plan_command
from tfdist.cli import predict as predict_command
from tfdist.cli import ps_follow as ps_follow_command
from tfdist.cli import ps_serve as ps_serve_command
from tfdist.cli import run as run_command
from tfdist.cli import scale as scale_command
from tfdist.cli import serve as serve_command
from tfdist.cli import stats as stats_command
from tfdist.cli import stop as stop_command
from tfdist.cli import tasks as tasks_command
from tfdist.cli import timeline as timeline_command
from tfdist.cli import top as top_command
from tfdist.cli.arguments import add_command
from tfdist.cli.parser import Parser

if TYPE_CHECKING:
    from tfdist.cli.arguments import Commands

_DESCRIPTION = "Distributed training for TensorFlow and Keras."
_EPILOG = """\
example:
  tfdist run --workers 2 train.py --epochs 3

'tfdist run --help' explains the options.
"""

# As a shell shows a program that SIGPIPE has ended.
_READER_GONE = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
      arguments: the words after `tfdist`; this process's own if None.

    Returns:
      The exit code; 141 if the reader of the output has ended before it, as `head` does.

    Raises:
      SystemExit: with code 2 for a wrong command line, 0 after --help and --version.
    """
    try:
        try:
            return _main(arguments)
        finally:
            # Here, not at the interpreter's end, where nothing can be caught.
            sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more, into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _READER_GONE


def _main(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if chosen.subcommand is None:
        parser.print_help()
        return 2
    if not _finds_job(chosen) or _is_too_late(chosen):
        return 2
    try:
        code: int = chosen.command_module.run(chosen)
    except KeyboardInterrupt:
        return 130
    return code


def _finds_job(chosen: argparse.Namespace) -> bool:
    """Sets --job, if a command was given no job, to the only running job.

    Returns:
      Whether the command has a job, or needs none; else the reason is printed.
    """
    others = getattr(chosen, "instead_of_job", None)
    if others is None or chosen.job is not None or any(getattr(chosen, o) for o in others):
        return True
    # Not above: --help does not need it.
    from tfdist.config.printing import printable
    from tfdist.errors import ClusterConfigError
    from tfdist.launch.job_registry import job_of

    try:
        chosen.job = Path(job_of(None).job_file)
    except ClusterConfigError as error:
        print(f"tfdist {chosen.subcommand}: error: {printable(str(error))}", file=sys.stderr)
        return False
    return True


def _is_too_late(chosen: argparse.Namespace) -> bool:
    """Says that a job has ended, if a command looks at running jobs alone."""
    file = getattr(chosen, "job", None)
    if file is None or getattr(chosen, "takes_ended_jobs", False):
        return False
    # Not above: --help does not need it.
    from tfdist.cli.ended_jobs import description_of_end
    from tfdist.config.printing import printable

    told = description_of_end(file)
    if told:
        print(f"tfdist {chosen.subcommand}: error: {printable(told)}", file=sys.stderr)
    return bool(told)


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = Parser(
        prog="tfdist",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tfdist {__version__}")
    commands = parser.add_subparsers(dest="subcommand", title="commands", metavar="COMMAND")

    def add(among: Commands, name: str, summary: str, module: types.ModuleType) -> None:
        added = add_command(among, name, summary, module.DESCRIPTION, module.EPILOG)
        module.add_arguments(added)
        added.set_defaults(command_module=module)

    add(commands, "run", "start all tasks of a job, here or on several hosts", run_command)
    add(commands, "predict", "predict files, each record once", predict_command)
    add(commands, "scale", "set the number of workers of an elastic job", scale_command)
    add(commands, "jobs", "list your jobs on this machine", jobs_command)
    add(commands, "logs", "print the output of a job", logs_command)
    add(commands, "stop", "tell a job to save and end", stop_command)
    add(commands, "tasks", "look at the data tasks of a job", tasks_command)
    ps = add_command(commands, "ps", "look at parameter servers, and serve tables")
    of_ps = ps.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add(of_ps, "stats", "show their contents and their work", stats_command)
    add(of_ps, "follow", "publish a training's tables for servers", ps_follow_command)
    add(of_ps, "serve", "serve the rows of a snapshot's tables", ps_serve_command)
    add(commands, "top", "show what the tasks of a job do", top_command)
    add(commands, "dashboard", "serve a web page about a running job", dashboard_command)
    add(commands, "serve", "serve models to clients of TensorFlow Serving", serve_command)
    add(commands, "metrics", "let Prometheus read a job's metrics", metrics_command)
    add(commands, "timeline", "record what all tasks of a running job do", timeline_command)
    add(commands, "debug", "find out why a job hangs or has failed", debug_command)
    add(commands, "env", "show the cluster that is found here, and why", env_command)
    add(commands, "check", "check the machines of a job before it trains", check_command)
    add(commands, "plan", "predict whether more machines will pay", plan_command)
    add(commands, "k8s", "write a job's Kubernetes manifests", kubernetes_command)
    return parser
