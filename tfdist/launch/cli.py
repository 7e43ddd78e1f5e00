"""The command `tfdist`. It starts fast: the tasks import TensorFlow, this program does not."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from tfdist._version import __version__
from tfdist.config.arguments import seconds, whole_number
from tfdist.errors import ClusterConfigError
from tfdist.kubernetes import command as kubernetes_command
from tfdist.launch import check_command, env_command, scale_command
from tfdist.launch.binding import Binding
from tfdist.launch.elastic_policy import WorkerRange
from tfdist.launch.hosts.host_list import Host, parse_host_lines, parse_hosts
from tfdist.live import dashboard_command, top_command
from tfdist.metrics import command as metrics_command
from tfdist.observe import command as debug_command
from tfdist.observe.timeline import command as timeline_command
from tfdist.plan import command as plan_command
from tfdist.ps.stats import command as stats_command
from tfdist.tasks import command as tasks_command

_DESCRIPTION = "Distributed training for TensorFlow and Keras."
_EPILOG = """\
example:
  tfdist run --workers 2 train.py --epochs 3

'tfdist run --help' explains the options.
"""
_RUN_DESCRIPTION = """\
Starts the tasks of a training job on this machine, or with --hosts on several over ssh: each runs
the script with its own TF_CONFIG.
Their output is shown with a prefix such as "[worker 1]". When one task fails, the others are
stopped and the first failure is reported, or with --restarts the job goes on. The workers of an
elastic job (--workers MIN:MAX) fail, leave and join while the others go on."""
_RUN_EPILOG = """\
Everything after the script is passed to it unchanged, options too.

examples:
  tfdist run --workers 2 train.py --epochs 3
      two workers; --epochs 3 is an option of train.py
  tfdist run --workers 3 --log-dir logs --timeout 3600 train.py
      three workers, for an hour at most; logs/worker-0.log etc. keep all output
  tfdist run --workers 2 --restarts 3 train.py
      when a worker fails, all start again, three times at most
  tfdist run --hosts node1:2,node2:2 train.py
      four workers, two on each host
  tfdist run --workers 2:8:4 train.py
      an elastic job: four workers at first; what fails is started again alone, and
      'tfdist scale' starts and ends workers; with fewer than two the job fails

exit code:
  0 when all went well; else that of the first task that failed (128 + n if signal n ended it);
  124 at the time limit; 130 after Ctrl-C; 143 after SIGTERM, also to one of the tasks, on which a
  scheduler can start the job again; 2 for a wrong command line. Of an elastic job: 0 when all
  workers that still ran have ended well, 143 when all have left after a SIGTERM to them.
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
    parser, run_parser = _parsers()
    chosen = parser.parse_args(arguments)
    if chosen.subcommand is None:
        parser.print_help()
        return 2
    try:
        if chosen.subcommand == "run":
            return _run(chosen, run_parser)
        code: int = chosen.command_module.run(chosen)
    except KeyboardInterrupt:
        return 130
    return code


