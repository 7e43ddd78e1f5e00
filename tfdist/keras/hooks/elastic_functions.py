"""Elastic training: the steps of `fit`, `evaluate` and `predict` survive the loss of workers.

See `tfdist.elastic.job`. Each step is a unit of work of all members.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

from tfdist.keras import training
from tfdist.keras.elastic_steps import ElasticStep
from tfdist.keras.hooks.row_weights import is_weighted
from tfdist.keras.registry import hooks
from tfdist.keras.workers import elastic_job_of


@hooks(TensorFlowTrainer, "_make_function")
def make_units_of_work(original, self, step_function):
    """In elastic training a step is done by all members, or leaves no trace."""
    job = elastic_job_of(self.distribute_strategy)
    if job is None:
        return original(self, step_function)
    if self.run_eagerly:
        raise ValueError(
            f"elastic training of {self.name!r}: expected run_eagerly=False, received True: only a "
            "compiled step leaves no trace when it fails"
        )
    # Training steps are weighted by `row_weights`, whose hook is around this one.
    trains = is_weighted(step_function)
    name = "train_step" if trains else "test_step"
    step = ElasticStep(self, job, name, step_function, admits=trains)

    def function(iterator: Any) -> Any:
        running = training.training_of(self) if trains else None
        where = "a step" if running is None else running.describe()
        logs = None
        for number in range(self.steps_per_execution):
            try:
                batch = next(iterator)
            except StopIteration:
                if logs is None:
                    raise
                break
            # Within several steps of one execution a newcomer could not begin.
            logs = step.run(batch, f"{name}, {where}", is_first=number == 0)
        return logs

    marked: Any = function
    marked.elastic_step = step
    return marked


@hooks(TensorFlowTrainer, "make_predict_function")
def predict_together(original, self, force=False):
    """In elastic training members predict shares of a batch, and gather them in the same step."""
    job = elastic_job_of(self.distribute_strategy)
    if job is None:
        return original(self, force)
    if self.predict_function is None or force:
        step = ElasticStep(self, job, "predict_step", self.predict_step, gathers=True)

        def function(data: Any) -> Any:
            parts = [step.run(batch, "predict_step") for batch in data]
            return tf.nest.map_structure(lambda *rows: tf.concat(rows, 0), *parts)

        self.predict_function = function
    return self.predict_function
