"""Layers for Keras 3; for tf_keras see `tfdist.layers.legacy`."""

from tfdist.layers.embedding import Embedding, FieldWiseEmbedding

__all__ = ["Embedding", "FieldWiseEmbedding"]
