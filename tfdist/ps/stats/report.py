"""The report of `tfdist ps stats`: the state and the rates of a job's parameter servers."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tfdist.config import validation
from tfdist.config.cluster import tf_config_text
from tfdist.config.printing import printable
from tfdist.control.client import ControlClient, UnreachableError
from tfdist.errors import ClusterConfigError, TfdistError
from tfdist.observe import observer
from tfdist.ps.stats import rates
from tfdist.ps.stats.rates import Reading, ServerRates

_HEAD = ("", "workers", "rows", "bytes", "memory", "pulls/s", "pushes/s", "lookups/s", "hit rate")
_MAX_SHOWN = 1 << 20  # characters of a report
_TABLE_HEAD = ("", "rows", "bytes", "lookups/s", "hit rate", "updates/s", "evicted", "lost")


def run(cluster: str | None, interval: float, watch: float | None, job: Path | None = None) -> int:
    """Prints the statistics.

    Args:
      cluster: as for `servers_of`.
      interval: seconds between two readings.
      watch: seconds between two reports; `None` ends after the first.
      job: a job file with cluster and secret.

    Returns:
      The exit code.
    """
    try:
        if None not in (job, cluster):
            raise ClusterConfigError("expected one of --cluster and --job, received both")
        access = observer.Access.to(job)
        addresses = servers_of(access.cluster or cluster)
    except ClusterConfigError as error:
        print(f"tfdist ps stats: error: {printable(str(error))}", file=sys.stderr)
        return 2
    command = observer.Observer("tfdist ps stats")
    controls = [
        command.client(access, address, f"ps {i} at {address}")
        for i, address in enumerate(addresses)
    ]
    try:
        before = [_ask(control) for control in controls]
        while True:
            time.sleep(watch or interval)
            after = [_ask(control) for control in controls]
            print(_printable(describe(addresses, before, after)), flush=True)
            if watch is None:
                return 1 if any(isinstance(reading, str) for reading in after) else 0
            before = after
    except KeyboardInterrupt:
        return 130
    finally:
        for control in controls:
            control.close()


def servers_of(text: str | None) -> list[str]:
    """Returns the addresses of parameter servers.

    Args:
      text: "host:port,host:port", or a TF_CONFIG; `None` reads the environment's.

    Raises:
      ClusterConfigError: the text has no addresses of servers.
    """
    source = "--cluster"
    if text is None:
        source, text = "TF_CONFIG", tf_config_text() or ""
    if not text.lstrip().startswith("{"):
        return validation.addresses_in(text, source, "parameter servers")
    addresses = list(observer.cluster_of(text, source).ps)
    if not addresses:
        raise ClusterConfigError(f"{source}: expected ps tasks, received {text[:200]!r}")
    return addresses


def describe(
    addresses: Sequence[str],
    before: Sequence[Reading | str | None],
    after: Sequence[Reading | str | None],
) -> str:
    """Returns the tables of a report.

    Args:
      addresses: the servers' addresses.
      before, after: for each server a reading, `None` before its first worker has attached, or the
        reason why there is none.
    """
    lines: list[tuple[str, ...]] = [_HEAD]
    table_lines: list[tuple[str, ...]] = [_TABLE_HEAD]
    notes = []
    for i, (address, then, now) in enumerate(zip(addresses, before, after, strict=True)):
        name = f"ps {i}"
        if not isinstance(now, dict):
            notes.append(f"{name} at {address}: {now or 'no worker has come yet'}")
            continue
        found = rates.rates(then if isinstance(then, dict) else None, now)
        lines.append(_server_line(name, found))
        if now["server"]["log_failed"]:
            notes.append(
                f"{name} at {address}: log_failed: rows were changed that are neither in a "
                "snapshot nor in the log"
            )
        for table, numbers in sorted(found.tables.items()):
            table_lines.append(
                (
                    f"{table} on {name}",
                    f"{numbers.rows}",
                    _size(numbers.bytes),
                    f"{numbers.lookups:.0f}",
                    _percent(numbers.hit_rate),
                    f"{numbers.updates:.0f}",
                    f"{numbers.evicted}",
                    f"{numbers.lost_updates}",
                )
            )
    parts = [_align(lines)] if len(lines) > 1 else []
    parts += [_align(table_lines)] if len(table_lines) > 1 else []
    return "\n\n".join(parts + (["\n".join(notes)] if notes else [])) + "\n"


def _ask(control: ControlClient) -> Reading | str | None:
    try:
        reading = rates.ask(control)
        if reading is not None:
            describe([""], [None], [reading])  # raises if it cannot be shown
        return reading
    except (UnreachableError, TfdistError) as error:
        return str(error)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        return f"expected what a parameter server of this release tells, received {error!r}"


def _printable(text: str) -> str:
    return printable(text[:_MAX_SHOWN]) + (" ..." if len(text) > _MAX_SHOWN else "")


def _server_line(name: str, found: ServerRates) -> tuple[str, ...]:
    return (
        name,
        f"{found.workers}",
        f"{found.rows}",
        _size(found.bytes),
        _memory(found),
        f"{found.pulls:.1f}",
        f"{found.pushes:.1f}",
        f"{found.lookups:.0f}",
        _percent(found.hit_rate),
    )


def _align(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _memory(found: ServerRates) -> str:
    """Returns the memory held and its budget, in the units of TFDIST_PS_MEMORY."""
    held = _binary(found.memory_held)
    return f"{held} of {_binary(found.memory_budget)}" if found.memory_budget else held


def _binary(count: int) -> str:
    size = count / 1024
    for unit in "KMG":
        if size < 1024:
            return f"{size:.1f}{unit}"
        size /= 1024
    return f"{size:.1f}T"


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.1f} %"
