"""What a parameter server tells of itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np


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
      rejected_connections: connections that did not present the token.
      broken_requests: requests that were not what this protocol sends.
      shards: how many shards the server holds.
      value_bytes: their size.
      connections: workers that are connected.
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
class ServerImage:
    """What a server holds at one moment.

    Attributes:
      shards: flat arrays by name; they are the store's own memory.
      progress: opaque numbers, from which a server knows what it has applied.
    """

    shards: Mapping[str, np.ndarray]
    progress: np.ndarray
