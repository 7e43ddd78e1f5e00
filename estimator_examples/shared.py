"""Arguments, batches and printing of several examples.

Modules that the Keras examples also need, as for Fashion-MNIST, are imported from their folder.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfdist
from tfdist import estimator

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "keras_examples"))
fashion_mnist = importlib.import_module("data")
movielens_data = importlib.import_module("movielens_data")
_common = importlib.import_module("common")
SEED, area_under_curve, local_devices, positive = (
    _common.SEED,
    _common.area_under_curve,
    _common.local_devices,
    _common.positive,
)


def training_parser(description: str, steps: int, batch_size: int) -> argparse.ArgumentParser:
    """Makes a parser of the arguments of all examples.

    Args:
      description: the example's docstring; its first line is shown.
      steps: default of `--steps`.
      batch_size: default of `--batch-size`.
    """
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument(
        "--model-dir",
        type=Path,
        required=True,
        help="folder of checkpoints, summaries and exported models, the same for all tasks",
    )
    parser.add_argument(
        "--steps", type=positive, default=steps, help="steps of all workers together"
    )
    parser.add_argument(
        "--batch-size", type=positive, default=batch_size, help="examples a step, of each replica"
    )
    return parser


def batches(
    features: dict[str, np.ndarray],
    labels: np.ndarray,
    size: int,
    training: bool,
    context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Batches for an `input_fn`: features by name, and labels.

    Args:
      features: arrays, with a row for each label.
      labels: shape (n,).
      size: rows in a batch, which is one replica's.
      training: whether to shuffle and repeat.
      context: gives this worker's part of the rows; `None` means all rows.
    """
    columns = [*features.values(), labels]
    rows = tf.data.Dataset.range(len(labels))
    if context is not None:
        rows = rows.shard(context.num_input_pipelines, context.input_pipeline_id)
    if training:
        rows = rows.shuffle(len(labels), seed=SEED).repeat()

    def pick(row: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        # Constants of the graph would be written with each checkpoint.
        picked = tf.numpy_function(
            lambda row: [column[row] for column in columns],
            [row],
            [tf.as_dtype(column.dtype) for column in columns],
        )
        for tensor, column in zip(picked, columns, strict=True):
            tensor.set_shape((None, *column.shape[1:]))
        return dict(zip(features, picked, strict=False)), picked[-1]

    return rows.batch(size).map(pick).prefetch(2)


class PrintResults(estimator.Exporter):
    """Prints the results of each evaluation: exporters are called after it.

    Args:
      metrics: names of the metrics to print.
    """

    name = "print_results"

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
    """Whether this task evaluates and exports: the evaluator, or a task that trains alone."""
    return cluster.is_local or cluster.task_type == "evaluator"


def newest_export(model_dir: Path, exporter: str) -> Path:
    """The folder of the last SavedModel of the exporter of this name."""
    return max((model_dir / "export" / exporter).glob("[0-9]*"))
