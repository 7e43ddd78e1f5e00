"""Calls of `fit`, `evaluate` and `predict` of any Keras, each in a session of its own."""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist._types import KerasModel, Logs
from tfdist.job import process
from tfdist.keras.session.adapter import Adapter, Arguments, Distributor, KerasData
from tfdist.keras.session.elastic_calls import call_among_members
from tfdist.keras.session.order import participants_of
from tfdist.keras.session.participant import Participant
from tfdist.keras.session.session import FitSession, Session, newest, running
from tfdist.keras.shown_metrics import of_all_rows
from tfdist.keras.workers import elastic_job_of

# How a collective fails when another worker has ended.
_LOST_PEERS = (tf.errors.UnavailableError, tf.errors.DeadlineExceededError)


def call(
    kind: str, keras: Adapter, original: Callable, model: KerasModel, args: tuple, kwargs: Arguments
) -> Any:
    """Calls a function of a Keras, with all participants.

    Args:
      kind: the function's name.
      keras: the Keras.
      original: the function.
      model: its first argument.
      args, kwargs: the others.

    Returns:
      The function's result.
    """
    try:
        bound = inspect.signature(original).bind(model, *args, **kwargs)
    except TypeError:  # the call says why
        return original(model, *args, **kwargs)
    _choose_shuffle(bound)
    bound.apply_defaults()
    first = next(iter(bound.arguments))
    given = {name: value for name, value in bound.arguments.items() if name != first}

    def with_arguments(arguments: Arguments) -> Any:
        bound.arguments.update(arguments)
        return original(*bound.args, **bound.kwargs)

    def make() -> Any:
        session = _session(kind, keras, model, model.distribute_strategy, dict(given))
        return session.run(with_arguments, _LOST_PEERS)

    job = elastic_job_of(model.distribute_strategy)
    try:
        return make() if job is None else call_among_members(kind, keras, job, model, given, make)
    except Exception as error:
        process.current.note_failure(error)
        raise


def _choose_shuffle(bound: inspect.BoundArguments) -> None:
    """Chooses no shuffling of data whose order Keras leaves alone, if the call does not say.

    The default of `fit` is to shuffle, and Keras 3.15 warns that it does not shuffle a dataset,
    also if the caller has not asked for it.
    """
    ordered = (tf.data.Dataset, tf.distribute.DistributedDataset, types.GeneratorType)
    if "shuffle" in bound.signature.parameters and isinstance(bound.arguments.get("x"), ordered):
        bound.arguments.setdefault("shuffle", False)


def open_data(
    keras: Adapter,
    data: KerasData,
    strategy: tf.distribute.Strategy,
    make: Callable[[Distributor], None],
) -> None:
    """Makes an iterator of a Keras, with the participants of the newest call.

    Args:
      keras: the Keras.
      data: the iterator, which is not made yet.
      strategy: distributes the data.
      make: makes the iterator for a strategy.
    """
    with _session_of_data(keras, strategy) as session:
        for one in reversed(session.participants):
            make = _opening(one, data, make)
        make(strategy)


@contextlib.contextmanager
def _session_of_data(keras: Adapter, strategy: tf.distribute.Strategy) -> Iterator[Session]:
    session = newest()
    if session is not None and session.strategy is strategy:
        yield session
        return
    # A `fit` of the user's own reads data outside of any call.
    session = _session("data", keras, None, strategy, {})
    with running(session):
        yield session


def _opening(
    one: Participant, data: KerasData, make: Callable[[Distributor], None]
) -> Callable[[Distributor], None]:
    return lambda strategy: one.open_data(data, strategy, make)


def steps_of(
    data: KerasData, steps: contextlib.AbstractContextManager[None]
) -> contextlib.AbstractContextManager[None]:
    """Returns a context manager around the steps of the newest call.

    Args:
      data: Keras's iterator.
      steps: Keras's own context manager.
    """
    session = newest()
    for one in reversed(session.participants if session is not None else ()):
        steps = one.around_steps(steps, data)
    return steps


def results_of(model: KerasModel, logs: Logs, make: Callable[[Logs], Logs]) -> Logs:
    """Returns the logs of an epoch, of a validation, or of an evaluation.

    Args:
      model: the model.
      logs: the logs of the last step; empty if there was none.
      make: takes them; returns Keras's own.
    """
    session = newest()
    is_known = session is not None and session.model is model
    if is_known and isinstance(session, FitSession):
        return of_all_rows(model, "train", session.results(logs, make, of_validation=False))
    validated = session.validated_fit if session is not None and is_known else None
    if validated is None:
        return of_all_rows(model, "test", make(logs))
    return of_all_rows(model, "test", validated.results(logs, make, of_validation=True))


def _session(
    kind: str,
    keras: Adapter,
    model: KerasModel,
    strategy: tf.distribute.Strategy,
    arguments: Arguments,
) -> Session:
    session_type = FitSession if kind == "fit" else Session
    session = session_type(kind, keras, model, strategy, arguments)
    session.participants = participants_of(session)
    return session
