"""The statistics of parameter servers, and rates per second between two readings.

A *reading* is a dict: "seconds" (of a monotonic clock), "incarnation", "server" (the fields of
`ServerStats`) and "tables" (the fields of `TableStats`, by name).
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from tfdist.control.client import ControlClient
from tfdist.ps.stats import messages

if TYPE_CHECKING:  # the command line works without TensorFlow
    from tfdist.ops.ps.server import ParameterServer

Reading = dict[str, Any]
_CAUSES = ("evicted_for_room", "evicted_by_age", "evicted_by_norm")


@dataclasses.dataclass(frozen=True)
class TableRates:
    """The state of a table on one server, and its rates between two readings.

    Attributes:
      rows, bytes: its size.
      lookups: ids looked up, per second.
      hit_rate: the fraction of these ids that had a row; `None` without lookups.
      updates: gradients of rows applied, per second.
      evicted: rows evicted since the server's start.
      lost_updates: gradients without a row since the server's start.
    """

    rows: int
    bytes: int
    lookups: float
    hit_rate: float | None
    updates: float
    evicted: int
    lost_updates: int


@dataclasses.dataclass(frozen=True)
class ServerRates:
    """The state of a server, and its rates between two readings.

    Attributes:
      rows: rows of all its tables.
      bytes: bytes of its shards and tables.
      pulls, pushes, lookups: per second.
      hit_rate: as in `TableRates`.
      workers: the number of connections.
      memory_held: counted bytes: shards, tables and buffers of requests.
      memory_budget: the maximum of these bytes; 0: there is no limit.
      tables: the tables by name.
    """

    rows: int
    bytes: int
    pulls: float
    pushes: float
    lookups: float
    hit_rate: float | None
    workers: int
    memory_held: int
    memory_budget: int
    tables: dict[str, TableRates]


def reading(store: ParameterServer) -> Reading:
    """Reads a server of this process."""
    tables = {name: dataclasses.asdict(stats) for name, stats in store.table_stats().items()}
    return {
        "seconds": time.monotonic(),
        "incarnation": str(store.incarnation),
        "server": dataclasses.asdict(store.stats()),
        "tables": tables,
    }


def ask(control: ControlClient, wait: float = 5.0) -> Reading | None:
    """Reads a server through its control address; `None` if no worker has attached to it yet.

    Raises:
      UnreachableError: the server does not answer.
      AuthenticationError: the server has another secret.
      ClusterConfigError: another program answers at the address.
    """
    request = messages.StatsRequest(wait=wait)
    answer = control.call(messages.STATS, request, wait, patient=False)
    return answer if answer["status"] == "stats" else None


def rates(before: Reading | None, after: Reading) -> ServerRates:
    """Returns the rates between two readings of a server.

    Args:
      before: the earlier reading. With `None`, or a reading from before the server's restart, rates
        are 0.
      after: the later reading.
    """
    if before is None or before["incarnation"] != after["incarnation"]:
        before = after
    seconds = after["seconds"] - before["seconds"]
    none = {"lookups": 0, "hits": 0, "updates": 0}
    tables = {
        name: _table_rates(before["tables"].get(name, none), now, seconds)
        for name, now in after["tables"].items()
    }
    then, now = before["server"], after["server"]
    return ServerRates(
        rows=sum(table.rows for table in tables.values()),
        bytes=now["value_bytes"] + sum(table.bytes for table in tables.values()),
        pulls=_per_second(now["pulls"] - then["pulls"], seconds),
        pushes=_per_second(now["pushes"] - then["pushes"], seconds),
        lookups=sum(table.lookups for table in tables.values()),
        hit_rate=_fraction(
            sum(_increase(before, after, name, "hits") for name in tables),
            sum(_increase(before, after, name, "lookups") for name in tables),
        ),
        workers=now["connections"],
        memory_held=now["memory_held"],
        memory_budget=now["memory_budget"],
        tables=tables,
    )


def _table_rates(then: dict[str, int], now: dict[str, int], seconds: float) -> TableRates:
    lookups = now["lookups"] - then["lookups"]
    return TableRates(
        rows=now["rows"],
        bytes=now["bytes"],
        lookups=_per_second(lookups, seconds),
        hit_rate=_fraction(now["hits"] - then["hits"], lookups),
        updates=_per_second(now["updates"] - then["updates"], seconds),
        evicted=sum(now[cause] for cause in _CAUSES),
        lost_updates=now["lost_updates"],
    )


def _increase(before: Reading, after: Reading, table: str, counter: str) -> int:
    return after["tables"][table][counter] - before["tables"].get(table, {}).get(counter, 0)


def _per_second(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _fraction(part: int, whole: int) -> float | None:
    return part / whole if whole else None
