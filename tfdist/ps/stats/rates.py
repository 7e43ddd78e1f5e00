"""What parameter servers tell of themselves while they serve, and what that means per second.

A *reading* is a dict: "seconds" (of a clock that only moves forward), "incarnation", "server" (the
fields of `tfdist.ops.ServerStats`) and "tables" (those of `TableStats`, by name).
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from tfdist.control import messages
from tfdist.control.client import ControlClient

if TYPE_CHECKING:  # the command line does without TensorFlow
    from tfdist import ops

Reading = dict[str, Any]
_CAUSES = ("evicted_for_room", "evicted_by_age", "evicted_by_norm")


@dataclasses.dataclass(frozen=True)
class TableRates:
    """What a table is like on one server, and what it did between two readings.

    Attributes:
      rows, bytes: what it holds.
      lookups: ids looked up, per second.
      hit_rate: which part of these had a row; `None` if there were none.
      updates: rows' gradients applied, per second.
      evicted: rows evicted since the server has started.
      lost_updates: gradients that had no row to go to, likewise.
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
    """The same of a whole server.

    Attributes:
      rows: of all its tables.
      bytes: of its shards and tables.
      pulls, pushes, lookups: per second.
      hit_rate: as of `TableRates`.
      workers: connections.
      memory_held: bytes that the server counts: shards, tables and buffers of requests.
      memory_budget: what these may be at most; 0: there is no limit.
      tables: by name.
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


def reading(store: ops.ParameterServer) -> Reading:
    """Reads a server of this process."""
    tables = {name: dataclasses.asdict(stats) for name, stats in store.table_stats().items()}
    return {
        "seconds": time.monotonic(),
        "incarnation": str(store.incarnation),
        "server": dataclasses.asdict(store.stats()),
        "tables": tables,
    }


def ask(control: ControlClient, wait: float = 5.0) -> Reading | None:
    """Reads a server through its control address; `None` if no worker has come to it yet.

    Raises:
      UnreachableError: it does not answer.
      AuthenticationError: it has another secret.
      ClusterConfigError: something else is there.
    """
    request = messages.Stats(protocol=messages.PROTOCOL, wait=wait)
    answer = control.call(messages.STATS, request, wait, patient=False)
    return answer if answer["status"] == "stats" else None


def rates(before: Reading | None, after: Reading) -> ServerRates:
    """Returns what happened between two readings of a server.

    Args:
      before: the earlier one; of a server that has been started again since, or `None`, all that
        is counted in `after` happened in no time, and rates are 0.
      after: the later one.
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
        hit_rate=_part(
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
        hit_rate=_part(now["hits"] - then["hits"], lookups),
        updates=_per_second(now["updates"] - then["updates"], seconds),
        evicted=sum(now[cause] for cause in _CAUSES),
        lost_updates=now["lost_updates"],
    )


def _increase(before: Reading, after: Reading, table: str, what: str) -> int:
    return after["tables"][table][what] - before["tables"].get(table, {}).get(what, 0)


def _per_second(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _part(some: int, all_of_them: int) -> float | None:
    return some / all_of_them if all_of_them else None
