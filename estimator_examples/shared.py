"""What several examples need, apart from what they show.

How images are read, and arguments and devices: as in the Keras examples, from whose folder they
are taken.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfdist
from tfdist import estimator

sys.path.append(str(Path(__file__).resolve().parents[1] / "keras_examples"))
fashion_mnist = importlib.import_module("data")
movielens_data = importlib.import_module("movielens_data")
_common = importlib.import_module("common")
SEED, local_devices, positive = _common.SEED, _common.local_devices, _common.positive


def batches(
    features: dict[str, np.ndarray],
    labels: np.ndarray,
    size: int,
    training: bool,
    context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Batches for an `input_fn`, each a dict of features and the labels.

    Args:
      features: by name, arrays of equally many rows.
      labels: one for each row.
      size: rows in a batch, which is one replica's.
      training: whether to shuffle, and to begin again at the end.
      context: says which part of the rows is this worker's; `None` means that all are.
    """
    columns = [*features.values(), labels]
    rows = tf.data.Dataset.range(len(labels))
    if context is not None:
        rows = rows.shard(context.num_input_pipelines, context.input_pipeline_id)
    if training:
        rows = rows.shuffle(len(labels), seed=SEED).repeat()

    def pick(row: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        # As constants of the graph the arrays would be written with every checkpoint.
        picked = tf.numpy_function(
            lambda row: [column[row] for column in columns],
            [row],
            [tf.as_dtype(column.dtype) for column in columns],
        )
        for tensor, column in zip(picked, columns, strict=True):
            tensor.set_shape((None, *column.shape[1:]))
        *values, label = picked
        return dict(zip(features, values, strict=True)), label

    return rows.batch(size).map(pick).prefetch(2)


class PrintResults(estimator.Exporter):
    """Prints what each evaluation found. Exporters are called after each one.

    Args:
      metrics: names of what to print.
    """

    name = "printed"

    def __init__(self, *metrics: str) -> None:
        self._metrics = metrics

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: dict[str, Any],
        is_the_final_export: bool,
    ) -> None:
        """Prints; exports nothing."""
        found = ", ".join(f"{name} {eval_result[name]:.4f}" for name in self._metrics)
        print(f"step {eval_result['global_step']}: {found}", flush=True)


def evaluates(cluster: tfdist.Cluster) -> bool:
    """Whether this task evaluates and exports: the evaluator, or whoever trains alone."""
    return cluster.is_local or cluster.task_type == "evaluator"


def newest_export(model_dir: Path, exporter: str) -> Path:
    """The folder of the last SavedModel that an exporter of this name has written."""
    return max((model_dir / "export" / exporter).glob("[0-9]*"))
