"""Calls of `fit`, `evaluate` and `predict` in an elastic job: which of them a process makes.

A newcomer leaves out calls that the members have ended. A `fit` or a result may be made again after
the members have left this process behind.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import ops
from tfdist._types import KerasCallback, KerasModel, Nested
from tfdist.elastic.data_values import values_of
from tfdist.elastic.job import ElasticJob, LeftBehindError, Unit
from tfdist.elastic.plain_values import decode, encode
from tfdist.elastic.records import Record, failed
from tfdist.errors import RendezvousTimeoutError, TfdistError
from tfdist.keras import random_state
from tfdist.keras.drawing import drawn, go_to
from tfdist.keras.elastic_records import check_subject, ends_if_wrong, kept_record, restored
from tfdist.keras.elastic_state import ElasticFit, LeftOut
from tfdist.keras.session.adapter import Adapter, Arguments

_log = logging.getLogger("tfdist.elastic")
# How a call fails that the members cannot continue with.
_LOST_MEMBERS = (
    RendezvousTimeoutError,
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
)
Make = Callable[[], Any]


def call_among_members(
    kind: str, keras: Adapter, job: ElasticJob, model: KerasModel, arguments: Arguments, make: Make
) -> Nested:
    """Makes a call of `fit`, `evaluate` or `predict` as far as the members of a job need it.

    A newcomer leaves out the calls that the members have ended, and takes what they have left. A
    worker that the others have left behind becomes a newcomer, if its data can go back.

    Args:
      kind: the name of the function.
      keras: the Keras of the model.
      job: the members.
      model: the model.
      arguments: of the call, by name.
      make: makes the call; may be called again after it has failed.
    """
    if kind == "fit":
        return _fit(keras.history_type, job, model, arguments, make)
    return _result(kind, job, model, arguments, make)


def _fit(
    history_type: type, job: ElasticJob, model: KerasModel, arguments: Arguments, make: Make
) -> KerasCallback:
    outer = job.state
    data = _data_of(arguments)
    with job.calls.call("fit"), _comparing(job, arguments), _ends_without_members(job):
        try:
            history = _fit_or_join(job, model, make)
        except LeftOut as left:
            _log.info(
                "%s: has left out fit number %d, which the members have ended, and has taken "
                "what it has left",
                *(job.cluster.task_name, job.calls.fits),
            )
            _draw_as_members(job, data, left.draws)
            return _history(history_type, model, left.history, left.epochs)
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
def _comparing(job: ElasticJob, arguments: Arguments) -> Iterator[None]:
    """Within it members compare the arrays that they train with."""
    names = ("x", "y", "sample_weight", "validation_data")
    values = values_of([arguments.get(name) for name in names])
    before, job.calls.values = job.calls.values, values
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


def _fit_or_join(job: ElasticJob, model: KerasModel, make: Make) -> KerasCallback:
    """Makes a `fit` together with the members.

    Raises:
      LeftOut: they have ended it.
    """
    while True:
        try:
            history = make()
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


def _end_of_fit(job: ElasticJob, model: KerasModel) -> None:
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


def _data_of(arguments: Arguments) -> list[object]:
    """The data that a call of Keras reads: of training, and of validation."""
    return [arguments.get("x"), arguments.get("validation_data")]


def _draw_as_members(job: ElasticJob, data: Sequence[object], draws: Sequence[int]) -> None:
    """Makes data that a call has not read continue as if it had.

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
            f"expected to continue with the data of call number {job.calls.ended} of fit, evaluate "
            f"and predict, which was left out, as the members do, but {'; '.join(reasons)}"
        )


def _record_of_fit(
    job: ElasticJob, model: KerasModel, history: KerasCallback, draws: list[int]
) -> Record:
    state = job.state
    if not isinstance(state, ElasticFit) or state.model is not model:
        return failed("fit", f"{model.name!r} has trained no step together with others")
    return state.record(history.history, history.epoch, draws)


def _result(
    kind: str, job: ElasticJob, model: KerasModel, arguments: Arguments, make: Make
) -> Nested:
    data = _data_of(arguments)
    with job.calls.call(kind), _ends_without_members(job):
        if job.calls.is_inner:
            return make()
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
                return make()
            try:
                _begin_call(job, kind)
                result = make()
                _meet(job, f"the end of {kind}")
                break
            except LeftBehindError as error:
                _log.warning("%s; joining them again", error)
        job.calls.end(_record_of_result(job, kind, model, result, drawn(data)))
        return result


def _record_of_result(
    job: ElasticJob, kind: str, model: KerasModel, result: Nested, draws: list[int]
) -> Record:
    rest: dict[str, object] = {
        "random": np.frombuffer(random_state.packed(), np.uint8),
        "draws": draws,
    }
    try:
        rest["result"] = np.frombuffer(encode({"": result}, kind), np.uint8)
    except TypeError:
        _log.debug("the result of %s cannot be kept: %s", kind, type(result))
    return kept_record(job.records, kind, _subject(model), rest, [], job.calls)


def _subject(model: KerasModel) -> dict[str, str]:
    return {"class of the model": type(model).__name__}


def _why_not_again(job: ElasticJob) -> str | None:
    return job.state.why_not_again() if isinstance(job.state, ElasticFit) else None


def _history(
    kind: type, model: KerasModel, logs: dict[str, list[float]], epochs: list[int]
) -> KerasCallback:
    """The result of a `fit` that other members have made."""
    history = kind()
    history.set_model(model)
    history.history = logs
    history.epoch = epochs
    model.history = history
    return history
