"""Callbacks that one worker cannot call, because saving needs all workers.

In an elastic job no callback needs the others; see `tfdist.keras.rank_zero`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from tfdist._types import KerasCallback, KerasModel, KerasVariable

# The class of variables of which replicas have values of their own.
from tfdist.internals.tensorflow import SyncOnReadVariable
from tfdist.keras import exchange
from tfdist.keras.models import model_variables, tf_variable
from tfdist.keras.workers import communicator_of, elastic_job_of, is_ours, local_updates_of
from tfdist.ops.collectives.alone import alone


def expect_callable_by_one(callback: KerasCallback, model: KerasModel) -> None:
    """Refuses a callback that saves a model together with all workers.

    Args:
      callback: of either Keras.
      model: which the workers train.

    Raises:
      ValueError: one worker cannot call the callback; says why.
    """
    reason = _need_of_all(callback, model)
    if reason is not None:
        kind = type(callback).__qualname__
        raise ValueError(
            f"{_refusal(kind)}: {reason}; pass {kind} itself, whose files rank 0 alone writes"
        )


@contextlib.contextmanager
def without_others(name: str, model: KerasModel) -> Iterator[None]:
    """Within it one worker calls a callback; an eager collective of the job raises ValueError.

    Args:
      name: the callback's class.
      model: which the workers train.
    """
    if _trains_with_others(model):
        with alone(communicator_of(model), _refusal(name)):
            yield
    else:
        yield


def _refusal(name: str) -> str:
    return f"OnRankZero: expected a callback that one worker can call, received {name}"


def _need_of_all(callback: KerasCallback, model: KerasModel) -> str | None:
    """Why a callback needs all workers; `None` if that is not known of it."""
    if not _trains_with_others(model):
        return None
    if _is_a("BackupAndRestore", callback):
        return "continuing from a backup needs all workers"
    if not _is_a("ModelCheckpoint", callback):
        return None
    if local_updates_of(model.distribute_strategy) is not None:
        return "saving a model of LocalUpdateStrategy needs all workers"
    for variable in model_variables(model):
        if _is_read_by_all(tf_variable(variable)):
            name = getattr(variable, "path", variable.name)
            return f"reading variable {name!r} needs all workers"
    return None


def _trains_with_others(model: KerasModel) -> bool:
    strategy = model.distribute_strategy
    if not is_ours(strategy) or elastic_job_of(strategy) is not None:
        return False
    return exchange.workers_of(model) > 1


def _is_a(name: str, callback: KerasCallback) -> bool:
    """Whether a callback is of a class of either Keras."""
    return any(
        kind.__name__ == name and kind.__module__.partition(".")[0] in ("keras", "tf_keras")
        for kind in type(callback).__mro__
    )


def _is_read_by_all(variable: KerasVariable) -> bool:
    return (
        isinstance(variable, SyncOnReadVariable)
        # Each worker reads its own first replica's.
        and variable.aggregation != tf.VariableAggregation.ONLY_FIRST_REPLICA
    )
