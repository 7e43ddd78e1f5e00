"""How often Keras has told a `PyDataset` of the beginnings and ends of epochs."""

from __future__ import annotations

from tfdist.internals.keras_3 import PyDatasetAdapter
from tfdist.keras.drawing import note_call
from tfdist.keras.registry import hooks


@hooks(PyDatasetAdapter, "on_epoch_begin")
def count_beginnings(original, self):
    """Counts the calls of a `PyDataset`, which another process can make, too."""
    original(self)
    note_call(self.py_dataset, "on_epoch_begin")


@hooks(PyDatasetAdapter, "on_epoch_end")
def count_ends(original, self):
    """Counts the calls of a `PyDataset`, which another process can make, too."""
    original(self)
    note_call(self.py_dataset, "on_epoch_end")