def _parsers() -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="tfdist",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=style,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tfdist {__version__}")
    subcommands = parser.add_subparsers(dest="subcommand", title="commands", metavar="COMMAND")
    run = subcommands.add_parser(
        "run",
        help="start all tasks of a job, here or on several hosts",
        usage="tfdist run [options] (script.py | -m module) [its own arguments]",
        description=_RUN_DESCRIPTION,
        epilog=_RUN_EPILOG,
        formatter_class=style,
        # Otherwise --work would mean --workers.
        allow_abbrev=False,
    )
    run.add_argument(
        "--workers",
        type=_workers,
        metavar="N",
        help="training tasks; with --ps or --evaluator the first is the chief (default: 1, or "
        "with hosts all their slots). "
        "MIN:MAX or MIN:MAX:START makes an elastic job without a chief, which begins with START "
        "workers (default: MIN)",
    )
    run.add_argument(
        "--ps",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="parameter servers, for scripts that serve one (default: 0)",
    )
    run.add_argument("--evaluator", action="store_true", help="start an evaluator too")
    run.add_argument(
        "--data-workers",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="processes that prepare input, for tfdist.data.distribute (default: 0)",
    )
    run.add_argument(
        "--log-dir",
        type=Path,
        metavar="DIR",
        help="also keep each task's whole output here, in worker-1.log etc.",
    )
    run.add_argument(
        "--timeline",
        type=Path,
        metavar="FILE",
        help="write what all tasks do, step by step, in Chrome's trace format "
        "(default: TFDIST_TIMELINE, if it is set)",
    )
    run.add_argument(
        "--timeout",
        type=seconds,
        metavar="S",
        help="stop the whole job after this many seconds, with exit code 124",
    )
    run.add_argument(
        "--restarts",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="start again what fails, N times in all: with --ps the task that failed, also a data "
        "worker or an evaluator, else all tasks (default: 0)",
    )
    run.add_argument(
        "--max-restarts",
        type=whole_number(0),
        metavar="N",
        help="of an elastic job: start tasks that fail again, N times in all (default: 10). A "
        "worker that fails three times in a row, each soon after its start, is left out",
    )
    run.add_argument(
        "--grace",
        type=seconds,
        default=30.0,
        metavar="S",
        help="after Ctrl-C, SIGTERM or SIGHUP, the tasks have this many seconds to end their step "
        "and save, before they are killed (default: 30)",
    )
    hosts = run.add_mutually_exclusive_group()
    hosts.add_argument(
        "--hosts",
        type=_hosts,
        metavar="A:N,B:N",
        help="run the tasks on these hosts, over ssh; N is the number of training tasks that a "
        "host takes (default: 1)",
    )
    hosts.add_argument(
        "--hostfile",
        type=_host_file,
        dest="hosts",
        metavar="FILE",
        help="as --hosts, with 'HOST slots=N' on each line",
    )
    hosts.add_argument(
        "--host-discovery-script",
        type=Path,
        metavar="FILE",
        help="of an elastic job: a program that prints the hosts, 'HOST:SLOTS' on each line; it is "
        "asked every few seconds",
    )
    run.add_argument(
        "--ssh",
        type=_command,
        default=("ssh",),
        metavar="COMMAND",
        help="what connects to a host, with its options, as in 'ssh -p 2222 -i key' (default: ssh)",
    )
    run.add_argument(
        "--python",
        metavar="PATH",
        help="Python on the other hosts (default: the path of this one's)",
    )
    run.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME",
        help="also give this variable to tasks on other hosts; more than once for several",
    )
    run.add_argument(
        "--bind",
        choices=[binding.value for binding in Binding],
        default=Binding.NONE.value,
        help="bind each task to its share of its host's cores, or of its NUMA nodes "
        "(default: none)",
    )
    run.add_argument(
        "--job-file",
        type=Path,
        metavar="FILE",
        help="keep the job's addresses and secret here while it runs, for --job of "
        "'tfdist top', 'tfdist dashboard', 'tfdist ps stats', 'tfdist tasks', 'tfdist scale', "
        "'tfdist debug dump', 'tfdist timeline' and 'tfdist metrics' (default: a new file of mode "
        "600)",
    )
    run.add_argument(
        "-m",
        action="store_true",
        dest="module",
        help="the script is the name of a module, as with 'python -m'",
    )
    # One list: argparse then leaves all words from the script on unchanged, "--" included.
    run.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    ps = subcommands.add_parser("ps", help="look at parameter servers", allow_abbrev=False)
    of_ps = ps.add_subparsers(dest="of_ps", title="commands", metavar="COMMAND", required=True)
    for commands, name, summary, command_module in (
        (of_ps, "stats", "what they hold and do", stats_command),
        (subcommands, "tasks", "look at the data tasks of a job", tasks_command),
        (subcommands, "scale", "set the number of workers of an elastic job", scale_command),
        (subcommands, "top", "show what the tasks of a job do", top_command),
        (subcommands, "dashboard", "serve a web page about a running job", dashboard_command),
        (subcommands, "metrics", "let Prometheus read a job's metrics", metrics_command),
        (subcommands, "env", "show the cluster that is found here, and why", env_command),
        (subcommands, "check", "check the machines of a job before it trains", check_command),
        (subcommands, "plan", "predict whether more machines will pay", plan_command),
    ):
        asking = commands.add_parser(
            name,
            help=summary,
            description=command_module.DESCRIPTION,
            epilog=command_module.EPILOG,
            formatter_class=style,
            allow_abbrev=False,
        )
        command_module.add_arguments(asking)
        asking.set_defaults(command_module=command_module)
    debug = subcommands.add_parser(
        "debug",
        help="find out why a job hangs or has failed",
        description=debug_command.DESCRIPTION,
        formatter_class=style,
        allow_abbrev=False,
    )
    debug_command.add_commands(debug)
    debug.set_defaults(command_module=debug_command)
    timeline = subcommands.add_parser(
        "timeline",
        help="record what all tasks of a running job do",
        description=timeline_command.DESCRIPTION,
        formatter_class=style,
        allow_abbrev=False,
    )
    timeline_command.add_commands(timeline)
    timeline.set_defaults(command_module=timeline_command)
    k8s = subcommands.add_parser(
        "k8s",
        help="write a job's Kubernetes manifests",
        description=kubernetes_command.DESCRIPTION,
        formatter_class=style,
        allow_abbrev=False,
    )
    kubernetes_command.add_commands(k8s)
    k8s.set_defaults(command_module=kubernetes_command)
    return parser, run


