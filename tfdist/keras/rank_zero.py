"""Callbacks' calls that rank 0 makes alone, such as calls that write files.

In a job that is not elastic the other workers leave such a call out, or make it in a directory that
is deleted where the call needs all workers. In an elastic job they note it: if rank 0 is lost while
it makes the call, the next rank 0 makes it again (`tfdist.elastic.owed`).

The call may need the model as it is at this place: a checkpoint, or a histogram of weights. A later
callback may change it, as `SwapEMAWeights` or a schedule of the learning rate does. So the members
meet right after such a call. They only do if all of them come to this place: callbacks that meet
are compared when `fit` begins, and a callback that overrides when it saves does not meet.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tfdist import ops
from tfdist._types import KerasCallback, KerasModel
from tfdist.elastic.job import ElasticJob, Unit
from tfdist.keras.session.session import newest_fit
from tfdist.keras.workers import elastic_job_of, local_updates_of

_Result = TypeVar("_Result")
_NUMBERS = (bool, int, float, type(None))
# Kinds of callbacks after whose calls the members meet, and the methods that decide when.
_meeting: dict[type, tuple[str, ...]] = {}
# By kind: the function that returns a callback's state on a member, and the function that sets it
# on a newcomer.
_carried: dict[type, tuple[Callable, Callable]] = {}


def meets(kind: type, *methods: str) -> None:
    """Says that members meet after calls of a kind of callback.

    Args:
      kind: the class.
      *methods: a subclass that overrides one of them does not meet.
    """
    _meeting[kind] = methods
    # Counters decide when it saves, and so when all meet.
    carries(kind, numbers_of, take_numbers)


def is_left_to_rank_0(model: KerasModel) -> bool:
    """Whether another member writes the files and the output of a model's training.

    Also of a newcomer, which has no other rank than 0 before the members take it in.
    """
    job = None if model is None else elastic_job_of(model.distribute_strategy)
    return job is not None and (job.is_newcomer or job.rank != 0)


def owe(model: KerasModel, what: str, call: Callable[[], object]) -> None:
    """Notes a call that rank 0 makes now, and this member makes if rank 0 is lost meanwhile.

    Args:
      model: which an elastic job trains.
      what: describes the call, for the log.
      call: makes it; may be called again after a failure.
    """
    job = elastic_job_of(model.distribute_strategy)
    # A newcomer gets the state of a later place. Outside of fit no unit would drop the call.
    if job is not None and not job.is_newcomer and newest_fit() is not None:
        job.owed.add(what, call)


def by_rank_0(model: KerasModel, what: str, call: Callable[[], object]) -> None:
    """Makes a call on rank 0 of an elastic job alone; the others owe it."""
    if is_left_to_rank_0(model):
        owe(model, what, call)
    else:
        call()


def will_meet(callback: KerasCallback) -> ElasticJob | None:
    """The members who meet after the callback's present call; `None` if they do not."""
    model, fit = getattr(callback, "model", None), newest_fit()
    if model is None or fit is None:
        return None
    job = elastic_job_of(model.distribute_strategy)
    if job is None or not job.can_meet:
        return None
    # Workers that train alone do not meet in the middle of an epoch.
    if local_updates_of(model.distribute_strategy) is not None and fit.batch:
        return None
    known = getattr(job.state, "meeting", ())
    return job if any(each is callback for each in known) else None


def meet(callback: KerasCallback, call: Callable[[], _Result] | None = None) -> _Result | None:
    """Waits until rank 0 has made its call, or the next rank 0 has made it again.

    Args:
      callback: the callback that is called.
      call: the members' common action; by default they wait for each other.

    Returns:
      The result of `call`; `None` where the others have ended it, or the members do not meet.

    Raises:
      Exception: as for `ElasticJob.run`.
    """
    job, fit = will_meet(callback), newest_fit()
    if job is None or fit is None:
        return None
    communicator, name = job.communicator, f"a call of {type(callback).__qualname__}"

    def wait() -> None:
        with tf.device("/device:CPU:0"):
            ops.all_reduce(tf.constant(0), communicator, "max", label=name)

    fit.step_is_done()
    # A member that leaves after the step is still here.
    return job.run(Unit(name, call or wait, lets_leave=False))


def meeting(callbacks: Iterable[KerasCallback]) -> list[KerasCallback]:
    """Those callbacks of a `fit` after whose calls the members meet."""
    return [callback for callback in callbacks if _is_kept(callback)]


def in_words(callbacks: Iterable[KerasCallback]) -> str:
    """Describes callbacks after whose calls the members meet, as all members must have them."""
    return ", ".join(
        f"{type(each).__qualname__}({getattr(each, 'save_freq', '')})" for each in callbacks
    )


def _is_kept(callback: KerasCallback) -> bool:
    """Whether a callback is of a kind that meets, and decides as that kind does when it saves."""
    for kind, methods in _meeting.items():
        if isinstance(callback, kind):
            return all(
                getattr(type(callback), name) is getattr(kind, name) and name not in vars(callback)
                for name in methods
            )
    return False


def carries(
    kind: type, describe: Callable[[Any], Any], restore: Callable[[Any, Any], None]
) -> None:
    """Says what a newcomer receives of a kind of callback.

    Args:
      kind: the class.
      describe: returns it, as JSON can hold it, on a member.
      restore: takes it on a newcomer, after `on_train_begin`.
    """
    _carried[kind] = (describe, restore)


def describe(callbacks: Iterable[KerasCallback]) -> str:
    """The state of the callbacks that rank 0 alone calls, for a newcomer."""
    return json.dumps(
        [(type(each).__qualname__, kind[0](each)) for each, kind in _known(callbacks)]
    )


def restore(callbacks: Iterable[KerasCallback], described: str) -> None:
    """Takes what `describe` has returned on a member; pairs callbacks of a class by their order."""
    theirs = json.loads(described)
    for callback, (_, take) in _known(callbacks):
        for i, (name, value) in enumerate(theirs):
            if name == type(callback).__qualname__:
                take(callback, value)
                del theirs[i]
                break


def _known(
    callbacks: Iterable[KerasCallback],
) -> list[tuple[KerasCallback, tuple[Callable, Callable]]]:
    found = []
    for callback in callbacks:
        kinds = [kind for kind in _carried if isinstance(callback, kind)]
        if kinds:
            found.append((callback, _carried[kinds[0]]))
    return found


def numbers_of(target: object) -> dict[str, float | None]:
    """The numbers among an object's attributes, such as counters."""
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in vars(target).items()
        if isinstance(value, (*_NUMBERS, np.number, np.bool_))
    }


def take_numbers(target: object, numbers: Mapping[str, float | None]) -> None:
    """Gives an object the numbers of another one; attributes that it does not have are left out."""
    for name, value in numbers.items():
        if name in vars(target):
            setattr(target, name, value)
