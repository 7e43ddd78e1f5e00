"""A worker's connections to the parameter servers."""

from __future__ import annotations

import ctypes
import dataclasses
import enum
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.ops import library
from tfdist.ops.collectives import collective_keys
from tfdist.ops.ps.client_c_api import CLIENT, ClientOptions, ClientStats, LookupStats
from tfdist.ops.ps.dtypes import DTYPES
from tfdist.ops.ps.optimizer_config import OptimizerConfig
from tfdist.ops.ps.table_config import TableConfig

_TEXT_BYTES = 1024
# Leases that one call returns; the others expire.
_MAX_REFUSED = 4096


class EditKind(enum.IntEnum):
    """Numbered as `EditKind` in core/ps/table/table_edit.h; `import_rows` makes the others."""

    UPSERT = 3
    REMOVE = 4
    CLEAR = 5


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
      push_seconds: time from pushes to their answers, while the worker went on.
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
      process: a random number that tells this process from one that has died.
      servers: the number of parameter servers.
      timeout: seconds for a connected server to answer.
      peer_memory: whether this process and servers on the same machine read large values out of
        each other's memory.
      n_push: the number of steps from one push to the next.
      n_fetch: the number of steps from one fetch of the parameters to the next.
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

    def add_parameter(self, name: str, dtype: tf.DType, shards: Sequence[Any]) -> int:
        """Registers a parameter and returns its id.

        Args:
          name: the same in all workers.
          dtype: of its elements.
          shards: from `Placement.shards`.
        """
        count = len(shards)
        parameter = ctypes.c_int()
        CLIENT.add_parameter(
            self.handle,
            name.encode(),
            DTYPES[dtype],
            sum(s.count for s in shards),
            count,
            (ctypes.c_int * count)(*(s.server for s in shards)),
            (ctypes.c_char_p * count)(*(s.name.encode() for s in shards)),
            (ctypes.c_uint64 * count)(*(s.first for s in shards)),
            (ctypes.c_uint64 * count)(*(s.count for s in shards)),
            ctypes.byref(parameter),
        )
        return parameter.value

    def bind(
        self, config: OptimizerConfig, bindings: Sequence[tuple[int, Sequence[int], float]]
    ) -> None:
        """Makes the servers update parameters by gradients.

        Args:
          config: the optimizer.
          bindings: for each parameter its id, the ids of its slots, and its weight decay.

        Raises:
          tf.errors.OpError: a server refused, or did not answer.
        """
        count = len(bindings)
        all_slots = [slot for _, slots, _ in bindings for slot in slots]
        CLIENT.bind(
            self.handle,
            ctypes.byref(config),
            count,
            (ctypes.c_int * count)(*(parameter for parameter, _, _ in bindings)),
            (ctypes.c_int * count)(*(len(slots) for _, slots, _ in bindings)),
            (ctypes.c_int * len(all_slots))(*all_slots),
            (ctypes.c_double * count)(*(decay for _, _, decay in bindings)),
        )

    def exclude(self, parameter: int) -> None:
        """Leaves a parameter out of the pulls that begin a step."""
        CLIENT.exclude(self.handle, parameter)

    def initial_value(self, parameter: int, value: tf.Tensor) -> tf.Tensor:
        """Creates a parameter with `value` unless the servers have it; returns their value."""
        result = library.graph_ops().tfdist_ps_initial_value(
            value=value, client=self.handle, parameter=parameter
        )
        return tf.ensure_shape(result, value.shape)

    def pull(self, variables: Sequence[Any], begins_step: bool) -> tf.Operation | None:
        """Brings variables up to date; with `begins_step` a step begins."""
        return library.graph_ops().tfdist_ps_pull(
            **self._attributes(variables), begins_step=begins_step
        )

    def push(
        self, variables: Sequence[Any], ends_step: bool = True, waits: bool = False
    ) -> tf.Operation | None:
        """Sends the staged gradients and the variables' deltas.

        Args:
          variables: the variables.
          ends_step: whether the step ends.
          waits: whether the operation waits for the servers' answers, and fails if one refuses.

        Returns:
          The operation, in a graph.
        """
        return library.graph_ops().tfdist_ps_push(
            **self._attributes(variables), ends_step=ends_step, waits=waits
        )

    def resolve(self, job: int, generation: int, units: int, workers: Sequence[int]) -> None:
        """Tells all servers the members of a generation of an elastic job.

        They apply what they have collected in a unit of work that the members have done, and forget
        it if the members have not. See core/ps/server/elastic_schedule.h.

        Args:
          job: identifies the job, from its founding to its end; not 0.
          generation: its number, from 1.
          units: of work that all members have done.
          workers: the members' ranks on the servers.

        Raises:
          tf.errors.FailedPreconditionError: a server knows a later generation.
          tf.errors.OpError: a server refused or did not answer.
        """
        refused = ctypes.c_bool()
        CLIENT.resolve(
            self.handle,
            job,
            generation,
            units,
            (ctypes.c_uint32 * len(workers))(*workers),
            len(workers),
            ctypes.byref(refused),
        )

    def begin_unit(self, number: int) -> None:
        """Says that later pushes and commits belong to a unit of work of an elastic job.

        Args:
          number: of units that were done before.
        """
        CLIENT.begin_unit(self.handle, number)

    def commit(self, variables: Sequence[Any]) -> tf.Operation | None:
        """Tells the servers that this worker has done the unit of work whose gradients it pushed.

        They apply the unit's gradients once all members have said so.

        Args:
          variables: the tables' variables, which order the operation after the push.

        Returns:
          The operation, in a graph. It ends when the servers have answered.
        """
        return library.graph_ops().tfdist_ps_commit(
            variables=[v.handle for v in variables], client=self.handle
        )

    def is_committed_by_all(self) -> bool:
        """Whether the servers have applied the unit of work that this worker has committed last.

        Raises:
          tf.errors.OpError: a server did not answer.
        """
        is_open = ctypes.c_bool()
        CLIENT.repeat_commit(self.handle, ctypes.byref(is_open))
        return not is_open.value

    def add_batch(self, stream: int, records: Sequence[tuple[int, int, int]]) -> None:
        """Adds the next batch of a stream of data tasks.

        Args:
          stream: a number that this worker gives it.
          records: for each task in the batch its lease, its first record there, and the one behind
            the last.
        """
        numbers = np.asarray(records, np.uint64).reshape(-1)
        CLIENT.add_batch(
            self.handle,
            stream,
            numbers.ctypes.data_as(ctypes.POINTER(ctypes.c_uint64)),
            len(records),
        )

    def forget_stream(self, stream: int) -> None:
        """Forgets the batches of a stream that no step has used."""
        CLIENT.forget_stream(self.handle, stream)

    def begin_steps(self, stream: int, steps: int) -> None:
        """Says that the next `steps` steps use the next batches of a stream, one each.

        The push that ends such a step commits the records of its batch: the server applies both or
        refuses both. A later call, also with 0 steps, ends this one.
        """
        CLIENT.begin_steps(self.handle, stream, steps)

    def take_refused(self) -> tuple[int, set[int]]:
        """Returns how many batches were refused since the last call, and the leases of their tasks.

        Steps on further records of these tasks send nothing.
        """
        leases, count = (ctypes.c_uint64 * _MAX_REFUSED)(), ctypes.c_uint64()
        refused = CLIENT.take_refused(self.handle, leases, _MAX_REFUSED, ctypes.byref(count))
        return refused, set(leases[: count.value])

    def set(self, variables: Sequence[Any], write: bool) -> tf.Operation | None:
        """Writes the variables' values to the servers; without `write`, drops pulled values."""
        return library.graph_ops().tfdist_ps_set(**self._attributes(variables), write=write)

    def stage(
        self,
        variables: Sequence[Any],
        gradients: Sequence[tf.Tensor | tf.IndexedSlices],
        learning_rate: tf.Tensor,
        step: tf.Tensor,
    ) -> tf.Operation | None:
        """Holds gradients for the push that ends the step.

        Args:
          variables: bound to an optimizer on the servers.
          gradients: for each variable a tensor of its shape and dtype, or some of its rows.
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
            **self._attributes(variables),
            gradients=tensors,
            learning_rate=tf.cast(learning_rate, tf.float64),
            step=tf.cast(step, tf.int64),
            of_rows=of_rows,
        )

    def exchange(
        self, parameters: Sequence[int], values: Sequence[tf.Tensor], alpha: float
    ) -> list[tf.Tensor]:
        """Lets parameters on the servers and a worker's values for them attract each other.

        A server adds `alpha * (value - parameter)` to each parameter, under its lock: elastic
        averaging (Zhang, Choromanska and LeCun 2015).

        Args:
          parameters: ids of floating-point parameters.
          values: of the parameters' shapes and dtypes.
          alpha: above 0 and at most 1.

        Returns:
          What has been added to each parameter; the worker subtracts it from its value.

        Raises:
          tf.errors.InvalidArgumentError: `alpha` or a shape is wrong.
          tf.errors.OpError: a server refused or did not answer.
        """
        return library.graph_ops().tfdist_ps_exchange(
            values=values,
            alpha=tf.constant(alpha, tf.float64),
            client=self.handle,
            parameters=list(parameters),
        )

    def reduce(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Sums tensors over the workers of a synchronous job."""
        key = collective_keys.next_key(("workers of a client", self.handle))
        return library.graph_ops().tfdist_ps_reduce(inputs=tensors, client=self.handle, key=key)

    def create_table(self, name: str, config: TableConfig, resets_slots: bool = False) -> int:
        """Creates an embedding table on all servers unless they have it; returns its id.

        Args:
          name: the same in all workers.
          config: the same in all workers.
          resets_slots: a table restored from a checkpoint with another configuration changes to
            this one if its rows have the same width. Rows keep their values; their slots begin as
            those of new rows.

        Raises:
          tf.errors.InvalidArgumentError: the configuration is invalid, or differs from that of the
            existing table.
        """
        table = ctypes.c_int()
        CLIENT.create_table(
            self.handle, name.encode(), ctypes.byref(config), resets_slots, ctypes.byref(table)
        )
        return table.value

    def lookup(
        self,
        tables: Sequence[Any],
        ids: Sequence[tf.Tensor],
        training: bool,
        group: tuple[int, int] = (0, 0),
    ) -> list[tf.Tensor]:
        """Fetches rows of tables, in one request to each server.

        Args:
          tables: the tables.
          ids: for each table int64, of any shape.
          training: count the ids as used, and create rows for new ids.
          group: the lookup's group and its level in the group; see
            `strategies._variables.lookup_groups`. Group 0 means that it belongs to none.

        Returns:
          For each tensor of ids, float32 of its shape and the table's width.
        """
        return library.graph_ops().tfdist_ps_lookup(
            variables=[table.handle for table in tables],
            ids=ids,
            client=self.handle,
            tables=[table.table for table in tables],
            widths=[table.width for table in tables],
            wires=_wire_dtypes(tables),
            training=training,
            group=group[0],
            level=group[1],
        )

    def set_lookup_group(self, group: int, level: int, size: int) -> None:
        """Sets the number of lookups in each execution of one level of a group."""
        CLIENT.set_lookup_group(self.handle, group, level, size)

    def prefetch(
        self, tables: Sequence[Any], ids: Sequence[tf.Tensor], training: bool = True
    ) -> tf.Operation | None:
        """Requests the rows that a lookup of exactly these ids will need in the next step.

        The rows may lack the updates of one step, not more: a later lookup requests them again.
        The op waits while rows that it requested before may still be used.

        Args:
          tables: the tables; a table may occur several times.
          ids: for each table int64; shapes do not matter.
          training: as of the lookup.
        """
        return library.graph_ops().tfdist_ps_prefetch(
            ids=ids,
            client=self.handle,
            tables=[table.table for table in tables],
            wires=_wire_dtypes(tables),
            training=training,
        )

    def edit_rows(
        self, table: Any, kind: EditKind, ids: tf.Tensor, rows: tf.Tensor
    ) -> tf.Operation | None:
        """Changes rows outside of a step; done when the servers have acknowledged it.

        Args:
          table: the table.
          kind: UPSERT writes values: new rows get initial slots, existing rows keep theirs. REMOVE
            removes rows. CLEAR removes all rows.
          ids: int64; empty for CLEAR.
          rows: float32, one row for each id of UPSERT; else empty.

        Raises:
          tf.errors.InvalidArgumentError: the numbers of ids and rows differ, or the rows have
            another width than the table's.
          tf.errors.OpError: a server refused, or does not answer.
        """
        return library.graph_ops().tfdist_ps_edit_rows(
            variable=table.handle,
            ids=ids,
            rows=rows,
            client=self.handle,
            table=table.table,
            kind=int(kind),
        )

    def find_rows(self, table: Any, ids: tf.Tensor, values: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Tells which ids have a row. Creates no rows and does not count as a use.

        Args:
          table: the table.
          ids: int64, of any shape.
          values: also fetch the rows.

        Returns:
          A bool of the shape of `ids`; and float32 of that shape and the table's width, where an id
          without a row has its initial value. The second is empty without `values`.
        """
        return library.graph_ops().tfdist_ps_find_rows(
            variable=table.handle,
            ids=ids,
            client=self.handle,
            table=table.table,
            width=table.width,
            values=values,
        )

    def table_size(self, table: Any) -> tf.Tensor:
        """Returns a table's number of rows on all servers together, int64."""
        return library.graph_ops().tfdist_ps_table_size(
            variable=table.handle, client=self.handle, table=table.table
        )

    def set_cache(self, table: int, rows: int, steps: int) -> None:
        """Caches rows of a table on this worker for lookups in training.

        A row is used for at most `steps` of this worker's steps after it was requested. It lacks
        the updates since then, including this worker's (bounded staleness: Ho et al. 2013, More
        Effective Distributed ML via a Stale Synchronous Parallel Parameter Server). The server
        does not see cache hits: they count neither for `min_count` nor as a use.

        Args:
          table: the table's id.
          rows: the maximum number of cached rows; 0 disables the cache.
          steps: at least 0; with 0 a row serves only the lookups of one step.
        """
        CLIENT.set_cache(self.handle, table, rows, steps)

    def stage_rows(
        self,
        tables: Sequence[Any],
        ids: Sequence[tf.Tensor],
        gradients: Sequence[tf.Tensor],
        learning_rates: Sequence[tf.Tensor],
        step: tf.Tensor,
    ) -> tf.Operation | None:
        """Holds gradients of rows for the push that ends the step; sums those of equal ids.

        Args:
          tables: the tables.
          ids: for each table int64.
          gradients: for each table one row for each id.
          learning_rates: for each table a scalar.
          step: a scalar, counted from 1.
        """
        return library.graph_ops().tfdist_ps_stage_rows(
            variables=[table.handle for table in tables],
            ids=ids,
            gradients=[tf.cast(gradient, tf.float32) for gradient in gradients],
            learning_rates=[tf.cast(rate, tf.float64) for rate in learning_rates],
            step=tf.cast(step, tf.int64),
            client=self.handle,
            tables=[table.table for table in tables],
            wires=_wire_dtypes(tables),
        )

    def push_accumulated(self) -> None:
        """Pushes the steps that `n_push` has held back; does not wait for the servers.

        Raises:
          tf.errors.OpError: what is pushed is invalid.
        """
        CLIENT.push_accumulated(self.handle)

    def flush(self, timeout: float) -> None:
        """Waits until the servers have answered every push; raises an error that one answered."""
        CLIENT.flush(self.handle, timeout)

    def leave(self, timeout: float) -> None:
        """Waits as `flush`, then tells the servers that this worker has finished its program."""
        CLIENT.leave(self.handle, timeout)

    def waits(self) -> dict[str, float]:
        """Returns the seconds during which pulls were pending, by whom it waited for.

        A pull that begins a step waits for the servers' schedule: with `sync`, for the pushes of
        the other workers. Lookups do not count: they may run ahead of the step.
        """
        return {"the parameter servers": self.stats().pull_seconds}

    def take_longest_wait(self, name: str) -> str:
        """Returns in what this worker waits for the servers: in pulls."""
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

    def _attributes(self, variables: Sequence[Any]) -> dict[str, Any]:
        return {
            "variables": [v.handle for v in variables],
            "client": self.handle,
            "parameters": [v.parameter for v in variables],
        }


def _wire_dtypes(tables: Sequence[Any]) -> list[tf.DType]:
    return [getattr(table, "wire_dtype", tf.float32) for table in tables]


@tf.RegisterGradient("TfdistPsLookup")
def _lookup_gradient(op: tf.Operation, *gradients: tf.Tensor) -> list:
    """The gradients of the tables' variables, which have no rows: rows and ids, as of a gather."""
    count = len(gradients)
    slices = []
    for ids, gradient in zip(op.inputs[count:], gradients, strict=True):
        width = gradient.shape[-1]
        slices.append(
            tf.IndexedSlices(
                tf.reshape(gradient, [-1, width]),
                tf.reshape(ids, [-1]),
                tf.constant([0, width], tf.int64),
            )
        )
    return [*slices, *[None] * count]
