"""The gradients of an embedding table that `gradient_accumulation_steps` adds up."""

from __future__ import annotations

import tensorflow as tf

from tfdist.internals.tensorflow import ResourceVariable
from tfdist.ps.row_gradients import unique_flat_rows


class RowAccumulator:
    """The rows and ids of several steps; replaces one of Keras's accumulators.

    Keras adds the gradient of the last step (`gradient + accumulator`), and then assigns zeros.
    """

    def __init__(self, table: tf.Variable) -> None:
        self._table = table
        self.shape, self.dtype = table.shape, table.dtype
        with tf.init_scope(), tf.device("/device:CPU:0"):
            # Not tf.Variable, which a strategy would replace by one of its own.
            self._ids = ResourceVariable(tf.zeros([0], tf.int64), shape=[None], trainable=False)
            self._rows = ResourceVariable(
                tf.zeros([0, table.width]), shape=[None, table.width], trainable=False
            )

    def append(self, gradient: tf.Tensor) -> None:
        """Adds the rows of the gradient that the optimizer works on."""
        ids, rows = self._with(gradient)
        self._ids.assign(ids)
        self._rows.assign(rows)

    def __radd__(self, gradient: tf.Tensor) -> tf.Tensor:
        ids, rows = self._with(gradient)
        self._table.gradient_ids.set(ids)
        return rows

    def assign(self, zeros: object) -> None:
        """Removes all rows."""
        self._ids.assign(tf.zeros([0], tf.int64))
        self._rows.assign(tf.zeros([0, self._table.width]))

    def _with(self, gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        ids = tf.concat([self._ids.read_value(), self._table.gradient_ids.get()], 0)
        rows = tf.concat([self._rows.read_value(), tf.cast(gradient, tf.float32)], 0)
        return unique_flat_rows(tf.IndexedSlices(rows, ids))
