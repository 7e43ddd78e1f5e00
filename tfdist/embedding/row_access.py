"""Reads and writes of a table's rows by id, outside of training."""

from __future__ import annotations

from typing import Protocol

import tensorflow as tf

from tfdist._types import TensorLike
from tfdist.embedding import ids as id_kinds
from tfdist.ops.ps.tables import EditKind
from tfdist.strategies._variables import table_variable
from tfdist.strategies._variables.table_variable import TableVariable


class AccessibleTable(Protocol):
    """An `EmbeddingTable`, as far as access to its rows needs it."""

    name: str
    input_dim: int | None
    output_dim: int

    @property
    def rows(self) -> TableVariable:
        """The variable that stands for the table."""


def upsert(table: AccessibleTable, ids: TensorLike, rows: TensorLike) -> tf.Operation | None:
    """As `EmbeddingTable.upsert`."""
    ids = _ids(table, ids)
    rows = tf.convert_to_tensor(rows, tf.float32)
    expected = ids.shape.concatenate([table.output_dim])
    if not rows.shape.is_compatible_with(expected):
        raise ValueError(
            f"embedding table {table.name!r}: expected rows of shape {expected} for ids of shape "
            f"{ids.shape}, received {rows.shape}"
        )
    return table_variable.edit(table.rows, EditKind.UPSERT, ids, rows)


def remove(table: AccessibleTable, ids: TensorLike) -> tf.Operation | None:
    """As `EmbeddingTable.remove`."""
    return table_variable.edit(table.rows, EditKind.REMOVE, _ids(table, ids), _no_rows())


def clear(table: AccessibleTable) -> tf.Operation | None:
    """As `EmbeddingTable.clear`."""
    no_ids = tf.zeros([0], tf.int64)
    return table_variable.edit(table.rows, EditKind.CLEAR, no_ids, _no_rows())


def size(table: AccessibleTable) -> tf.Tensor:
    """As `EmbeddingTable.size`."""
    return table_variable.size(table.rows)


def contains(table: AccessibleTable, ids: TensorLike) -> tf.Tensor:
    """As `EmbeddingTable.contains`."""
    found, _ = table_variable.find(table.rows, _ids(table, ids), values=False)
    return found


def fetch(table: AccessibleTable, ids: TensorLike, default: TensorLike | None) -> tf.Tensor:
    """As `EmbeddingTable.fetch` with ids."""
    found, rows = table_variable.find(table.rows, _ids(table, ids), values=True)
    if default is None:
        return rows
    default = tf.convert_to_tensor(default, tf.float32)
    return tf.where(found[..., tf.newaxis], rows, default)


def _ids(table: AccessibleTable, ids: TensorLike) -> tf.Tensor:
    flat = id_kinds.as_int64(tf.convert_to_tensor(ids))
    return id_kinds.checked(flat, table.input_dim, table.name)


def _no_rows() -> tf.Tensor:
    return tf.zeros([0], tf.float32)
