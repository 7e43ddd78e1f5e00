"""A worker's connections to the parameter servers."""

from __future__ import annotations

import ctypes
import dataclasses

import tensorflow as tf

from tfdist.ops import library
from tfdist.ops.ps.averaging import Averaging
from tfdist.ops.ps.client_c_api import CLIENT, ClientOptions, ClientStats, LookupStats
from tfdist.ops.ps.commits import Commits
from tfdist.ops.ps.parameters import ServerParameters
from tfdist.ops.ps.tables import Tables

_TEXT_BYTES = 1024


@dataclasses.dataclass(frozen=True)
class ParameterClientStats:
    """Counters of one worker's communication with the parameter servers.

    Attributes:
      pulls: requests for values; a request to all servers counts once.
      pushes: steps whose results were sent.
      dropped_pushes: pushes that a server did not use because they came too late, or has lost.
      refused_pushes: steps on records of data tasks that this worker had lost; others train these.
      bytes_pulled: bytes of values received.
      bytes_pushed: bytes of gradients and deltas sent.
      pull_seconds: time from requests to their last byte; it includes waiting for slower workers.
      push_seconds: time from pushes to their answers, while the worker continued.
      reconnections: broken connections that were made again.
      lookups: requests for rows of tables; a request to all servers counts once.
      lookup_ids: ids that were looked up.
      lookup_rows: rows received; duplicate ids and cached rows are not sent.
      lookup_bytes: bytes of these rows.
      lookup_seconds: time from these requests to their last byte.
      prefetched: lists of ids whose rows were requested ahead.
      prefetch_hits: prefetched lists that a lookup has used.
      cache_lookups: distinct ids that were looked for in the cache.
      cache_hits: ids that the cache had.
    """

    pulls: int
    pushes: int
    dropped_pushes: int
    refused_pushes: int
    bytes_pulled: int
    bytes_pushed: int
    pull_seconds: float
    push_seconds: float
    reconnections: int
    lookups: int
    lookup_ids: int
    lookup_rows: int
    lookup_bytes: int
    lookup_seconds: float
    prefetched: int
    prefetch_hits: int
    cache_lookups: int
    cache_hits: int


