"""Elastic training around the steps: the data, the beginning and the end, and the output.

Each member reads whole batches. Before any member calls what follows the steps of an epoch, all
have done all steps.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from keras.callbacks import CallbackList, History, ProgbarLogger
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer, TFEpochIterator

from tfdist import ops
from tfdist.data.order import order_of_each_process
from tfdist.elastic.job import ElasticJob, LeftBehindError, Unit
from tfdist.keras import training
from tfdist.keras.elastic_state import ElasticFit
from tfdist.keras.rank_zero import is_left_to_rank_0
from tfdist.keras.registry import hooks
from tfdist.keras.workers import elastic_job_of

_log = logging.getLogger("tfdist.elastic")
_Policy = tf.data.experimental.AutoShardPolicy


class WholeBatches:
    """Stands for the strategy where a Keras distributes its data: a step cuts whole batches."""

    @staticmethod
    def experimental_distribute_dataset(dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Returns the dataset, read one batch ahead."""
        policy = dataset.options().experimental_distribute.auto_shard_policy
        if policy not in (_Policy.AUTO, _Policy.DATA):
            raise ValueError(
                "elastic training: expected a dataset that all workers read whole (AutoShardPolicy "
                f"AUTO or DATA), received {_Policy(policy).name}"
            )
        reasons = order_of_each_process(dataset)
        if reasons:
            raise ValueError(
                "elastic training: expected a dataset that all workers read in the same order, of "
                f"which each takes its share; received one whose order differs: {reasons[0]}. A "
                "seed of shuffle, or keras.utils.set_random_seed before it, makes it the same"
            )
        return dataset.prefetch(1)

    @staticmethod
    def check(dataset: Any) -> None:
        """Raises ValueError if a dataset was distributed before Keras got it."""
        if not isinstance(dataset, tf.data.Dataset):
            raise ValueError(
                "elastic training: expected arrays, a tf.data.Dataset, a PyDataset or a Sequence, "
                "received a dataset that is distributed already; pass the dataset itself"
            )


@hooks(TFEpochIterator, "__init__")
def read_whole_batches(original, self, distribute_strategy=None, *args, **kwargs):
    """In elastic training all workers read whole batches; each step cuts them anew."""
    if elastic_job_of(distribute_strategy) is None:
        original(self, distribute_strategy, *args, **kwargs)
        return
    original(self, WholeBatches, *args, **kwargs)
    WholeBatches.check(self._distributed_dataset)
    self._distribute_strategy = distribute_strategy


@hooks(TFEpochIterator, "catch_stop_iteration")
def end_together(original, self):
    """In elastic training no member goes on before all have done all steps of an epoch."""
    job = elastic_job_of(self._distribute_strategy)
    return original(self) if job is None else agreed(original(self), job)


@contextlib.contextmanager
def agreed(steps: Any, job: ElasticJob) -> Iterator[None]:
    """Waits at the end of an epoch's steps until all members have done them.

    Args:
      steps: Keras's context manager around them.
      job: the members.
    """
    with steps:
        yield

    def agree() -> None:
        with tf.device("/device:CPU:0"):
            ops.all_reduce(tf.constant(job.units), job.communicator, "max", label="end of steps")

    job.run(Unit("the end of an epoch's steps", agree))


@hooks(TensorFlowTrainer, "fit")
def fit_elastically(original, self, *args, **kwargs):
    """In elastic training a newcomer leaves out what the members have ended.

    A worker that the others have left behind becomes a newcomer, if its data can go back.
    """
    return fit_among_members(original, History, self, *args, **kwargs)


def fit_among_members(
    original: Any, kind: type[History], model: Any, *args: Any, **kwargs: Any
) -> Any:
    """Calls `original`, the `fit` of a Keras, as far as the members of an elastic job need it.

    Args:
      original: the `fit`.
      kind: the Keras's class of histories.
      model: the model.
      *args, **kwargs: of `fit`.
    """
    job = elastic_job_of(model.distribute_strategy)
    if job is None:
        return original(model, *args, **kwargs)
    while True:
        past = job.past_fit()
        if past is not None:
            _log.warning(
                "%s: leaves out fit number %d, which the members have ended: until it joins them "
                "in another fit, its model does not have the trained weights",
                *(job.cluster.task_name, job.fits),
            )
            return _history(kind, model, past)
        try:
            history = original(model, *args, **kwargs)
        except LeftBehindError as error:
            reason = _why_not_again(job)
            if reason is not None:
                raise LeftBehindError(
                    f"{error}; start the program again, and it joins them: this fit cannot begin "
                    f"again in this process, because {reason}"
                ) from None
            _log.warning("%s; joining them again", error)
            continue
        job.end_fit(history.history)
        return history


def _why_not_again(job: ElasticJob) -> str | None:
    return job.state.why_not_again() if isinstance(job.state, ElasticFit) else None


def _history(kind: type[History], model: Any, logs: dict[str, list[float]]) -> History:
    """The result of a `fit` that other members have made."""
    history = kind()
    history.set_model(model)
    history.history = logs
    history.epoch = list(range(max(map(len, logs.values()), default=0)))
    model.history = history
    return history


@hooks(CallbackList, "on_train_begin")
def begin_together(original, self, logs=None):
    """`fit` begins with the state of rank 0, or of the members of a running job."""
    original(self, logs)
    running = training.newest()
    job = None if running is None else elastic_job_of(running.model.distribute_strategy)
    if running is not None and job is not None and running.reads is not None:
        ElasticFit(job, running, self).begin()


@hooks(ProgbarLogger, "on_epoch_begin")
def show_epochs_on_rank_0(original, self, epoch, logs=None):
    """In elastic training the progress is that of rank 0, whichever worker that is."""
    with muted(self):
        original(self, epoch, logs)


@hooks(ProgbarLogger, "_update_progbar")
def show_progress_on_rank_0(original, self, batch, logs=None):
    """In elastic training the progress is that of rank 0, whichever worker that is."""
    with muted(self):
        original(self, batch, logs)


@hooks(ProgbarLogger, "_finalize_progbar")
def show_results_on_rank_0(original, self, logs):
    """In elastic training the progress is that of rank 0, whichever worker that is."""
    with muted(self):
        original(self, logs)


@contextlib.contextmanager
def muted(logger: Any) -> Iterator[None]:
    """Within it a `ProgbarLogger` shows nothing, unless this member is rank 0."""
    if not is_left_to_rank_0(logger.model):
        if logger.progbar is not None:
            logger.progbar.verbose = logger.verbose
        yield
        return
    before, logger.verbose = logger.verbose, 0
    if logger.progbar is not None:
        logger.progbar.verbose = 0
    try:
        yield
    finally:
        logger.verbose = before
