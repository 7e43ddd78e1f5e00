"""A parameter server's counters and events."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class ServerEvent:
    """An event on a server.

    Attributes:
      kind: "came", "left" or "lost" for a worker's connection, or "log".
      worker: the worker's rank.
      text: a line for the log.
    """

    kind: str
    worker: int
    text: str


@dataclasses.dataclass(frozen=True)
class ServerStats:
    """Counters of one server.

    Attributes:
      pulls: pulls answered.
      pushes: pushes applied, or collected for a step.
      dropped_pushes: pushes that came too late.
      repeated_pushes: pushes that had been applied before.
      refused_pushes: pushes that have trained records of data tasks which their workers had lost.
      clock: closed steps.
      largest_lead: with "ssp", the largest number of steps that a worker led the slowest by.
      bytes_sent: bytes of values.
      bytes_received: bytes of gradients and deltas.
      rejected_connections: connections that did not prove the key.
      broken_requests: requests that violate the protocol.
      shards: number of shards.
      value_bytes: their size.
      connections: connected workers.
      log_bytes: bytes logged since the rows were last saved.
      log_failed: 1 if rows were changed that are neither saved nor in the log.
      memory_held: counted bytes: values, rows of tables and buffers of requests.
      memory_budget: maximum of these bytes; 0: there is no limit.
      edits: edits of rows (`EmbeddingTable.upsert` and the like) that were carried out.
      assignments: requests of workers that set values of variables, such as `set_weights`.
    """

    pulls: int
    pushes: int
    dropped_pushes: int
    repeated_pushes: int
    refused_pushes: int
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
    assignments: int


@dataclasses.dataclass(frozen=True)
class TableStats:
    """Counters of one embedding table on one server.

    Attributes:
      rows: number of rows.
      bytes: all memory of the rows.
      lookups: ids that were looked up.
      hits: looked-up ids that had a row.
      created: rows created.
      updates: rows' gradients applied.
      lost_updates: gradients whose ids had no row.
      evicted_for_room: rows evicted because the table was full.
      evicted_by_age: rows evicted because they were unused for too long.
      evicted_by_norm: rows evicted because their norm was too small.
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
      seconds: time, on a monotonic clock.
      worker: rank of the worker whose pull or push it was.
      kind: "pull" answered, "push" applied or collected, "drop" of a late push, "close" of a step,
        "undo" of a step of an elastic job.
      clock: the worker's number of pushes; with "sync" the step.
      slowest: the smallest clock of the workers that take part.
    """

    seconds: float
    worker: int
    kind: str
    clock: int
    slowest: int