class ParameterClient:
    """A worker's connections to all parameter servers, and the ids of its parameters and tables.

    Variables are passed as objects with a `handle` and a parameter id, `parameter`. Tables are
    passed as objects with a table id, `table`, a `width`, and the `handle` of a variable without
    rows, which steps pull and push and which receives the gradient. A table may have a
    `wire_dtype`: float32 (the default), float16 or bfloat16, to which its rows are rounded before
    they are sent.

    Args:
      worker: this worker's rank.
      workers: the number of workers in the job.
      process: a random number that tells this process from a process that has died.
      servers: the number of parameter servers.
      timeout: seconds for a connected server to answer.
      peer_memory: whether this process and servers on the same machine read large values out of
        each other's memory.
      n_push: the number of steps from one push to the next.
      n_fetch: the number of steps from one fetch of the parameters to the next.

    Attributes:
      parameters, tables, commits, averaging: the faces of the connections.
    """

    def __init__(
        self,
        worker: int,
        workers: int,
        process: int,
        servers: int,
        timeout: float = 600.0,
        peer_memory: bool = True,
        n_push: int = 1,
        n_fetch: int = 1,
    ) -> None:
        handle = library.Handle()
        options = ClientOptions(
            worker, workers, process, servers, timeout, peer_memory, n_push, n_fetch
        )
        CLIENT.create(ctypes.byref(options), ctypes.byref(handle))
        self.handle = handle.value
        self.servers = servers
        self.parameters = ServerParameters(self.handle)
        self.tables = Tables(self.handle)
        self.commits = Commits(self.handle)
        self.averaging = Averaging(self.handle)

    def connect(
        self, server: int, address: str, key: bytes, incarnation: int, timeout: float
    ) -> None:
        """Connects to a server, for the first time or again.

        Args:
          server: the server's index.
          address: "host:port" of its data port.
          key: 32 bytes; both sides prove to each other that they have them.
          incarnation: the server's incarnation, which the proof includes.
          timeout: seconds.

        Raises:
          ValueError: the key has another length.
          tf.errors.UnavailableError, tf.errors.DeadlineExceededError: the server did not answer.
        """
        if len(key) != 32:
            raise ValueError(f"expected a key of 32 bytes, received {len(key)}")
        CLIENT.connect(self.handle, server, address.encode(), key, incarnation, timeout)

    def wait_for_lost(self, seconds: float) -> int | None:
        """Returns the next server whose connection broke, or `None` after `seconds`."""
        server = ctypes.c_int(-1)
        CLIENT.wait_for_lost(self.handle, seconds, ctypes.byref(server))
        return None if server.value < 0 else server.value

    def waiting(self, seconds: float) -> str | None:
        """Names a server that has not answered for `seconds`, and the request; or `None`."""
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        CLIENT.waiting(self.handle, seconds, text, _TEXT_BYTES)
        return text.value.decode(errors="replace") or None

    def give_up(self, server: int, why: str) -> None:
        """Fails everything that waits for a server with `tf.errors.UnavailableError(why)`."""
        CLIENT.give_up(self.handle, server, tf.errors.UNAVAILABLE, why.encode())

    def readmit(self, server: int) -> None:
        """Takes back `give_up`: `connect` may be called again."""
        CLIENT.readmit(self.handle, server)

    def silent(self, seconds: float) -> int | None:
        """Returns the server that has not answered for the longest time over `seconds`, if any."""
        server = CLIENT.silent(self.handle, seconds)
        return None if server < 0 else server

    def flush(self, timeout: float) -> None:
        """Waits until the servers have answered every push; raises an error that one answered."""
        CLIENT.flush(self.handle, timeout)

    def leave(self, timeout: float) -> None:
        """Waits as `flush`, then tells the servers that this worker has finished its program."""
        CLIENT.leave(self.handle, timeout)

    def waits(self) -> dict[str, float]:
        """Returns the seconds during which pulls were pending, by the name of the server.

        A pull that begins a step waits for the servers' schedule: with `sync`, for the pushes of
        the other workers. Lookups do not count: they may run ahead of the step.
        """
        return {"the parameter servers": self.stats().pull_seconds}

    def take_longest_wait(self, name: str) -> str:
        """Returns the operation in which this worker waits for the servers: pulls."""
        return "pulls"

    def traffic(self) -> dict[str, tuple[int, int]]:
        """Returns the bytes of values sent to and received from each server, by its name."""
        sent, received = (ctypes.c_uint64 * self.servers)(), (ctypes.c_uint64 * self.servers)()
        CLIENT.traffic(self.handle, sent, received, self.servers)
        return {f"ps {server}": (sent[server], received[server]) for server in range(self.servers)}

    def stats(self) -> ParameterClientStats:
        """Returns the counters; requests may be in progress."""
        raw = ClientStats()
        CLIENT.stats(self.handle, ctypes.byref(raw))
        rows = LookupStats()
        CLIENT.lookup_stats(self.handle, ctypes.byref(rows))
        return ParameterClientStats(
            pulls=raw.pulls,
            pushes=raw.pushes,
            dropped_pushes=raw.dropped_pushes,
            refused_pushes=raw.refused_pushes,
            bytes_pulled=raw.bytes_pulled,
            bytes_pushed=raw.bytes_pushed,
            pull_seconds=raw.pull_nanoseconds / 1e9,
            push_seconds=raw.push_nanoseconds / 1e9,
            reconnections=raw.reconnections,
            lookups=rows.lookups,
            lookup_ids=rows.lookup_ids,
            lookup_rows=rows.lookup_rows,
            lookup_bytes=rows.lookup_bytes,
            lookup_seconds=rows.lookup_nanoseconds / 1e9,
            prefetched=rows.prefetched,
            prefetch_hits=rows.prefetch_hits,
            cache_lookups=rows.cache_lookups,
            cache_hits=rows.cache_hits,
        )

    def close(self) -> None:
        """Ends pending requests and closes the connections. May be called again."""
        CLIENT.close(self.handle)
