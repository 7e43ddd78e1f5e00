"""The embedding tables of the servers."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Sequence

import tensorflow as tf

from tfdist.ops import library
from tfdist.ops.ps.client_c_api import CLIENT
from tfdist.ops.ps.table_config import TableConfig
from tfdist.ops.ps.variable_handles import TableHandle


class EditKind(enum.IntEnum):
    """Numbered as `EditKind` in core/ps/table/table_edit.h; `import_rows` makes the others."""

    UPSERT = 3
    REMOVE = 4
    CLEAR = 5


class Tables:
    """The embedding tables of the servers.

    A face of a `ParameterClient`.

    Args:
      handle: the client's.
    """

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def create(self, name: str, config: TableConfig, resets_slots: bool = False) -> int:
        """Creates an embedding table on all servers unless they have it; returns its id.

        Args:
          name: the same in all workers.
          config: the same in all workers.
          resets_slots: a table restored from a checkpoint with another configuration changes to
            this one if its rows have the same width. Rows keep their values; their slots begin as
            in new rows.

        Raises:
          tf.errors.InvalidArgumentError: the configuration is invalid, or differs from the existing
            table's.
        """
        table = ctypes.c_int()
        CLIENT.create_table(
            self.handle, name.encode(), ctypes.byref(config), resets_slots, ctypes.byref(table)
        )
        return table.value

    def lookup(
        self,
        tables: Sequence[TableHandle],
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
        self, tables: Sequence[TableHandle], ids: Sequence[tf.Tensor], training: bool = True
    ) -> tf.Operation | None:
        """Requests the rows that a lookup of exactly these ids will need in the next step.

        The rows may lack the updates of one step, not more: a later lookup requests them again.
        The op waits while rows that it requested before may still be used.

        Args:
          tables: the tables; a table may occur several times.
          ids: for each table int64; shapes do not matter.
          training: as in the lookup.
        """
        return library.graph_ops().tfdist_ps_prefetch(
            ids=ids,
            client=self.handle,
            tables=[table.table for table in tables],
            wires=_wire_dtypes(tables),
            training=training,
        )

    def edit(
        self, table: TableHandle, kind: EditKind, ids: tf.Tensor, rows: tf.Tensor
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

    def find(self, table: TableHandle, ids: tf.Tensor, values: bool) -> tuple[tf.Tensor, tf.Tensor]:
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

    def size(self, table: TableHandle) -> tf.Tensor:
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

    def set_served_cache(self, table: int, rows: int, seconds: float) -> None:
        """Caches rows of a table for lookups that are served.

        Args:
          table: the table's id.
          rows: the maximum number of cached rows; 0 disables the cache.
          seconds: a row is used for at most so long after it was requested; at least 1/16.
        """
        CLIENT.set_served_cache(self.handle, table, rows, seconds)

    def stage(
        self,
        tables: Sequence[TableHandle],
        ids: Sequence[tf.Tensor],
        gradients: Sequence[tf.Tensor],
        learning_rates: Sequence[tf.Tensor],
        step: tf.Tensor,
    ) -> tf.Operation | None:
        """Holds gradients of rows for the push that ends the step; sums the gradients of equal ids.

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


def _wire_dtypes(tables: Sequence[TableHandle]) -> list[tf.DType]:
    return [getattr(table, "wire_dtype", tf.float32) for table in tables]


@tf.RegisterGradient("TfdistPsLookup")
def _lookup_gradient(op: tf.Operation, *gradients: tf.Tensor) -> list:
    """The gradients of the tables' variables, which have no rows: rows and ids, as for a gather."""
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
