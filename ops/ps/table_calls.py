"""What a worker's client does with embeddings' tables."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.ops import library
from tfdist.ops.ps.client_calls import CALLS
from tfdist.ops.ps.table_config import TableConfig


class EditKind(enum.IntEnum):
    """Numbered as `EditKind` in core/ps/table/table_edit.h; `import_rows` makes the others."""

    UPSERT = 3
    REMOVE = 4
    CLEAR = 5


class TableCalls:
    """The part of `ParameterClient` that is about rows of tables."""

    handle: int

    def create_table(self, name: str, config: TableConfig, resets_slots: bool = False) -> int:
        """Creates an embedding's table on all servers, unless they have it; returns its number.

        Args:
          name: the same in all workers.
          config: likewise.
          resets_slots: a table of a checkpoint that has another configuration takes this one, if
            its rows are as wide: they keep their values, and slots begin as those of new rows.

        Raises:
          tf.errors.InvalidArgumentError: it makes no sense, or differs from that of the table.
        """
        table = ctypes.c_int()
        CALLS.create_table(
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
        """Brings rows of tables, in one request to each server.

        Args:
          tables: objects with a number, `table`, a `width`, and the `handle` of a variable of no
            rows, which steps pull and push and which receives the gradient. Rows travel as their
            `wire_dtype`, if they have one: float32, float16 or bfloat16, to which they are rounded.
          ids: for each of them int64, of any shape.
          training: count the ids as seen, and give them rows.
          group: with which lookups it goes together, and the level; see
            `strategies.lookup_groups`. A group 0 is none.

        Returns:
          For each tensor of ids, float32 of its shape and the table's width.
        """
        return library.graph_ops().tfdist_ps_lookup(
            variables=[table.handle for table in tables],
            ids=ids,
            client=self.handle,
            tables=[table.table for table in tables],
            widths=[table.width for table in tables],
            wires=_wires(tables),
            training=training,
            group=group[0],
            level=group[1],
        )

    def prefetch(
        self, tables: Sequence[Any], ids: Sequence[tf.Tensor], training: bool = True
    ) -> tf.Operation | None:
        """Asks for rows that a lookup of exactly these ids will need at the next step.

        They may lack the updates of one step, not more: a lookup that comes later asks anew. The
        op waits while rows that it asked for before may still be used.

        Args:
          tables: as of `lookup`; a table may occur several times.
          ids: for each of them int64; shapes do not matter.
          training: as of the lookup.
        """
        return library.graph_ops().tfdist_ps_prefetch(
            ids=ids,
            client=self.handle,
            tables=[table.table for table in tables],
            wires=_wires(tables),
            training=training,
        )

    def edit_rows(
        self, table: Any, kind: EditKind, ids: tf.Tensor, rows: tf.Tensor
    ) -> tf.Operation | None:
        """Changes rows from outside of a step; done when the servers have acknowledged it.

        Args:
          table: as of `lookup`.
          kind: UPSERT writes values: new rows have first slots, others keep theirs. REMOVE removes
            rows. CLEAR removes all.
          ids: int64; of CLEAR empty.
          rows: float32, for each id of UPSERT a row; else empty.

        Raises:
          tf.errors.InvalidArgumentError: there are not as many rows as ids, or of another width.
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
        """Tells which ids have a row, and makes none. It does not count as a use.

        Args:
          table: as of `lookup`.
          ids: int64, of any shape.
          values: bring rows too.

        Returns:
          bool of the shape of `ids`; and float32 of that shape and the table's width, of an id
          without a row what it would begin as; empty without `values`.
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
        """Returns how many rows all servers together have of a table, int64."""
        return library.graph_ops().tfdist_ps_table_size(
            variable=table.handle, client=self.handle, table=table.table
        )

    def set_lookup_group(self, group: int, level: int, size: int) -> None:
        """Says how many lookups each execution of a level of a group has."""
        CALLS.set_lookup_group(self.handle, group, level, size)

    def set_cache(self, table: int, rows: int, steps: int) -> None:
        """Keeps rows of a table on this worker, and uses them again in lookups in training.

        A row is used for at most `steps` of this worker's steps after it was asked for, and lacks
        the updates since, its own among them (stale reads within a bound: Ho et al. 2013, More
        Effective Distributed ML via a Stale Synchronous Parallel Parameter Server). What is found
        here the server does not see: it is not counted for `min_count`, nor as a use.

        Args:
          table: its number.
          rows: how many at most; 0 keeps none.
          steps: from 0 on; with 0 a row serves only the lookups of one step.
        """
        CALLS.set_cache(self.handle, table, rows, steps)

    def stage_rows(
        self,
        tables: Sequence[Any],
        ids: Sequence[tf.Tensor],
        gradients: Sequence[tf.Tensor],
        learning_rates: Sequence[tf.Tensor],
        step: tf.Tensor,
    ) -> tf.Operation | None:
        """Keeps gradients of rows for the push that ends the step; equal ids are added up.

        Args:
          tables: as of `lookup`.
          ids: for each of them int64.
          gradients: as many rows.
          learning_rates: of each table, a scalar.
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
            wires=_wires(tables),
        )


def _wires(tables: Sequence[Any]) -> list[tf.DType]:
    return [getattr(table, "wire_dtype", tf.float32) for table in tables]
