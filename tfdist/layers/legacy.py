"""The embedding layers for tf_keras."""

from tfdist.embedding.legacy_layer import Embedding, FieldWiseEmbedding

__all__ = ["Embedding", "FieldWiseEmbedding"]
