"""Looking up rows in a program of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.embedding import ids as id_kinds
from tfdist.embedding.table import EmbeddingTable
from tfdist.strategies import table_variable


def embedding_lookup(
    tables: EmbeddingTable | Sequence[EmbeddingTable],
    ids: Any,
    weights: Any = None,
    combiner: str | None = None,
    training: bool = True,
) -> Any:
    """Looks up rows of tables that are on the parameter servers.

    In a step (`strategy.run`) their gradients go to `table.rows`, which an optimizer takes like any
    other variable. Rows of several tables travel in one message for each server.

    Args:
      tables: an `EmbeddingTable`, or several.
      ids: integers or strings, which are hashed: dense of any shape, ragged, or sparse of two
        dimensions; a list of as many for several tables.
      weights: like `ids`; rows are multiplied with them.
      combiner: `None`, or "sum", "mean" or "sqrtn" over the last dimension of the ids; sparse ids
        need one.
      training: ids count as seen, and get rows; without, an id that has no row gives what it would
        begin as.

    Returns:
      float32 of the shape of `ids` and the table's width, without the last dimension of `ids` if
      there is a combiner; a list of such for several tables.

    Raises:
      ValueError: ids and tables, or ids and weights, do not fit together, or a table was made
        where no parameter servers are.
      TypeError: ids are neither integers nor strings.
      tf.errors.InvalidArgumentError: an id is not below the table's `input_dim`.

    Example:

    ```python
    with strategy.scope():
        users = tfdist.EmbeddingTable("users", output_dim=16)
    rows = tfdist.ops.embedding_lookup(users, tf.constant(["ann", "bob"]))
    ```
    """
    if combiner not in id_kinds.COMBINERS:
        raise ValueError(
            f"embedding_lookup: expected combiner to be one of {id_kinds.COMBINERS}, received "
            f"{combiner!r}"
        )
    if isinstance(tables, EmbeddingTable):
        return _lookup([tables], [ids], [weights], combiner, training)[0]
    weights = [None] * len(tables) if weights is None else weights
    if not len(tables) == len(ids) == len(weights):
        raise ValueError(
            f"embedding_lookup: expected ids and weights for each of {len(tables)} tables, "
            f"received {len(ids)} and {len(weights)}"
        )
    return _lookup(tables, ids, weights, combiner, training)


def _lookup(tables, ids, weights, combiner, training) -> list:
    ids = [i if _is_tensor(i) else tf.convert_to_tensor(i) for i in ids]
    rows = rows_of(tables, [id_kinds.flat_values(i) for i in ids], training)
    return [
        id_kinds.combined(i, r, w, combiner) for i, r, w in zip(ids, rows, weights, strict=True)
    ]


def rows_of(
    tables: Sequence[EmbeddingTable], ids: Sequence[tf.Tensor], training: bool
) -> list[tf.Tensor]:
    """Returns the tables' rows of int64 ids of any shape, in one message for each server."""
    ids = [_checked(table, of_table) for table, of_table in zip(tables, ids, strict=True)]
    if tables[0].static is not None:
        return [table.static.lookup(each) for table, each in zip(tables, ids, strict=True)]
    return table_variable.lookup([table.rows for table in tables], ids, training)


def _checked(table: EmbeddingTable, ids: tf.Tensor) -> tf.Tensor:
    if table.input_dim is None:
        return ids
    flat = tf.reshape(ids, [-1])
    wrong = tf.boolean_mask(flat, (flat < 0) | (flat >= table.input_dim))
    message = f"embedding table {table.name!r}: expected ids from 0 to {table.input_dim - 1}"
    fits = tf.debugging.Assert(tf.size(wrong) == 0, [message, "received", wrong])
    with tf.control_dependencies([fits]):
        return tf.identity(ids)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, tf.RaggedTensor | tf.SparseTensor) or tf.is_tensor(value)
