"""A task of an Estimator's job; also a script for `tfdist run`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from support.estimator import estimators
from tfdist import estimator

v1 = tf.compat.v1


def receive_features():
    """The inputs of an exported model."""
    features = {"x": v1.placeholder(tf.float32, [None, 6], name="x")}
    return estimator.export.ServingInputReceiver(features, features)


def train_and_evaluate(
    directory: Path,
    kind: str,
    max_steps: int | None = None,
    batches: Sequence[int] | None = None,
    throttle: float = 0.0,
    model: str = "model_fn",
) -> dict[str, Any]:
    """Runs this task of the job.

    Args:
      directory: of the model.
      kind: one of `estimators.STRATEGIES`, or "none".
      max_steps: of all workers together.
      batches: of each worker; else the input has no end.
      throttle: seconds from one evaluation to the next.
      model: one of `estimators.MODELS`.

    Returns:
      "task", and how many "steps" it has trained.
    """
    strategy = None if kind == "none" else estimators.STRATEGIES[kind]()
    config = estimator.RunConfig(
        str(directory),
        train_distribute=strategy,
        save_checkpoints_steps=10,
        save_summary_steps=5,
        keep_checkpoint_max=None,
    )
    steps = estimators.Steps(slowness=0.02)  # so that all train
    exporters = [
        estimator.FinalExporter("final", receive_features),
        estimator.LatestExporter("latest", receive_features),
        estimator.BestExporter("best", receive_features),
    ]
    estimator.train_and_evaluate(
        estimators.MODELS[model](config),
        estimator.TrainSpec(estimators.input_fn(batches=batches), max_steps, hooks=[steps]),
        estimator.EvalSpec(
            estimators.input_fn(batches=4),
            steps=None,
            exporters=exporters,
            start_delay_secs=0,
            throttle_secs=throttle,
        ),
    )
    return {"task": f"{config.task_type} {config.task_id}", "steps": steps.count}


def main() -> None:
    """Runs the task with the command line's arguments, and prints its result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("kind", choices=[*estimators.STRATEGIES, "none"])
    parser.add_argument("--max-steps", type=int)
    parser.add_argument("--batches", type=int, nargs="+")
    parser.add_argument("--model", choices=estimators.MODELS, default="model_fn")
    arguments = parser.parse_args()
    print(json.dumps(train_and_evaluate(**vars(arguments))), flush=True)


if __name__ == "__main__":
    main()
