"""Layers for Keras 3; for tf_keras see `tfdist.layers.legacy`."""

from tfdist.embedding.layer import Embedding, FieldWiseEmbedding

__all__ = ["Embedding", "FieldWiseEmbedding"]
