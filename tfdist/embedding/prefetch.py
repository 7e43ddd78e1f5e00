"""Looking up the rows of the next batch while this one is trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdist import ops
from tfdist.embedding import ids as id_kinds
from tfdist.embedding.table import EmbeddingTable


def prefetch_rows(
    dataset: tf.data.Dataset, ids_of: Callable[..., Mapping[EmbeddingTable, Any]]
) -> tf.data.Dataset:
    """Returns the dataset, which asks for the rows of each batch one step before it is used.

    For training in a loop of one's own; in `fit`, `Embedding(prefetch=True)` does it. Rows so asked
    for lack this worker's last step, and what others have done meanwhile. A lookup of other ids, or
    a later one, asks anew: prefetching changes when rows travel, and never which.

    Let it be the last that is done with a dataset before `strategy.experimental_distribute_dataset`
    deals it out, which then takes care that no worker asks for another's batches.

    Args:
      dataset: of the batches that a worker trains on, one for each step.
      ids_of: called with a batch's components; returns, by table, the ids as they will be given to
        `embedding_lookup`, or a list of such for several lookups. It is traced.

    Example:

    ```python
    dataset = tfdist.ops.prefetch_rows(dataset, lambda ids, labels: {users: ids})
    ```
    """

    def asked_by(*batch: Any) -> tuple[ops.ParameterClient, list, list]:
        pairs = [
            (table.rows, id_kinds.flat_values(each))
            for table, ids in ids_of(*batch).items()
            for each in (ids if isinstance(ids, Sequence) else [ids])
        ]
        return pairs[0][0].parameters.client, [rows for rows, _ in pairs], [i for _, i in pairs]

    return ops.prefetched(dataset, asked_by)
