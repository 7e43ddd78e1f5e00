"""Elastic training around the steps: the data, the beginning and the end, and the output.

Each member reads whole batches. Before any member calls what follows the steps of an epoch, all
have done all steps.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from keras.callbacks import CallbackList, History, ProgbarLogger
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer, TFEpochIterator

from tfdist import ops
from tfdist.data.order import order_of_each_process
from tfdist.elastic.data_values import values_of
from tfdist.elastic.job import ElasticJob, LeftBehindError, Unit
from tfdist.elastic.plain_values import decode, encode
from tfdist.elastic.records import Record, failed
from tfdist.errors import RendezvousTimeoutError, TfdistError
from tfdist.keras import random_state, training
from tfdist.keras.drawing import drawn, go_to
from tfdist.keras.elastic_records import check_subject, ends_if_wrong, kept_record, restored
from tfdist.keras.elastic_state import ElasticFit, LeftOut, state_of_newcomer
from tfdist.keras.rank_zero import is_left_to_rank_0
from tfdist.keras.registry import hooks
from tfdist.keras.workers import elastic_job_of

_log = logging.getLogger("tfdist.elastic")
# How a call fails that the members cannot go on with.
_LOST_MEMBERS = (
    RendezvousTimeoutError,
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
)
_Policy = tf.data.experimental.AutoShardPolicy
# Models of which it was said that newcomers cannot join.
_warned: weakref.WeakSet[Any] = weakref.WeakSet()


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
    return original(self) if job is None else agreed(original(self), job, self)


@contextlib.contextmanager
def agreed(steps: Any, job: ElasticJob, reads: Any) -> Iterator[None]:
    """Waits at the end of an epoch's steps until all members have done them.

    After steps of training the members' variables are equal, or the worker ends whose differ.

    Args:
      steps: Keras's context manager around them.
      job: the members.
      reads: Keras's iterator.
    """
    with steps:
        yield

    if state_of_newcomer(job) is not None:
        return  # a callback evaluates before the first step; the members have done so

    state = job.state

    def agree() -> None:
        if isinstance(state, ElasticFit) and state.compares(reads):
            state.compare()
            return
        with tf.device("/device:CPU:0"):
            ops.all_reduce(tf.constant(job.units), job.communicator, "max", label="end of steps")

    job.run(Unit("the end of an epoch's steps", agree))


@hooks(TensorFlowTrainer, "fit")
def fit_elastically(original, self, *args, **kwargs):
    """In elastic training a newcomer leaves out what the members have ended.

    It takes what that has left. A worker that the others have left behind becomes a newcomer, if
    its data can go back.
    """
    return fit_among_members(original, History, self, *args, **kwargs)


@hooks(TensorFlowTrainer, "evaluate")
def evaluate_elastically(original, self, *args, **kwargs):
    """In elastic training a newcomer takes the results that the members have had."""
    return result_among_members(original, "evaluate", self, *args, **kwargs)


@hooks(TensorFlowTrainer, "predict")
def predict_elastically(original, self, *args, **kwargs):
    """In elastic training a newcomer takes the predictions that the members have had."""
    return result_among_members(original, "predict", self, *args, **kwargs)


@hooks(TensorFlowTrainer, "train_on_batch")
def train_on_batch_among_members(original, self, *args, **kwargs):
    """In elastic training `train_on_batch` is refused on a worker that has not joined the members.

    It would train alone.
    """
    check_is_member(self)
    return original(self, *args, **kwargs)


def check_is_member(model: Any) -> None:
    """Ends this process's part in the job if it is to train a batch before it has joined.

    Raises:
      TfdistError: it is.
    """
    job = elastic_job_of(model.distribute_strategy)
    if job is not None and job.is_newcomer:
        job.end(
            f"expected {model.name!r} to be trained by fit, or by a function of "
            "tfdist.elastic.run, received train_on_batch: a process that was started while the "
            "job runs cannot tell which batches the members have trained"
        )
    if job is not None and model not in _warned:
        _warned.add(model)
        _log.warning(
            "%s is trained by train_on_batch: a worker that is started from now on cannot join, "
            "because it cannot tell which batches were trained; fit and tfdist.elastic.run can",
            model.name,
        )


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
    outer = job.state
    data = _data_of(original, model, *args, **kwargs)
    with (
        job.calls.call("fit"),
        _comparing(job, original, model, *args, **kwargs),
        _ends_without_members(job),
    ):
        try:
            history = _fit_or_join(job, original, model, *args, **kwargs)
        except LeftOut as left:
            _log.info(
                "%s: has left out fit number %d, which the members have ended, and has taken "
                "what it has left",
                *(job.cluster.task_name, job.calls.fits),
            )
            _draw_as_members(job, data, left.draws)
            return _history(kind, model, left.history, left.epochs)
        if not job.calls.is_inner:
            job.calls.end(_record_of_fit(job, model, history, drawn(data)))
    if outer is not None and job.calls.is_inside:
        # Newcomers of the outer `fit` could not receive what this one has changed.
        job.state = outer
        job.calls.mark_unrecordable(
            f"another fit, of {model.name!r}, was called within it, in a callback"
        )
    return history


@contextlib.contextmanager
def _comparing(job: ElasticJob, fit: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
    """Within it members compare the arrays that they train with."""
    given = inspect.signature(fit).bind(*args, **kwargs).arguments
    names = ("x", "y", "sample_weight", "validation_data")
    before, job.calls.values = job.calls.values, values_of([given.get(name) for name in names])
    try:
        yield
    finally:
        job.calls.values = before


@contextlib.contextmanager
def _ends_without_members(job: ElasticJob) -> Iterator[None]:
    """Ends this process's part in the job if a call has failed because members were missing."""
    try:
        yield
    except _LOST_MEMBERS as error:
        job.ended_by(error)
        raise


