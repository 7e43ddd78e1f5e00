"""The common base of the field-wise embedding layers for Keras 3 and tf_keras."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist._types import AnyTensor
from tfdist.embedding import ids as id_kinds
from tfdist.embedding.fields import field_ids, pooled_by_slot
from tfdist.embedding.initializers import AnyInitializer
from tfdist.embedding.lookup import rows_of
from tfdist.embedding.optimizers import AnyRowOptimizer
from tfdist.embedding.table import EmbeddingTable
from tfdist.keras.substitute_rows.calls import looked_up

# For type checkers: the library's `Embedding` follows this class, whose Keras has no types.
_Base: Any = object


class RemoteFieldWise(_Base):
    """The first base class of a field-wise embedding layer, before the library's `Embedding`.

    Args:
      output_dim: the width of a row.
      slots: the slot of each column of the input, such as [0, 1, 1, 2] if the second and third
        column belong to one field; slots are numbered from 0 without gaps. `None`: each column is
        a separate slot.
      optimizer: as for `EmbeddingTable`.
      initializer: as for `EmbeddingTable`.
      combiner: "sum", "mean" or "sqrtn" over the columns of a slot.
      tables: an `EmbeddingTable` for each slot, all of one width, instead of one table for all.
      table: an `EmbeddingTable` without an `input_dim`, for all slots, instead of the arguments of
        a table.
      **kwargs: further arguments of `EmbeddingTable` and `Embedding`: "prefetch", "max_norm",
        "max_rows", ...
    """

    def __init__(
        self,
        output_dim: int = 64,
        slots: Sequence[int] | None = None,
        optimizer: AnyRowOptimizer = "adagrad",
        initializer: AnyInitializer = "uniform",
        combiner: str = "sum",
        *,
        tables: Sequence[EmbeddingTable] | None = None,
        table: EmbeddingTable | None = None,
        **kwargs: Any,
    ) -> None:
        if tables is not None:
            if table is not None or not tables:
                raise ValueError(
                    "a field-wise embedding: expected tables for each slot, or one table, "
                    f"received {len(tables)} tables and table={table!r}"
                )
            table = tables[0]
        super().__init__(None, output_dim, optimizer, initializer, combiner, table=table, **kwargs)
        self.slots = None if slots is None else list(slots)
        self._slot_tables = None if tables is None else list(tables)
        self._check()

    def _check(self) -> None:
        who = f"field-wise embedding layer {self.name!r}"
        if self.combiner is None:
            raise ValueError(f"{who}: expected combiner 'sum', 'mean' or 'sqrtn', received None")
        if self.default_id is not None:
            raise ValueError(f"{who}: expected no default_id, for each column has an id")
        if self.slots is not None and set(self.slots) != set(range(len(set(self.slots)))):
            raise ValueError(
                f"{who}: expected slots that are counted from 0 without a gap, received "
                f"{self.slots}"
            )
        tables = self._slot_tables
        if tables is None:
            if self._shared_table is not None and self._shared_table.input_dim is not None:
                raise ValueError(
                    f"{who}: expected a table of any ids, for slots share it, received input_dim="
                    f"{self._shared_table.input_dim}"
                )
            return
        widths = {table.output_dim for table in tables}
        if len(widths) > 1:
            raise ValueError(f"{who}: expected tables of one output_dim, received {sorted(widths)}")
        if self.slots is not None and len(tables) != max(self.slots) + 1:
            raise ValueError(
                f"{who}: expected a table for each of {max(self.slots) + 1} slots, received "
                f"{len(tables)}"
            )

    @property
    def tables(self) -> list[EmbeddingTable]:
        """All tables of the layer; empty until their names are known."""
        return super().tables if self._slot_tables is None else list(self._slot_tables)

    def ids_by_table(self, inputs: AnyTensor) -> list[tuple[EmbeddingTable, tf.Tensor]]:
        """Returns the ids that a call with these inputs looks up, for prefetching."""
        ids, slots = self._columns(inputs)
        if self._slot_tables is None:
            return [(self.table, field_ids(ids, slots))]
        return [
            (table, tf.gather(ids, [c for c, of in enumerate(slots) if of == slot], axis=1))
            for slot, table in enumerate(self._slot_tables)
        ]

    def _columns(self, inputs: AnyTensor) -> tuple[tf.Tensor, list[int]]:
        """Returns the ids, int64[batch, columns], and each column's slot."""
        who = f"field-wise embedding layer {self.name!r}"
        if isinstance(inputs, tf.RaggedTensor | tf.SparseTensor):
            raise ValueError(f"{who}: expected dense ids, received a {type(inputs).__name__}")
        ids = id_kinds.as_int64(tf.convert_to_tensor(inputs))
        columns = None if ids.shape.rank != 2 else ids.shape[1]
        slots = self.slots if self.slots is not None else list(range(columns or 0))
        if columns is None or columns != len(slots):
            raise ValueError(
                f"{who}: expected ids of shape (batch, {len(slots) or 'columns'}), received "
                f"{ids.shape}"
            )
        tables = self._slot_tables
        if tables is not None and len(tables) != max(slots) + 1:
            raise ValueError(
                f"{who}: expected a table for each of {max(slots) + 1} slots, received "
                f"{len(tables)}"
            )
        return ids, slots

    def _look_up(
        self, inputs: AnyTensor, weights: AnyTensor | None, training: bool | None
    ) -> tf.Tensor:
        ids, slots = self._columns(inputs)
        variable = self._variable()
        if variable is None:
            rows = tf.zeros([tf.shape(ids)[0], len(slots), self.output_dim])
        else:
            self._find_table(variable)
            counts = self._counts(training)
            rows = looked_up(lambda own: self._rows(own, slots, counts), ids)
        rows = tf.cast(id_kinds.clipped(rows, self.max_norm), self.compute_dtype)
        return pooled_by_slot(rows, weights, slots, self.combiner)

    def _rows(self, ids: tf.Tensor, slots: list[int], counts: bool) -> tf.Tensor:
        """Looks up rows, float32[batch, columns, width], with one message per server."""
        pairs = self.ids_by_table(ids)
        parts = rows_of([table for table, _ in pairs], [of_table for _, of_table in pairs], counts)
        if len(parts) == 1:
            return parts[0]
        # The parts are in the order of slots; restore the order of columns.
        order = sorted(range(len(slots)), key=lambda column: slots[column])
        rows = tf.concat(parts, 1)
        if order == list(range(len(slots))):
            return rows
        return tf.gather(rows, [order.index(column) for column in range(len(slots))], axis=1)

    def get_config(self) -> dict[str, object]:
        """Returns the arguments, from which `from_config` makes an equal layer."""
        config = super().get_config()
        config.pop("input_dim", None)
        config.pop("default_id")
        config["slots"] = None if self.slots is None else list(self.slots)
        if self._slot_tables is not None:
            config.pop("table")
            config["tables"] = list(self._slot_tables)
        return config
