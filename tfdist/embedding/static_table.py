"""A constant copy of a table, for models that run without parameter servers."""

from __future__ import annotations

import os

import numpy as np
import tensorflow as tf

from tfdist.embedding.initial_rows import initial_rows
from tfdist.ops.ps.table_config import RowInitializer


class StaticTable(tf.Module):
    """Constant rows by id, in a hash table and a variable of TensorFlow.

    Args:
      ids: int64[n], each once.
      rows: float32[n, width].
      initializer: gives the rows of other ids.
      folder: the directory for files, which must exist until the model is saved.
    """

    def __init__(
        self, ids: np.ndarray, rows: np.ndarray, initializer: RowInitializer, folder: str
    ) -> None:
        super().__init__()
        self._width = rows.shape[1]
        self._initializer = initializer
        self._index = None
        if len(ids) == 0:
            return
        # A file, because a graph holds at most 2 GB. The line number is the row's index.
        path = os.path.join(folder, "ids.txt")
        np.savetxt(path, ids, fmt="%d")
        self._index = tf.lookup.StaticHashTable(
            tf.lookup.TextFileInitializer(
                path, tf.int64, 0, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
            ),
            default_value=-1,
        )
        with tf.device("/device:CPU:0"):
            self._rows = _variable(rows, folder)

    def lookup(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the rows of int64 ids of any shape, float32 of that shape and the width."""
        flat = tf.reshape(ids, [-1])
        rows = initial_rows(self._initializer, flat, self._width)
        if self._index is not None:
            indices = self._index.lookup(flat)
            known = tf.gather(self._rows, tf.maximum(indices, 0))
            rows = tf.where(indices[:, tf.newaxis] >= 0, known, rows)
        return tf.reshape(rows, tf.concat([tf.shape(ids), [self._width]], 0))


def _variable(rows: np.ndarray, folder: str) -> tf.Variable:
    if tf.executing_eagerly():
        return tf.Variable(rows, trainable=False, name="rows")
    # A TensorFlow 1 SavedModel takes its variables from a checkpoint, which lacks this one.
    path = os.path.join(folder, "rows.bin")
    rows.tofile(path)
    asset = tf.constant(path, name="rows_file")
    tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.ASSET_FILEPATHS, asset)
    content = tf.io.decode_raw(tf.io.read_file(asset), tf.float32)
    return tf.compat.v1.Variable(
        tf.reshape(content, rows.shape),
        trainable=False,
        collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
        name="rows",
        use_resource=True,
    )
