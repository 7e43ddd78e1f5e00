"""Rows of the next batch, asked for while this one is trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.ops.ps.parameter_client import ParameterClient

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
        # One component, or a tuple of one, which may be a tuple itself. `map` takes named tuples
        # for one component.
        return batch if type(dataset.element_spec) is tuple else batch[0]

    options = tf.data.Options()
    options.deterministic = True
    asking = dataset.map(ask).with_options(options).prefetch(_BUFFER)
    asking.without_asking = dataset
    asking.ask_for = lambda other: prefetched(other, asked_by, training)
    return asking


def before_asking(
    dataset: tf.data.Dataset, change: Callable[[tf.data.Dataset], tf.data.Dataset]
) -> tf.data.Dataset:
    """Changes which batches a dataset has, before it asks for the rows of any.

    Batches that it asked for and did not get would keep it waiting.

    Args:
      dataset: from `prefetched`, or another.
      change: from dataset to dataset.

    Raises:
      ValueError: more was done with a dataset after `prefetched`.
    """
    if hasattr(dataset, "without_asking"):
        return dataset.ask_for(change(dataset.without_asking))
    if _asks(dataset):
        raise ValueError(
            "prefetch_rows: expected to be the last that is done with a dataset before a strategy "
            f"deals it out, received {dataset!r}, which was made of what it returned"
        )
    return change(dataset)


def _asks(dataset: tf.data.Dataset) -> bool:
    return hasattr(dataset, "without_asking") or any(map(_asks, dataset._inputs()))
