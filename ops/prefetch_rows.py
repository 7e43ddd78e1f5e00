"""Rows of the next batch, asked for while this one is trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdist.ops.parameter_client import ParameterClient

# TensorFlow's own buffer: the batch that waits to be asked for, and the one that was.
_BUFFER = 2


def prefetch_rows(
    dataset: tf.data.Dataset,
    client: ParameterClient,
    ids_of: Callable[..., Mapping[Any, tf.Tensor | Sequence[tf.Tensor]]],
    training: bool = True,
) -> tf.data.Dataset:
    """Returns the dataset, which asks for the rows of each batch one step before it is used.

    Rows so asked for lack the updates of up to one step. A lookup of other ids, or a later one,
    asks for its own: prefetching changes when rows travel, and never which.

    Args:
      dataset: of batches, the outermost one that has ids.
      client: the connections to the servers.
      ids_of: called with a batch's components; returns, by table (as of `ParameterClient.lookup`),
        the int64 ids exactly as they will be looked up, or a list of such tensors. It is traced.
      training: as of the lookups.
    """

    def ask(*batch):
        tables, ids = [], []
        for table, asked in ids_of(*batch).items():
            each = asked if isinstance(asked, (list, tuple)) else [asked]
            tables += [table] * len(each)
            ids += each
        if ids:
            client.prefetch(tables, ids, training)
        return batch[0] if len(batch) == 1 else batch

    options = tf.data.Options()
    options.deterministic = True
    return dataset.map(ask).with_options(options).prefetch(_BUFFER)
