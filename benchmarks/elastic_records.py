"""The cost of the record of an ended `fit` for a worker of an elastic job: time and bytes.

    python benchmarks/elastic_records.py [--megabytes 100] [--records 5] [--epoch 30]

The variables are of a model of so many megabytes with Adam: weights and two moments, three times as
many bytes. Timed is a record of them: in memory, and in the file for bytes beyond
`TFDIST_ELASTIC_RECORDS`, both after all values have changed, and after none has. Timed is also the
reading of one as by a newcomer, from a process of the same machine, in messages of a megabyte.

Verified first: a newcomer's values are equal bit for bit. The share is of an epoch of `--epoch`
seconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from absl import app, flags

from tfdist.control import encoding
from tfdist.control.held_calls import ClientContext
from tfdist.elastic.protocol import messages
from tfdist.elastic.record_exchange import RecordServer
from tfdist.elastic.records import CallRecords, Record
from tfdist.keras.elastic_records import kept_record, restored

MEGABYTES = flags.DEFINE_integer("megabytes", 100, "of the model's weights", lower_bound=1)
RECORDS = flags.DEFINE_integer("records", 5, "of each kind", lower_bound=1)
EPOCH = flags.DEFINE_float("epoch", 30.0, "seconds of an epoch to compare with")

LAYERS = 20
ALL, NONE = 1 << 50, 0  # limits of the memory for records


class _Calls:
    """Stands for a job's calls."""

    unrecordable = ""


def _variables() -> list[tf.Variable]:
    rows = max(1, (MEGABYTES.value << 20) // (4 * 1024 * LAYERS))
    return [tf.Variable(tf.random.normal([rows, 1024])) for _ in range(LAYERS) for _ in range(3)]


def _change(variables: list[tf.Variable]) -> None:
    for variable in variables:
        variable.assign_add(tf.random.normal(variable.shape))


def _record(records: CallRecords, variables: list[tf.Variable]) -> Record:
    handles = [variable.handle for variable in variables]
    calls: Any = _Calls()
    record = kept_record(records, "fit", {}, {"history": {"loss": [1.0]}}, handles, calls)
    assert not record.failure, record.failure
    return record


def _read(server: RecordServer, records: CallRecords, digest: str) -> None:
    """Reads a part as a newcomer does, except for the network."""
    parts, received = [], 0
    while True:
        request = messages.ElasticRecordRequest("", "", 0, digest, received, 0.0)
        text = encoding.encode(server.answer(request, ClientContext()))
        answer = encoding.decode_object(text)
        parts.append(answer["bytes"])
        received += len(parts[-1])
        if received >= answer["size"]:
            break
    assert records.keep(b"".join(parts)) == digest


def _copied(server: RecordServer, record: Record) -> CallRecords:
    copy = CallRecords(ALL)
    for part in record.parts:
        _read(server, copy, part)
    return copy


def _verify(variables: list[tf.Variable]) -> None:
    for limit in (ALL, NONE):
        records = CallRecords(limit)
        record = _record(records, variables)
        copy = _copied(RecordServer(records, lambda request: True), record)
        others = [tf.Variable(tf.zeros_like(variable)) for variable in variables]
        rest = restored(copy, record, [variable.handle for variable in others])
        assert rest == {"history": {"loss": [1.0]}}
        for variable, other in zip(variables, others, strict=True):
            assert np.array_equal(variable.numpy(), other.numpy())


def _seconds(prepare: Callable[[], None], call: Callable[[], Any]) -> list[float]:
    found = []
    for _ in range(RECORDS.value):
        prepare()
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return found


def main(argv: list[str]) -> None:
    del argv
    variables = _variables()
    _verify(variables)
    memory, file = CallRecords(ALL), CallRecords(NONE)
    served = CallRecords(ALL)
    record = _record(served, variables)
    server = RecordServer(served, lambda request: True)
    size = 4 * sum(variable.shape.num_elements() for variable in variables)
    kinds = {
        "in memory": _seconds(lambda: _change(variables), lambda: _record(memory, variables)),
        "in the file": _seconds(lambda: _change(variables), lambda: _record(file, variables)),
        "nothing has changed": _seconds(lambda: None, lambda: _record(memory, variables)),
        "read by a newcomer": _seconds(lambda: None, lambda: _copied(server, record)),
    }
    print(f"{MEGABYTES.value} MB of weights, {size >> 20} MB of variables, {RECORDS.value} records")
    print(f"{'record':22} {'median s':>9} {'max s':>7} {'share':>7}")
    for name, seconds in kinds.items():
        median = statistics.median(seconds)
        share = "" if "newcomer" in name else f"{median / EPOCH.value:7.1%}"
        print(f"{name:22} {median:9.2f} {max(seconds):7.2f} {share}")


if __name__ == "__main__":
    app.run(main)
