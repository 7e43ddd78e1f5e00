"""Datasets that request the rows of the next batch while the current batch is trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist.ops.ps.client import ParameterClient
from tfdist.ops.ps.variable_handles import TableHandle

# TensorFlow's own buffer: the batch that waits for its request, and the requested one.
_BUFFER = 2


def prefetched(
    dataset: tf.data.Dataset,
    lookups_of: Callable[..., tuple[ParameterClient, Sequence[TableHandle], Sequence[tf.Tensor]]],
    training: bool = True,
) -> tf.data.Dataset:
    """Returns the dataset, which requests the rows of each batch one step before its use.

    Prefetched rows lack the updates of up to one step. A lookup of other ids, or a later lookup,
    sends its own request: prefetching changes when rows travel, but not which rows.

    Args:
      dataset: of batches; the outermost dataset that has ids.
      lookups_of: called with a batch's components; returns the connections to the servers, tables
        (as for `ParameterClient.lookup`), and for each table int64 ids, exactly as they will be
        looked up. It is traced.
      training: as in the lookups.
    """

    def request(*batch):
        client, tables, ids = lookups_of(*batch)
        client.tables.prefetch(tables, ids, training)
        # `map` unpacks a tuple, but passes a named tuple as one component.
        return batch if type(dataset.element_spec) is tuple else batch[0]

    options = tf.data.Options()
    options.deterministic = True
    requesting = dataset.map(request).with_options(options).prefetch(_BUFFER)
    requesting.unprefetched = dataset
    requesting.prefetch_like_this = lambda other: prefetched(other, lookups_of, training)
    return requesting


def before_asking(
    dataset: tf.data.Dataset, change: Callable[[tf.data.Dataset], tf.data.Dataset]
) -> tf.data.Dataset:
    """Changes the batches of a dataset before it requests the rows of any.

    Requested batches that never arrive would block later requests.

    Args:
      dataset: from `prefetched`, or another.
      change: from dataset to dataset.

    Raises:
      ValueError: the dataset was derived from the result of `prefetched`.
    """
    if hasattr(dataset, "unprefetched"):
        return dataset.prefetch_like_this(change(dataset.unprefetched))
    if _requests_rows(dataset):
        raise ValueError(
            "prefetch_rows: expected to be the last that is done with a dataset before a strategy "
            f"deals it out, received {dataset!r}, which was made from its result"
        )
    return change(dataset)


def _requests_rows(dataset: tf.data.Dataset) -> bool:
    return hasattr(dataset, "unprefetched") or any(map(_requests_rows, dataset._inputs()))
