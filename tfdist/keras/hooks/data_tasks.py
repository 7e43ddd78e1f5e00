"""Datasets of `tfdist.data`: the batches of data tasks are counted."""

from __future__ import annotations

import tensorflow as tf

from tfdist.data.pipeline import tracked
from tfdist.internals.keras_3 import TFDatasetAdapter
from tfdist.keras.registry import hooks


@hooks(TFDatasetAdapter, "__init__")
def count_records(original, self, dataset, *args, **kwargs):
    """The batches of data tasks are counted, so that a step's records can be committed."""
    if isinstance(dataset, tf.data.Dataset):
        dataset = tracked(dataset)
    original(self, dataset, *args, **kwargs)
