"""Records of calls of Keras: the values of variables, and what else a call has left."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.config.validation import show
from tfdist.elastic.atomic_step import read, type_of
from tfdist.elastic.calls import Calls
from tfdist.elastic.job import ElasticJob
from tfdist.elastic.plain_values import decode, encode
from tfdist.elastic.records import CallRecords, Record, Value, differences, failed
from tfdist.elastic.values import assign_values
from tfdist.errors import TfdistError
from tfdist.keras.callback_state import CallbackStateError


def kept_record(
    records: CallRecords,
    kind: str,
    subject: dict[str, str],
    rest: Mapping[str, object],
    handles: Sequence[tf.Tensor],
    calls: Calls,
) -> Record:
    """Returns the record of a call of this process, whose parts it keeps.

    Args:
      records: keeps them.
      kind: "fit", "evaluate" or "predict".
      subject: the arguments of the call that tell it from others, by field.
      rest: plain values, as `encode` takes them.
      handles: the resources of the variables that it may have changed.
      calls: tells why there is no record of this call, if there is none.
    """
    if calls.unrecordable:
        return failed(kind, calls.unrecordable)
    try:
        values = tuple(_kept_value(records, read(handle)) for handle in handles)
        digest = records.keep(encode(rest, f"the results of {kind}"))
    except (OSError, TypeError) as error:
        return failed(kind, f"its results could not be kept: {error}")
    return Record(kind, dict(subject), digest, values)


def restored(records: CallRecords, record: Record, handles: Sequence[tf.Tensor]) -> dict[str, Any]:
    """Assigns a record's values to variables; returns the rest.

    Args:
      records: has its parts.
      record: the record.
      handles: the resources of as many variables.

    Raises:
      ValueError: the record does not fit the variables; they are as before.
    """
    if len(record.values) != len(handles):
        raise ValueError(
            f"expected the values of {len(handles)} variables, received {len(record.values)}"
        )
    values = [
        _received_value(records, value, handle)
        for value, handle in zip(record.values, handles, strict=True)
    ]
    rest = decode(records.read(record.rest))
    assign_values(handles, values)
    return rest


@contextlib.contextmanager
def ends_if_wrong(job: ElasticJob, record: Record) -> Iterator[None]:
    """Within it a process takes what a record has; what does not fit ends its part in the job.

    Any error ends it: it has taken a part of the record, perhaps.

    Raises:
      TfdistError: a value does not fit, or a method of the script has raised an error; names the
        call.
    """
    of_call = (
        f"the results of the members' call number {job.calls.number} of fit, evaluate and predict, "
        f"{record.kind}"
    )
    try:
        yield
    except CallbackStateError as error:  # the record is right, the script's method is not
        task = job.cluster.task_name
        raise job.ended_by(TfdistError(f"{task}: taking {of_call}: {error}")) from error.__cause__
    except Exception as error:
        raise job.ended_by(
            TfdistError(
                f"{job.cluster.task_name}: expected {of_call}, "
                f"received results that this process cannot take: {type(error).__name__}: {error}"
            )
        ) from error


def check_subject(job: ElasticJob, record: Record, kind: str, subject: dict[str, str]) -> None:
    """Ends this process's part in the job if its call differs from the call of a record.

    Raises:
      TfdistError: it is; names what differs.
    """
    number = job.calls.number
    if record.kind != kind:
        job.end(
            f"expected {record.kind} as call number {number} of fit, evaluate and predict, as in "
            f"the members' program, received {kind}: do all run the same program?"
        )
    different = differences(subject, record.subject)
    if different:
        job.end(
            f"expected the members' call number {number} of fit, evaluate and predict, a {kind}, "
            f"but {'; '.join(different)}: do all run the same program?"
        )


def _received_value(records: CallRecords, value: Value, handle: tf.Tensor) -> tf.Tensor:
    own = type_of(handle)
    assert own is not None
    dtype, shape = own
    if value.dtype != dtype.name or not shape.is_compatible_with(value.shape):
        raise ValueError(
            f"expected a value of {dtype.name}{shape} for a variable, received one of "
            f"{show(value.dtype)}{list(value.shape)}"
        )
    content = records.read(value.digest)
    if len(content) != math.prod(value.shape) * dtype.size:
        raise ValueError(
            f"expected {dtype.name}{list(value.shape)} for a variable, received {len(content)} "
            "bytes"
        )
    array = np.frombuffer(content, dtype.as_numpy_dtype)
    with tf.device("/device:CPU:0"):
        return tf.constant(array.reshape(value.shape))


def _kept_value(records: CallRecords, tensor: tf.Tensor) -> Value:
    with tf.device("/device:CPU:0"):
        array = np.asarray(tf.identity(tensor).numpy())
    if array.dtype.hasobject:
        raise TypeError(f"expected variables of numbers, received one of {tensor.dtype.name}")
    digest = records.keep(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return Value(digest, tensor.dtype.name, array.shape)
