"""`prefetch=True` of embedding layers: in `fit`, rows are looked up a batch ahead."""

from __future__ import annotations

import logging
from collections.abc import Callable

import keras
import tensorflow as tf

from tfdist._types import KerasModel, Nested
from tfdist.keras.embeddings import provided

_log = logging.getLogger("tfdist")


def with_prefetch(model: KerasModel) -> Callable[[tf.data.Dataset], tf.data.Dataset] | None:
    """Returns a function that makes a model's training data look rows up ahead.

    Args:
      model: the model that `fit` trains.

    Returns:
      A function from dataset to dataset; `None` if no layer asks for it, or if the model does not
      say which of its inputs the layers get, which is logged.
    """
    embeddings = provided()
    if embeddings is None:
        return None
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, embeddings.layer)]
    layers = [layer for layer in layers if layer.prefetch and layer.trainable]
    if not layers:
        return None
    inputs = getattr(getattr(model, "_functional", model), "_inputs_struct", None)
    if inputs is None:
        _log.warning(
            "model %r looks no rows up ahead: prefetch=True needs a functional model, which "
            "shows the inputs of its embedding layers; in a loop of your own use "
            "tfdist.ops.prefetch_rows",
            model.name,
        )
        return None
    found = [(layer, node.input_tensors[0]) for layer in layers for node in layer._inbound_nodes]
    finder = keras.Model(inputs, {str(i): tensor for i, (_, tensor) in enumerate(found)})

    def ids_of(*batch: Nested) -> dict[object, list]:
        by_table: dict[object, list] = {}
        ids = finder(batch[0])
        for i, (layer, _) in enumerate(found):
            for table, of_table in layer.ids_by_table(ids[str(i)]):
                by_table.setdefault(table, []).append(of_table)
        return by_table

    return lambda dataset: embeddings.prefetch_rows(dataset, ids_of)
