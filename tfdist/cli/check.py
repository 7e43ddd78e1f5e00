"""The command `tfdist check`: the machines of a job, before it trains."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tfdist.cli.arguments import seconds, whole_number

DESCRIPTION = """\
Checks this machine, or all machines of a job: versions, the op library, ports, shared memory,
limits, the disk for checkpoints, clocks, the speed of each task, and latency and bandwidth of each
pair of tasks. It names slow parts, and their remedies. Start it in each place in which a task
is to run; the task of rank 0 prints the report."""
EPILOG = """\
examples:
  tfdist check
      this machine, or the job that TF_CONFIG, Slurm, MPI or Kubernetes describe ('tfdist env')
  tfdist check --workers 3
      three tasks on this machine
  srun -N 4 tfdist check --checkpoint-dir /shared/job --json > check.json
      four machines, and a directory that all of them write

exit code:
  0, also with warnings; 1 if something is wrong, or tasks are missing; 2 for a wrong command line;
  130 after Ctrl-C.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options."""
    parser.add_argument(
        "--workers",
        type=whole_number(2),
        metavar="N",
        help="start N tasks on this machine, instead of the cluster that is found here",
    )
    parser.add_argument(
        "--checkpoint-dir",
        metavar="DIR",
        help="the directory of the checkpoints (default: TFDIST_CHECKPOINT_DIR)",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        metavar="S",
        help="seconds to wait for the other tasks (default: TFDIST_RENDEZVOUS_TIMEOUT, 300)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    # Of the tasks that --workers starts: their output has a prefix.
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)


def run(chosen: argparse.Namespace) -> int:
    """Checks the machines; returns the exit code."""
    # Not above: --help does not need it.
    from tfdist.config.printing import printable
    from tfdist.errors import TfdistError

    try:
        code, report = _launched(chosen) if chosen.workers is not None else _task(chosen)
    except KeyboardInterrupt:
        return 130
    except (OSError, TfdistError) as error:
        print(f"tfdist check: error: {printable(str(error))}", file=sys.stderr)
        return 1
    if report is not None:
        # Names, hosts and versions are as the other tasks say.
        print(printable(report))
    return code


def _launched(chosen: argparse.Namespace) -> tuple[int, str | None]:
    """Starts tasks on this machine; returns the exit code and their report."""
    from tfdist.launch import run as launch

    with tempfile.TemporaryDirectory(prefix="tfdist-check-") as folder:
        report = Path(folder, "report")
        arguments = ["check", "--report", str(report)]
        if chosen.json:
            arguments.append("--json")
        for option, value in (
            ("--checkpoint-dir", chosen.checkpoint_dir),
            ("--timeout", chosen.timeout),
        ):
            if value is not None:
                arguments += [option, str(value)]
        code = launch.run(
            launch.LaunchOptions(module="tfdist", arguments=arguments, workers=chosen.workers)
        )
        if not report.exists():
            return code or 1, None
        found = json.loads(report.read_text())
    return 0 if found["ok"] else 1, found["text"]


def _task(chosen: argparse.Namespace) -> tuple[int, str | None]:
    """Checks the machines as one task of the job; returns the exit code and the report."""
    import dataclasses

    from tfdist._compatibility import check_tensorflow
    from tfdist.config.cluster import Cluster
    from tfdist.config.printing import printable
    from tfdist.config.settings import Settings

    check_tensorflow()
    cluster, settings = Cluster.from_environment(), Settings.from_environment()
    if chosen.timeout is not None:
        settings = dataclasses.replace(settings, rendezvous_timeout=chosen.timeout)
    import tensorflow as tf

    from tfdist.check.examine import examine

    try:
        report = examine(cluster, settings, chosen.checkpoint_dir or settings.checkpoint_dir)
    except tf.errors.OpError as error:
        why = printable(f"{cluster.task_name}: {error.message}")
        print(f"tfdist check: error: {why}", file=sys.stderr)
        return 1, None
    # Tasks without a rank have checked their own machine only.
    text = None
    if cluster.rank in (0, None):
        text = report.as_json() if chosen.json else report.as_text()
    if chosen.report is None:
        return 0 if report.is_fine else 1, text
    if text is not None:
        chosen.report.write_text(json.dumps({"ok": report.is_fine, "text": text}))
    # The launcher would take the code for a failure of the task.
    return 0, None
