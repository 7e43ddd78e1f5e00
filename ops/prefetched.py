"""Rows of the next batch, asked for while this one is trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.ops.parameter_client import ParameterClient

# TensorFlow's own buffer: the batch that waits to be asked for, and the one that was.
_BUFFER = 2


def prefetched(
    dataset: tf.data.Dataset,
    asked_by: Callable[..., tuple[ParameterClient, Sequence[Any], Sequence[tf.Tensor]]],
    training: bool = True,
) -> tf.data.Dataset:
    """Returns the dataset, which asks for the rows of each batch one step before it is used.

    Rows so asked for lack the updates of up to one step. A lookup of other ids, or a later one,
    asks for its own: prefetching changes when rows travel, and never which.

    Args:
      dataset: of batches, the outermost one that has ids.
      asked_by: called with a batch's components, returns the connections to the servers, tables (as
        of `ParameterClient.lookup`), and for each of them int64 ids, exactly as they will be looked
        up. It is traced.
      training: as of the lookups.
    """

    def ask(*batch):
        client, tables, ids = asked_by(*batch)
        client.prefetch(tables, ids, training)
        return batch[0] if len(batch) == 1 else batch

    options = tf.data.Options()
    options.deterministic = True
    return dataset.map(ask).with_options(options).prefetch(_BUFFER)
