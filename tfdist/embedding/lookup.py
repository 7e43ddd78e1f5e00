"""Lookups of rows in custom programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist._types import AnyTensor
from tfdist.embedding import ids as id_kinds
from tfdist.embedding.table import EmbeddingTable
from tfdist.strategies._variables import table_variable


def embedding_lookup(
    tables: EmbeddingTable | Sequence[EmbeddingTable],
    ids: AnyTensor | Sequence[AnyTensor],
    weights: AnyTensor | Sequence[AnyTensor | None] | None = None,
    combiner: str | None = None,
    training: bool = True,
    *,
    max_norm: float | None = None,
) -> Any:
    """Looks up rows of tables that are on the parameter servers, or on the workers.

    In a step (`strategy.run`) the gradients go to `table.rows`, which an optimizer takes like any
    other variable. Each server receives one message for all tables.

    Args:
      tables: an `EmbeddingTable`, or several.
      ids: integers or strings, which are hashed: dense of any shape, ragged, or sparse of two
        dimensions or more; for several tables a list with as many.
      weights: like `ids`: the factors of the rows.
      combiner: `None`, or "sum", "mean" or "sqrtn" over the last dimension of the ids; sparse ids
        need one.
      training: whether ids count as seen, and get rows. Without, an id without a row gets its
        initial values.
      max_norm: rows with a larger Euclidean norm are scaled to this norm before they are weighted
        and combined, as in `tf.nn.embedding_lookup`; the servers' rows do not change.

    Returns:
      float32 of the shape of `ids` and the table's width, without the last dimension of `ids` if
      there is a combiner; for several tables a list.

    Raises:
      ValueError: ids and tables, or ids and weights, do not match, or a table was made without
        parameter servers.
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
    check_max_norm("embedding_lookup", max_norm)
    if isinstance(tables, EmbeddingTable):
        return _lookup([tables], [ids], [weights], combiner, training, max_norm)[0]
    weights = [None] * len(tables) if weights is None else weights
    if not len(tables) == len(ids) == len(weights):
        raise ValueError(
            f"embedding_lookup: expected ids and weights for each of {len(tables)} tables, "
            f"received {len(ids)} and {len(weights)}"
        )
    return _lookup(tables, ids, weights, combiner, training, max_norm)


def safe_embedding_lookup_sparse(
    table: EmbeddingTable,
    ids: tf.SparseTensor | tf.RaggedTensor,
    weights: AnyTensor | None = None,
    combiner: str = "mean",
    default_id: int | str | None = None,
    training: bool = True,
    *,
    max_norm: float | None = None,
) -> tf.Tensor:
    """Looks up and combines rows of sparse ids, some of which may be missing or invalid.

    Like `tf.nn.safe_embedding_lookup_sparse`, it removes ids whose weight is not above 0 (with the
    combiners "mean" and "sqrtn"), and negative ids if the table has an `input_dim`; without one
    they are valid. An example without ids then gets the row of `default_id`, with the weight 1.

    Args:
      table: an `EmbeddingTable`.
      ids: sparse of two dimensions or more, or ragged of two.
      weights: like `ids`, or `None` for 1.
      combiner: "mean", "sqrtn" or "sum" over the last dimension of the ids.
      default_id: an id; `None`: an example without ids gives zeros.
      training: as for `embedding_lookup`.
      max_norm: as for `embedding_lookup`.

    Returns:
      float32 of the shape of `ids` without its last dimension, and the table's width.

    Raises:
      Exception: as for `embedding_lookup`.
    """
    if combiner not in id_kinds.COMBINERS[1:]:
        raise ValueError(
            f"safe_embedding_lookup_sparse: expected combiner to be one of "
            f"{id_kinds.COMBINERS[1:]}, received {combiner!r}"
        )
    if not isinstance(ids, tf.RaggedTensor | tf.SparseTensor):
        raise ValueError(
            "safe_embedding_lookup_sparse: expected sparse or ragged ids, received a "
            f"{type(ids).__name__}"
        )
    ids, weights = id_kinds.safe(ids, weights, combiner, default_id, table.input_dim is not None)
    return embedding_lookup(table, ids, weights, combiner, training, max_norm=max_norm)


def check_max_norm(who: str, max_norm: Any) -> None:
    """Raises ValueError unless `max_norm` is `None` or a positive number."""
    is_number = isinstance(max_norm, int | float) and not isinstance(max_norm, bool)
    if max_norm is not None and not (is_number and max_norm > 0):
        raise ValueError(
            f"{who}: expected max_norm to be a positive number, or None, received {max_norm!r}"
        )


def _lookup(
    tables: Sequence[EmbeddingTable],
    ids: Sequence[AnyTensor],
    weights: Sequence[AnyTensor | None],
    combiner: str | None,
    training: bool,
    max_norm: float | None,
) -> list:
    ids = [i if _is_tensor(i) else tf.convert_to_tensor(i) for i in ids]
    rows = rows_of(tables, [id_kinds.flat_values(i) for i in ids], training)
    rows = [id_kinds.clipped(each, max_norm) for each in rows]
    return [
        id_kinds.combined(i, r, w, combiner) for i, r, w in zip(ids, rows, weights, strict=True)
    ]


def rows_of(
    tables: Sequence[EmbeddingTable], ids: Sequence[tf.Tensor], training: bool
) -> list[tf.Tensor]:
    """Returns the tables' rows of int64 ids of any shape, with one message per server."""
    ids = [
        id_kinds.checked(each, table.input_dim, table.name)
        for table, each in zip(tables, ids, strict=True)
    ]
    if tables[0].static is not None:
        return [table.static.lookup(each) for table, each in zip(tables, ids, strict=True)]
    return table_variable.lookup([table.rows for table in tables], ids, training)


def _is_tensor(value: object) -> bool:
    return isinstance(value, tf.RaggedTensor | tf.SparseTensor) or tf.is_tensor(value)
