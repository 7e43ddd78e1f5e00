"""The report of `tfdist tasks`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tfdist.config import validation
from tfdist.config.cluster import tf_config_text
from tfdist.config.printing import printable, printable_line
from tfdist.control.client import ControlClient, UnreachableError
from tfdist.control.encoding import JsonObject
from tfdist.data.queue import messages
from tfdist.errors import ClusterConfigError, TfdistError
from tfdist.observe import observer

_WAIT = 2.0
_MAX_SHOWN = 1 << 20  # characters of a report
_MAX_LINE = 1000  # characters
_MAX_LINES = 200  # of pending and parked tasks of a queue


def run(address: str | None, job: Path | None = None, watch: float | None = None) -> int:
    """Prints the tasks.

    Args:
      address: the control address of the master; `None`: of the job file or TF_CONFIG.
      job: a job file with cluster and secret.
      watch: seconds between two reports; `None` ends after the first.

    Returns:
      The exit code.
    """
    try:
        if None not in (job, address):
            raise ClusterConfigError("expected one of --address and --job, received both")
        access = observer.Access.to(job)
        if address is not None:
            addresses = [_checked(address)]
        else:
            addresses = masters_of(access.cluster or tf_config_text() or "")
    except ClusterConfigError as error:
        print(f"tfdist tasks: error: {printable(str(error))}", file=sys.stderr)
        return 2
    command = observer.Observer("tfdist tasks")
    controls = [command.client(access, one, f"the task at {one}") for one in addresses]
    try:
        while True:
            text, problem = _report(controls)
            if problem:
                print(f"tfdist tasks: {_line(problem)}", file=sys.stderr)
            else:
                print(text[:_MAX_SHOWN], flush=True)
            if watch is None:
                return 1 if problem else 0
            time.sleep(watch)
    except KeyboardInterrupt:
        return 130
    finally:
        for control in controls:
            control.close()


def masters_of(tf_config: str) -> list[str]:
    """Returns the addresses of the tasks that may deal out a job's data tasks.

    Args:
      tf_config: a TF_CONFIG of the job.

    Raises:
      ClusterConfigError: it names no tasks.
    """
    cluster = observer.cluster_of(tf_config or "{}", "TF_CONFIG")
    # Under all-reduce it is rank 0, also where parameter servers hold embedding tables.
    found = [*cluster.ps[:1], *cluster.training_addresses[:1]]
    if not found:
        raise ClusterConfigError("expected --job, --address or TF_CONFIG, received none of a job")
    return found


def describe(queues: Sequence[JsonObject]) -> str:
    """Returns the text of a report; raises KeyError or TypeError if `queues` is no answer."""
    parts = []
    for queue in queues:
        if "counted_by" in queue:
            counter, name = _line(queue["counted_by"]), _line(queue["name"])
            parts.append(f"queue {name}: {counter} counts its records")
            continue
        epochs = "" if queue["epochs"] is None else f" of {int(queue['epochs'])}"
        pending, parked = queue["pending"], queue["parked"]
        lines = [
            f"queue {_line(queue['name'])}: epoch {int(queue['epoch']) + 1}{epochs}: "
            f"{int(queue['done'])} of {int(queue['tasks'])} tasks done, {len(pending)} pending, "
            f"{int(queue['todo'])} to do, {len(parked)} parked",
            f"  {float(queue['rate']):.0f} records/s, {_duration(queue['time_left'])}; "
            f"{int(queue['records'])} records done, {int(queue['left'])} left in this epoch",
        ]
        for one in pending[:_MAX_LINES]:
            silent, seconds = float(one["silent"]), float(one["seconds"])
            lines.append(
                f"  pending  {_line(one['task'])} of epoch {int(one['epoch']) + 1}: "
                f"{_line(one['owner'])}, for {seconds:.0f} s, last heard of {silent:.0f} s ago"
            )
        for one in parked[:_MAX_LINES]:
            deaths = int(one["deaths"])
            lines.append(
                f"  PARKED   {_line(one['task'])}: {deaths} workers in a row have died with it"
            )
        hidden = max(0, len(pending) - _MAX_LINES) + max(0, len(parked) - _MAX_LINES)
        parts.append("\n".join(lines + ([f"  ... and {hidden} more"] if hidden else [])))
    return "\n\n".join(parts) or "the job has dealt out no data tasks yet"


def _report(controls: Sequence[ControlClient]) -> tuple[str, str]:
    """Returns the report of the task that deals them out, and a problem if none has answered."""
    problems, texts = [], []
    for control in controls:
        try:
            request = messages.TaskStatusRequest(_WAIT)
            answer = control.call(messages.TASK_STATUS, request, _WAIT, patient=False)
            if answer["queues"]:
                return describe(answer["queues"]), ""
            texts.append(describe([]))
        except (UnreachableError, TfdistError) as error:
            problems.append(str(error))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            problems.append(f"expected what a task of this release tells, received {error!r}")
    return (texts[0], "") if texts else ("", "; ".join(problems))


def _checked(address: str) -> str:
    problem = validation.address_problem(address)
    if problem:
        raise ClusterConfigError(f'expected "host:port", received {address!r}: {problem}')
    return address


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "time left unknown"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min left" if hours else f"{minutes} min {rest} s left"


def _line(text: str) -> str:
    """Returns a printable text without line breaks."""
    return printable_line(text[:_MAX_LINE])
