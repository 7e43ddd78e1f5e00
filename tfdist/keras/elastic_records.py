"""Records of calls of Keras: the values of variables, and what else a call has left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.elastic.atomic_step import read
from tfdist.elastic.calls import Calls
from tfdist.elastic.job import ElasticJob
from tfdist.elastic.plain_values import decode, encode
from tfdist.elastic.records import Record, Records, Value, differences, failed
from tfdist.elastic.values import assign_values


def kept_record(
    records: Records,
    kind: str,
    subject: dict[str, str],
    rest: Mapping[str, Any],
    handles: Sequence[tf.Tensor],
    calls: Calls,
) -> Record:
    """Returns the record of a call of this process, whose parts it keeps.

    Args:
      records: keeps them.
      kind: "fit", "evaluate" or "predict".
      subject: what it was called for, by field.
      rest: plain values, as `encode` takes them.
      handles: the resources of the variables that it may have changed.
      calls: tells why there is no record of this call, if there is none.
    """
    if calls.unrecordable:
        return failed(kind, calls.unrecordable)
    try:
        values = tuple(_kept_value(records, read(handle)) for handle in handles)
        digest = records.keep(encode(rest, f"what {kind} has left"))
    except (OSError, TypeError) as error:
        return failed(kind, f"what it has left could not be kept: {error}")
    return Record(kind, dict(subject), digest, values)


def restored(records: Records, record: Record, handles: Sequence[tf.Tensor]) -> dict[str, Any]:
    """Assigns a record's values to variables; returns the rest.

    Args:
      records: has its parts.
      record: the record.
      handles: the resources of as many variables.
    """
    values = []
    for value in record.values:
        array = np.frombuffer(records.read(value.digest), tf.as_dtype(value.dtype).as_numpy_dtype)
        with tf.device("/device:CPU:0"):
            values.append(tf.constant(array.reshape(value.shape)))
    assign_values(handles, values)
    return decode(records.read(record.rest))


def check_subject(job: ElasticJob, record: Record, kind: str, subject: dict[str, str]) -> None:
    """Ends this process's part in the job if its call is another one than that of a record.

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


def _kept_value(records: Records, tensor: tf.Tensor) -> Value:
    with tf.device("/device:CPU:0"):
        array = np.asarray(tf.identity(tensor).numpy())
    if array.dtype.hasobject:
        raise TypeError(f"expected variables of numbers, received one of {tensor.dtype.name}")
    digest = records.keep(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return Value(digest, tensor.dtype.name, array.shape)
