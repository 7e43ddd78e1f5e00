"""Lookups of the next batch's rows during the current step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from tfdist._types import AnyTensor, Nested
from tfdist.embedding import ids as id_kinds
from tfdist.embedding.table import EmbeddingTable
from tfdist.ops.ps.client import ParameterClient
from tfdist.ops.ps.prefetched import prefetched


def prefetch_rows(
    dataset: tf.data.Dataset,
    ids_of: Callable[..., Mapping[EmbeddingTable, AnyTensor | Sequence[AnyTensor]]],
) -> tf.data.Dataset:
    """Returns a dataset that looks up the rows of each batch one step before its use.

    It is meant for custom training loops; in `fit`, use `Embedding(prefetch=True)`. Prefetched rows
    lack this worker's last step and the other workers' steps since the lookup. A lookup of other
    ids, or a later one, fetches its rows again: prefetching changes when rows are sent, not which.

    Apply it last, directly before `strategy.experimental_distribute_dataset`, which then ensures
    that no worker prefetches the rows of another worker's batches.

    Args:
      dataset: the batches that a worker trains on, one for each step.
      ids_of: a function of a batch's components, which is traced. It returns, by table, the ids
        that `embedding_lookup` will get, or a list of them for several lookups.

    Example:

    ```python
    dataset = tfdist.ops.prefetch_rows(dataset, lambda ids, labels: {users: ids})
    ```
    """

    def lookups_of(*batch: Nested) -> tuple[ParameterClient, list, list]:
        pairs = [
            (table.rows, id_kinds.flat_values(each))
            for table, ids in ids_of(*batch).items()
            for each in (ids if isinstance(ids, Sequence) else [ids])
        ]
        return pairs[0][0].parameters.client, [rows for rows, _ in pairs], [i for _, i in pairs]

    return prefetched(dataset, lookups_of)