def _fit_or_join(job: ElasticJob, original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    """Makes a `fit` together with the members.

    Raises:
      LeftOut: they have ended it.
    """
    while True:
        try:
            history = original(model, *args, **kwargs)
            _end_of_fit(job, model)
            return history
        except LeftBehindError as error:
            reason = _why_not_again(job)
            if reason is not None:
                text = (
                    f"{error}; start the program again, and it joins them: this fit cannot begin "
                    f"again in this process, because {reason}"
                )
                raise job.ended_by(LeftBehindError(text)) from None
            _log.warning("%s; joining them again", error)


def _end_of_fit(job: ElasticJob, model: Any) -> None:
    """Waits until all members are here, and compares what they have trained."""
    state = job.state
    if isinstance(state, ElasticFit) and state.model is model and state.has_contents:
        job.run(Unit("the end of fit", lambda: state.compare(always=True)))
    else:
        _meet(job, "the end of fit")


def _begin_call(job: ElasticJob, kind: str) -> None:
    """Ends this process's part in the job if the members are in another call."""
    described = job.calls.described(kind)
    job.run(Unit(f"the beginning of {kind}", lambda: job.check_description(described)))


def _meet(job: ElasticJob, where: str) -> None:
    """Waits until all members are here."""

    def agree() -> None:
        with tf.device("/device:CPU:0"):
            ops.all_reduce(tf.constant(job.units), job.communicator, "max", label=where)

    job.run(Unit(where, agree))


def _data_of(function: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """The data that a call of Keras reads: of training, and of validation."""
    given = inspect.signature(function).bind(*args, **kwargs).arguments
    return [given.get("x"), given.get("validation_data")]


def _draw_as_members(job: ElasticJob, data: Sequence[Any], draws: Sequence[int]) -> None:
    """Makes data that a call has not read go on as if it had.

    Raises:
      TfdistError: it cannot.
    """
    try:
        reasons = go_to(data, draws)
    except ValueError as error:
        reasons = [str(error)]
    except TfdistError as error:
        raise job.ended_by(error) from error.__cause__
    if reasons:
        job.end(
            f"expected to go on with the data of call number {job.calls.ended} of fit, evaluate "
            f"and predict, which was left out, as the members do, but {'; '.join(reasons)}"
        )


def _record_of_fit(job: ElasticJob, model: Any, history: Any, draws: list[int]) -> Record:
    state = job.state
    if not isinstance(state, ElasticFit) or state.model is not model:
        return failed("fit", f"{model.name!r} has trained no step together with others")
    return state.record(history.history, history.epoch, draws)


def result_among_members(original: Any, kind: str, model: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls `evaluate` or `predict` of a Keras; a newcomer takes the members' result.

    Args:
      original: the function.
      kind: its name.
      model: the model.
      *args, **kwargs: of the function.
    """
    job = elastic_job_of(model.distribute_strategy)
    if job is None:
        return original(model, *args, **kwargs)
    data = _data_of(original, model, *args, **kwargs)
    with job.calls.call(kind), _ends_without_members(job):
        if job.calls.is_inner:
            return original(model, *args, **kwargs)
        while True:
            if job.is_newcomer:
                record = job.calls.record_when_ended()
                check_subject(job, record, kind, _subject(model))
                with ends_if_wrong(job, record):
                    values = restored(job.records, record, [])
                    draws, result = values["draws"], []
                    if "result" in values:
                        result.append(decode(values["result"].tobytes())[""])
                    random_state.restore(values["random"].tobytes())
                job.calls.end(record)
                if result:
                    _draw_as_members(job, data, draws)
                    return result[0]
                # It is none that can be kept. The members' weights are this process's.
                return original(model, *args, **kwargs)
            try:
                _begin_call(job, kind)
                result = original(model, *args, **kwargs)
                _meet(job, f"the end of {kind}")
                break
            except LeftBehindError as error:
                _log.warning("%s; joining them again", error)
        job.calls.end(_record_of_result(job, kind, model, result, drawn(data)))
        return result


def _record_of_result(
    job: ElasticJob, kind: str, model: Any, result: Any, draws: list[int]
) -> Record:
    rest: dict[str, Any] = {
        "random": np.frombuffer(random_state.packed(), np.uint8),
        "draws": draws,
    }
    try:
        rest["result"] = np.frombuffer(encode({"": result}, kind), np.uint8)
    except TypeError:
        _log.debug("the result of %s cannot be kept: %s", kind, type(result))
    return kept_record(job.records, kind, _subject(model), rest, [], job.calls)


def _subject(model: Any) -> dict[str, str]:
    return {"class of the model": type(model).__name__}


def _why_not_again(job: ElasticJob) -> str | None:
    return job.state.why_not_again() if isinstance(job.state, ElasticFit) else None


def _history(
    kind: type[History], model: Any, logs: dict[str, list[float]], epochs: list[int]
) -> History:
    """The result of a `fit` that other members have made."""
    history = kind()
    history.set_model(model)
    history.history = logs
    history.epoch = epochs
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
