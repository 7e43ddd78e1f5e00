"""Elastic training: the steps of `fit`, `evaluate` and `predict` survive the loss of workers.

See `tfdist.elastic.job`. Each step is a unit of work of all members.
"""

from __future__ import annotations

import functools

from tfdist.internals.keras_3_trainer import TensorFlowTrainer
from tfdist.keras.elastic_local_steps import LocalElasticStep
from tfdist.keras.elastic_steps import ElasticStep, execution, predicted
from tfdist.keras.hooks.row_weights import is_weighted
from tfdist.keras.registry import hooks
from tfdist.keras.session.positions import positions_of
from tfdist.keras.workers import elastic_job_of, local_updates_of


@hooks(TensorFlowTrainer, "_make_function")
def make_units_of_work(original, self, step_function):
    """In elastic training a step is done by all members, or leaves no trace."""
    job = elastic_job_of(self.distribute_strategy)
    if job is None:
        return original(self, step_function)
    # Training steps are weighted by `row_weights`, whose hook is around this one.
    trains = is_weighted(step_function)
    name = "train_step" if trains else "test_step"
    step: ElasticStep
    if trains and local_updates_of(self.distribute_strategy) is not None:
        step = LocalElasticStep(self, job, name, step_function)
    else:
        step = ElasticStep(self, job, name, step_function, admits=trains)

    def where() -> str:
        positions = positions_of(self) if trains else None
        return "a step" if positions is None else positions.describe()

    return execution(step, name, lambda: self.steps_per_execution, where)


@hooks(TensorFlowTrainer, "make_predict_function")
def predict_together(original, self, force=False):
    """In elastic training members predict shares of a batch, and gather them in the same step."""
    job = elastic_job_of(self.distribute_strategy)
    if job is None:
        return original(self, force)
    if self.predict_function is None or force:
        step = ElasticStep(self, job, "predict_step", self.predict_step, gathers=True)
        self.predict_function = functools.partial(predicted, step)
    return self.predict_function