def _workers(text: str) -> int | WorkerRange:
    """Parses the value of --workers; an argparse type."""
    if not re.fullmatch("[0-9]+(:[0-9]+){0,2}", text.strip()):
        raise argparse.ArgumentTypeError(
            "expected N, MIN:MAX or MIN:MAX:START, such as 4, 2:8 or 2:8:4, in whole numbers; "
            f"received {text!r}"
        )
    if ":" not in text:
        return whole_number(1)(text)
    try:
        return WorkerRange.from_text(text)
    except ClusterConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _hosts(text: str) -> tuple[Host, ...]:
    """Parses the value of --hosts; an argparse type."""
    try:
        return parse_hosts(text)
    except ClusterConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _host_file(text: str) -> tuple[Host, ...]:
    """Reads the file that --hostfile names; an argparse type."""
    try:
        return parse_host_lines(Path(text).read_text(), text)
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"cannot read {text}: {error}") from None
    except ClusterConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _command(text: str) -> list[str]:
    """Splits the value of --ssh into words, as a shell does; an argparse type."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        message = f"expected a command, received {text!r}: {error}"
        raise argparse.ArgumentTypeError(message) from None
    if not words:
        raise argparse.ArgumentTypeError("expected a command, received none")
    return words


def _run(chosen: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    command = chosen.command[1:] if chosen.command[:1] == ["--"] else chosen.command
    if not command:
        parser.error("expected a script to run, received none")
    script, module = (None, command[0]) if chosen.module else (Path(command[0]), None)
    if script is not None and not script.exists():
        parser.error(f"expected a script, but {command[0]} does not exist")
    if script is not None and not script.is_file():
        parser.error(f"expected a script, but {command[0]} is not a file")
    if chosen.log_dir is not None and chosen.log_dir.exists() and not chosen.log_dir.is_dir():
        parser.error(f"--log-dir: expected a directory, but {chosen.log_dir} is a file")
    # Not above: --help and a wrong command line do not need it.
    from tfdist.launch import run as launch

    try:
        options = launch.LaunchOptions(
            script=script,
            module=module,
            arguments=command[1:],
            workers=chosen.workers or sum(host.slots for host in chosen.hosts or ()) or 1,
            ps=chosen.ps,
            evaluator=chosen.evaluator,
            data_workers=chosen.data_workers,
            log_dir=chosen.log_dir,
            timeline=chosen.timeline,
            timeout=chosen.timeout,
            restarts=chosen.restarts,
            max_restarts=chosen.max_restarts,
            hosts=chosen.hosts or (),
            discovery_script=chosen.host_discovery_script,
            ssh=chosen.ssh,
            python=chosen.python,
            env=chosen.env,
            binding=Binding(chosen.bind),
            job_file=chosen.job_file,
            signal_grace=chosen.grace,
        )
    except ClusterConfigError as error:
        parser.error(str(error))
    try:
        return launch.run(options)
    except (OSError, ClusterConfigError) as error:
        print(f"tfdist run: error: {error}", file=sys.stderr)
        return 1
