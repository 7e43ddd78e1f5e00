"""The Python face of a worker's connections to the parameter servers."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.ops import library
from tfdist.ops.collectives import collective_keys
from tfdist.ops.ps import client_calls
from tfdist.ops.ps.client_calls import CALLS
from tfdist.ops.ps.optimizer_config import OptimizerConfig
from tfdist.ops.ps.table_calls import TableCalls

_TEXT_BYTES = 1024
DTYPES = {  # numbered as in core/math/dtype.h
    tf.float16: 1,
    tf.bfloat16: 2,
    tf.float32: 3,
    tf.float64: 4,
    tf.int32: 5,
    tf.int64: 6,
}


@dataclasses.dataclass(frozen=True)
class ParameterClientStats:
    """What one worker has exchanged with the parameter servers so far.

    Attributes:
      pulls: requests for values, one for all servers together.
      pushes: steps whose results were sent.
      dropped_pushes: how many of them a server did not use, because they came too late.
      bytes_pulled: bytes of values received.
      bytes_pushed: bytes of gradients and changes sent.
      pull_seconds: time from requests to their last byte; it includes waiting for slower workers.
      push_seconds: time from pushes to their answers, while the worker went on.
      reconnections: broken connections that were made again.
      lookups: requests for rows of tables, one for all servers together.
      lookup_ids: ids that were looked up.
      lookup_rows: rows that came for them: each once, and not those that were cached.
      lookup_bytes: of these rows.
      lookup_seconds: time from these requests to their last byte.
      prefetched: lists of ids whose rows were asked for ahead.
      prefetch_hits: how many of them a lookup has used.
      cache_lookups: different ids that were looked for in the cache.
      cache_hits: how many of them it had.
    """

    pulls: int
    pushes: int
    dropped_pushes: int
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


class ParameterClient(TableCalls):
    """A worker's connections to all parameter servers, and the parameters it knows.

    Variables are given as objects with a `handle` and a number, `parameter`.

    Args:
      worker: this worker's rank.
      workers: how many the job has.
      process: a random number that tells this process from one that has died.
      servers: how many parameter servers there are.
      timeout: seconds for a connected server to answer.
      lend: let servers on the same machine read large values out of this process's memory, and
        read theirs.
    """

    def __init__(
        self,
        worker: int,
        workers: int,
        process: int,
        servers: int,
        timeout: float = 600.0,
        lend: bool = True,
    ) -> None:
        handle = client_calls.Handle()
        options = client_calls.Options(worker, workers, process, servers, timeout, lend)
        CALLS.create(ctypes.byref(options), ctypes.byref(handle))
        self.handle = handle.value
        self.servers = servers

    def connect(
        self, server: int, address: str, key: bytes, incarnation: int, timeout: float
    ) -> None:
        """Connects to a server, first or again.

        Args:
          server: its number.
          address: "host:port" of its data port.
          key: 32 bytes that both sides prove to each other, together with:
          incarnation: the server's.
          timeout: seconds.

        Raises:
          tf.errors.UnavailableError, tf.errors.DeadlineExceededError: nobody answered.
        """
        if len(key) != 32:
            raise ValueError(f"expected a key of 32 bytes, received {len(key)}")
        CALLS.connect(self.handle, server, address.encode(), key, incarnation, timeout)

    def wait_for_lost(self, seconds: float) -> int | None:
        """Returns the next server whose connection broke, or `None` after `seconds`."""
        server = ctypes.c_int(-1)
        CALLS.wait_for_lost(self.handle, seconds, ctypes.byref(server))
        return None if server.value < 0 else server.value

    def waiting(self, seconds: float) -> str | None:
        """Returns which server has not answered for longer than that, and to what, if any."""
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        CALLS.waiting(self.handle, seconds, text, _TEXT_BYTES)
        return text.value.decode(errors="replace") or None

    def give_up(self, server: int, why: str) -> None:
        """Lets all that waits for a server fail with `tf.errors.UnavailableError(why)`."""
        CALLS.give_up(self.handle, server, tf.errors.UNAVAILABLE, why.encode())

    def add_parameter(self, name: str, dtype: tf.DType, shards: Sequence[Any]) -> int:
        """Makes a parameter known.

        Args:
          name: the same in all workers.
          dtype: of its elements.
          shards: as a `Placement` makes them.

        Returns:
          Its number.
        """
        count = len(shards)
        number = ctypes.c_int()
        CALLS.add_parameter(
            self.handle,
            name.encode(),
            DTYPES[dtype],
            sum(s.count for s in shards),
            count,
            (ctypes.c_int * count)(*(s.server for s in shards)),
            (ctypes.c_char_p * count)(*(s.name.encode() for s in shards)),
            (ctypes.c_uint64 * count)(*(s.first for s in shards)),
            (ctypes.c_uint64 * count)(*(s.count for s in shards)),
            ctypes.byref(number),
        )
        return number.value

    def bind(
        self, config: OptimizerConfig, bindings: Sequence[tuple[int, Sequence[int], float]]
    ) -> None:
        """Lets the servers update parameters by gradients.

        Args:
          config: the optimizer.
          bindings: each parameter, its slots, and its weight decay.

        Raises:
          tf.errors.OpError: a server refused, or did not answer.
        """
        count = len(bindings)
        slots = [slot for _, of_one, _ in bindings for slot in of_one]
        CALLS.bind(
            self.handle,
            ctypes.byref(config),
            count,
            (ctypes.c_int * count)(*(parameter for parameter, _, _ in bindings)),
            (ctypes.c_int * count)(*(len(of_one) for _, of_one, _ in bindings)),
            (ctypes.c_int * len(slots))(*slots),
            (ctypes.c_double * count)(*(decay for _, _, decay in bindings)),
        )

    def exclude(self, parameter: int) -> None:
        """Leaves a parameter out of the pulls that begin a step."""
        CALLS.exclude(self.handle, parameter)

    def initial_value(self, parameter: int, value: tf.Tensor) -> tf.Tensor:
        """Creates a parameter with `value` unless the servers have it; returns what they have."""
        result = library.graph_ops().tfdist_ps_initial_value(
            value=value, client=self.handle, parameter=parameter
        )
        return tf.ensure_shape(result, value.shape)

    def pull(self, variables: Sequence[Any], begins_step: bool) -> tf.Operation | None:
        """Brings variables up to date; `begins_step` begins a step."""
        return library.graph_ops().tfdist_ps_pull(**self._all(variables), begins_step=begins_step)

    def push(self, variables: Sequence[Any]) -> tf.Operation | None:
        """Ends a step: sends the staged gradients, and what it changed in the variables."""
        return library.graph_ops().tfdist_ps_push(**self._all(variables))

    def set(self, variables: Sequence[Any], write: bool) -> tf.Operation | None:
        """Gives the servers the variables' values; or, without `write`, forgets what was pulled."""
        return library.graph_ops().tfdist_ps_set(**self._all(variables), write=write)

    def stage(
        self,
        variables: Sequence[Any],
        gradients: Sequence[tf.Tensor | tf.IndexedSlices],
        learning_rate: tf.Tensor,
        step: tf.Tensor,
    ) -> tf.Operation | None:
        """Keeps gradients for the push that ends the step.

        Args:
          variables: bound to an optimizer on the servers.
          gradients: of each variable, of its shape and dtype, or rows of it.
          learning_rate: a scalar.
          step: a scalar, counted from 1.
        """
        of_rows = [isinstance(gradient, tf.IndexedSlices) for gradient in gradients]
        tensors = []
        for variable, gradient in zip(variables, gradients, strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                tensors += [tf.cast(gradient.values, variable.dtype), gradient.indices]
            else:
                tensors.append(tf.cast(gradient, variable.dtype))
        return library.graph_ops().tfdist_ps_stage(
            **self._all(variables),
            gradients=tensors,
            learning_rate=tf.cast(learning_rate, tf.float64),
            step=tf.cast(step, tf.int64),
            of_rows=of_rows,
        )

    def reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Adds up tensors over the workers of a synchronous job."""
        key = collective_keys.next_key(("workers of a client", self.handle))
        return library.graph_ops().tfdist_ps_reduce(inputs=tensors, client=self.handle, key=key)

    def flush(self, timeout: float) -> None:
        """Waits until the servers have answered every push; raises what one of them answered."""
        CALLS.flush(self.handle, timeout)

    def leave(self, timeout: float) -> None:
        """Waits as `flush`, then tells the servers that this worker has finished its program."""
        CALLS.leave(self.handle, timeout)

    def stats(self) -> ParameterClientStats:
        """The counters, also while requests are under way."""
        raw = client_calls.Stats()
        CALLS.stats(self.handle, ctypes.byref(raw))
        rows = client_calls.LookupStats()
        CALLS.lookup_stats(self.handle, ctypes.byref(rows))
        return ParameterClientStats(
            pulls=raw.pulls,
            pushes=raw.pushes,
            dropped_pushes=raw.dropped_pushes,
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
        """Ends what is under way and closes the connections. May be called again."""
        CALLS.close(self.handle)

    def _all(self, variables: Sequence[Any]) -> dict[str, Any]:
        return {
            "variables": [v.handle for v in variables],
            "client": self.handle,
            "parameters": [v.parameter for v in variables],
        }
