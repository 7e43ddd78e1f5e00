"""A table whose rows are on servers of their own, for models that are served."""

from __future__ import annotations

import tensorflow as tf

from tfdist.ops import library


class ServedTable(tf.Module):
    """Looks up rows on the servers to which a process binds the saved model.

    Args:
      name: the table's name on the servers.
      width: the floats of a row.
      client: the variable of one int64 number to which the process assigns its connections.
    """

    def __init__(self, name: str, width: int, client: tf.Variable) -> None:
        super().__init__()
        self._table = name
        self._width = width
        self._client = client

    def lookup(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the rows of int64 ids of any shape, float32 of that shape and the width."""
        return library.graph_ops().tfdist_served_lookup(
            client=self._client, ids=ids, table=self._table, width=self._width
        )
