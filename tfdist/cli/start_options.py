"""Options of the commands that start tasks: their number, hosts, limits and observation."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from typing import Any

from tfdist.cli.arguments import seconds, whole_number
from tfdist.errors import ClusterConfigError
from tfdist.launch.hosts.host_list import Host, parse_host_lines, parse_hosts
from tfdist.launch.policies.elastic import WorkerRange


def add_hosts(parser: argparse.ArgumentParser) -> None:
    """Adds the options that name other hosts, and the way to them."""
    hosts = parser.add_mutually_exclusive_group()
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
    parser.add_argument(
        "--ssh",
        type=_command,
        default=("ssh",),
        metavar="COMMAND",
        help="the program that connects to hosts, as in 'ssh -p 2222 -i key' (default: ssh)",
    )
    parser.add_argument(
        "--python",
        metavar="PATH",
        help="Python on the other hosts (default: the path of this one's)",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME",
        help="also give this variable to tasks on other hosts; more than once for several",
    )
    parser.add_argument(
        "--gpus-per-worker",
        type=whole_number(1),
        metavar="N",
        help="each worker, the chief and the evaluator see N GPUs of their host, none of them "
        "twice, and other tasks none (default: each task sees all GPUs, of which TensorFlow takes "
        "the whole memory)",
    )


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Adds the options with times."""
    parser.add_argument(
        "--timeout",
        type=seconds,
        metavar="S",
        help="stop the whole job after this many seconds, with exit code 124",
    )
    parser.add_argument(
        "--grace",
        type=seconds,
        default=30.0,
        metavar="S",
        help="after Ctrl-C, SIGTERM or SIGHUP, the tasks have this many seconds to end before they "
        "are killed, and a second signal kills at once (default: 30). On SIGTERM a training ends "
        "its step and saves; Ctrl-C interrupts it where it is",
    )


def add_observation(parser: argparse.ArgumentParser) -> None:
    """Adds the options of logs, metrics and the job file."""
    parser.add_argument(
        "--log-dir",
        type=Path,
        metavar="DIR",
        help="also keep each task's whole output here, in worker-1.log etc.",
    )
    parser.add_argument(
        "--job-file",
        type=Path,
        metavar="FILE",
        help="keep the job's addresses and secret here while it runs, for --job of "
        "'tfdist top', 'tfdist dashboard', 'tfdist ps stats', 'tfdist tasks', 'tfdist scale', "
        "'tfdist debug dump', 'tfdist timeline' and 'tfdist metrics' (default: a new file of mode "
        "600)",
    )
    parser.add_argument(
        "--no-metrics",
        action="store_false",
        dest="metrics",
        help="let no task serve its metrics. By default all do on this machine, for 'tfdist top' "
        "and 'tfdist dashboard'; with hosts if TFDIST_METRICS_PORT is set",
    )
    parser.add_argument(
        "--dashboard",
        action="store_true",
        help="serve the page of 'tfdist dashboard', and print its address. In a terminal it stays "
        "after the end of the job, with the last state, until Ctrl-C",
    )
    parser.add_argument(
        "--tls",
        action="store_true",
        help="encrypt all connections between the tasks, with certificates that each makes from "
        "the job's secret, or with the files of TFDIST_TLS_CERT, TFDIST_TLS_KEY and TFDIST_TLS_CA",
    )


def check(chosen: argparse.Namespace) -> None:
    """Ends the program with a wrong command line if an option cannot be used."""
    log_dir, parser = chosen.log_dir, chosen.parser
    if log_dir is not None and log_dir.exists() and not log_dir.is_dir():
        parser.error(f"--log-dir: expected a directory, but {log_dir} is a file")


def workers(chosen: argparse.Namespace) -> int | WorkerRange:
    """Returns the number of workers: as chosen, else the slots of the hosts, else 0."""
    return chosen.workers or sum(host.slots for host in chosen.hosts or ())


def launch_options(chosen: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments of `LaunchOptions` that these options give, except `workers`."""
    return {
        "log_dir": chosen.log_dir,
        "timeout": chosen.timeout,
        "hosts": chosen.hosts or (),
        "discovery_script": chosen.host_discovery_script,
        "ssh": chosen.ssh,
        "python": chosen.python,
        "env": chosen.env,
        "gpus_per_worker": chosen.gpus_per_worker,
        "job_file": chosen.job_file,
        "signal_grace": chosen.grace,
        "metrics": chosen.metrics,
        "dashboard": chosen.dashboard,
        "tls": chosen.tls,
    }


def worker_numbers(text: str) -> int | WorkerRange:
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
