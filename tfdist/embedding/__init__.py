"""Embedding tables whose rows are stored by one process each: parameter servers, or workers.

`tfdist.layers.Embedding` is the Keras layer. This package has its parts: the table, the initial
values of rows (`initializers`), the optimizers of rows, and lookups of ids of all kinds.
"""

from tfdist.embedding.export import export_small, tables_of
from tfdist.embedding.fields import field_ids
from tfdist.embedding.layer_base import RemoteEmbedding
from tfdist.embedding.lookup import embedding_lookup, safe_embedding_lookup_sparse
from tfdist.embedding.optimizers import (
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Ftrl,
    GroupFtrl,
    Lamb,
    Lion,
    Nadam,
    RMSprop,
    RowOptimizer,
    RowWiseAdagrad,
)
from tfdist.embedding.prefetch import prefetch_rows
from tfdist.embedding.table import EmbeddingTable
from tfdist.keras.embeddings import Embeddings, provide

__all__ = [
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "EmbeddingTable",
    "Ftrl",
    "GroupFtrl",
    "Lamb",
    "Lion",
    "Nadam",
    "RMSprop",
    "RowOptimizer",
    "RowWiseAdagrad",
    "embedding_lookup",
    "field_ids",
    "prefetch_rows",
    "safe_embedding_lookup_sparse",
]

provide(Embeddings(RemoteEmbedding, tables_of, export_small, prefetch_rows))
