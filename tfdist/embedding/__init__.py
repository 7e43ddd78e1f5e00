"""Embeddings whose tables live on the parameter servers alone.

`tfdist.layers.Embedding` is the Keras layer; here is what it is made of: the table, how its rows
begin (`initializers`) and change (the optimizers below), and how ids of all kinds become rows.
"""

from tfdist.embedding.lookup import embedding_lookup
from tfdist.embedding.optimizers import (
    SGD,
    Adagrad,
    Adam,
    Ftrl,
    GroupFtrl,
    RMSprop,
    RowOptimizer,
    RowWiseAdagrad,
)
from tfdist.embedding.prefetch import prefetch_rows
from tfdist.embedding.table import EmbeddingTable

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "EmbeddingTable",
    "Ftrl",
    "GroupFtrl",
    "RMSprop",
    "RowOptimizer",
    "RowWiseAdagrad",
    "embedding_lookup",
    "prefetch_rows",
]
