"""Elastic training: the steps of tf_keras survive the loss of workers; see `functions`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import tensorflow as tf
import tf_keras

from tfdist._types import KerasModel, Nested
from tfdist.elastic.job import ElasticJob

# Functions of tfdist are not converted, and without this nothing that they call would be.
from tfdist.internals.tensorflow import ag_ctx
from tfdist.keras.elastic_steps import ElasticStep, execution, predicted
from tfdist.keras.registry import hooks
from tfdist.keras.session.positions import positions_of
from tfdist.keras.workers import elastic_job_of, local_updates_of


@hooks(tf_keras.Model, "make_train_function")
def make_units_of_work(original, self, force=False):
    """In elastic training a step is done by all members, or leaves no trace."""
    job = elastic_job_of(self.distribute_strategy)
    if job is None:
        return original(self, force)
    if self.train_function is None or force:
        # It is weighted by `row_weights`: the hook of `tf_keras_training` is around this one.
        step = _step(self, job, "train_step", self._train_counter, admits=True)

        def where() -> str:
            positions = positions_of(self)
            return "a step" if positions is None else positions.describe()

        self.train_function = execution(step, "train_step", _steps_of(self), where)
    return self.train_function


@hooks(tf_keras.Model, "make_test_function")
def evaluate_together(original, self, force=False):
    """In elastic training a step of `evaluate` is done by all members, or leaves no trace."""
    job = elastic_job_of(self.distribute_strategy)
    if job is None:
        return original(self, force)
    if self.test_function is None or force:
        step = _step(self, job, "test_step", self._test_counter)
        self.test_function = execution(step, "test_step", _steps_of(self), lambda: "a step")
    return self.test_function


@hooks(tf_keras.Model, "make_predict_function")
def predict_together(original, self, force=False):
    """In elastic training members predict shares of a batch, and gather them in the same step."""
    job = elastic_job_of(self.distribute_strategy)
    if job is None:
        return original(self, force)
    if self.predict_function is None or force:
        step = _step(self, job, "predict_step", self._predict_counter, gathers=True)
        steps = _steps_of(self)

        def function(iterator: Iterator) -> Nested:
            batches = list(itertools.islice(iterator, steps()))
            if not batches:
                raise StopIteration
            return predicted(step, batches)

        self.predict_function = function
    return self.predict_function


def _step(
    model: KerasModel, job: ElasticJob, name: str, counter: tf.Variable, **options: bool
) -> ElasticStep:
    """Returns a step of a model.

    Args:
      model: the model.
      job: the members.
      name: of the step, which is a method of the model.
      counter: counts it, as tf_keras does.
      **options: of `ElasticStep`.

    Raises:
      ValueError: the model is compiled in a way that an elastic job cannot train.
    """
    if local_updates_of(model.distribute_strategy) is not None:
        raise ValueError(
            f"elastic training of {model.name!r}: expected a model of Keras 3 with "
            "LocalUpdateStrategy, received one of tf_keras"
        )
    if model.jit_compile:
        raise ValueError(
            f"elastic training of {model.name!r}: expected jit_compile=False, received True: XLA "
            "compiles no collective of tfdist"
        )
    if model.autotune_steps_per_execution:
        raise ValueError(
            f"elastic training of {model.name!r}: expected a number as steps_per_execution, "
            "received 'auto': each worker would find another number"
        )
    adds = model.distribute_reduction_method in ("auto", "sum")
    # AutoGraph converts what layers of the user's do.
    converting = ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED)
    step = tf.__internal__.autograph.tf_convert(getattr(model, name), converting)

    def run(data: Nested) -> Nested:
        outputs = step(data)
        counter.assign_add(1, read_value=False)
        return outputs

    return ElasticStep(model, job, name, run, adds_numbers=adds, **options)


def _steps_of(model: KerasModel) -> Callable[[], int]:
    """Returns a function that tells the number of steps of the next execution."""

    def steps() -> int:
        variable = model._steps_per_execution
        return 1 if variable is None else int(variable.numpy())

    return steps
