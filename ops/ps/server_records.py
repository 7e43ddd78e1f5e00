"""What a parameter server tells of itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # it needs the C functions, which need this module
    from tfdist.ops.ps.saved_rows import SavedTable


@dataclasses.dataclass(frozen=True)
class ServerEvent:
    """What happened on a server.

    Attributes:
      kind: "came", "left" or "lost", said of a worker, or "log".
      worker: its rank.
      text: for the log.
    """

    kind: str
    worker: int
    text: str


@dataclasses.dataclass(frozen=True)
class ServerStats:
    """What one server has done so far.

    Attributes:
      pulls: pulls answered.
      pushes: pushes applied, or collected for a step.
      dropped_pushes: those that came too late.
      repeated_pushes: those that had been applied before.
      clock: closed steps.
      largest_lead: with "ssp", the most steps a worker was ahead of the slowest.
      bytes_sent: bytes of values.
      bytes_received: bytes of gradients and changes.
      rejected_connections: connections that did not prove the key.
      broken_requests: requests that were not what this protocol sends.
      shards: how many shards the server holds.
      value_bytes: their size.
      connections: workers that are connected.
      log_bytes: bytes of the log of what was applied to rows since they were saved.
      log_failed: 1 if rows were changed that are neither saved nor in the log.
      memory_held: bytes that are counted: values, rows of tables and buffers of requests.
      memory_budget: what these may be at most; 0: there is no limit.
      edits: edits of tables' rows (`EmbeddingTable.upsert` and the like) that were carried out.
    """

    pulls: int
    pushes: int
    dropped_pushes: int
    repeated_pushes: int
    clock: int
    largest_lead: int
    bytes_sent: int
    bytes_received: int
    rejected_connections: int
    broken_requests: int
    shards: int
    value_bytes: int
    connections: int
    log_bytes: int
    log_failed: int
    memory_held: int
    memory_budget: int
    edits: int


@dataclasses.dataclass(frozen=True)
class TableStats:
    """What one embedding's table on one server has done so far.

    Attributes:
      rows: how many it has.
      bytes: all memory that they take.
      lookups: ids that were looked up.
      hits: how many of them had a row.
      created: rows made.
      updates: rows' gradients applied.
      lost_updates: those whose ids had no row.
      evicted_for_room: rows evicted because there were too many.
      evicted_by_age: because they were unused for too long.
      evicted_by_norm: because they were too small.
    """

    rows: int
    bytes: int
    lookups: int
    hits: int
    created: int
    updates: int
    lost_updates: int
    evicted_for_room: int
    evicted_by_age: int
    evicted_by_norm: int


@dataclasses.dataclass(frozen=True)
class TraceEvent:
    """One event of a server's trace.

    Attributes:
      seconds: when, on a clock that only moves forward.
      worker: whose pull or push it was.
      kind: "pull" answered, "push" applied or collected, "drop" of a late push, "close" of a step.
      clock: the worker's pushes; with "sync" the step.
      slowest: the smallest such clock of a worker that takes part.
    """

    seconds: float
    worker: int
    kind: str
    clock: int
    slowest: int


@dataclasses.dataclass(frozen=True)
class ServerSnapshot:
    """What a server holds at one moment.

    Attributes:
      shards: flat arrays by name; they are the store's own memory.
      progress: opaque numbers, from which a server knows what it has applied.
      aside: of a job with another number of servers, by name, what was not created here yet.
      tables: of a checkpoint.
      time: when it was taken, in the time of its rows (core/ps/table/row_clock.h); 0: unknown.
    """

    shards: Mapping[str, np.ndarray]
    progress: np.ndarray
    aside: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    tables: Sequence[SavedTable] = ()
    time: float = 0.0
