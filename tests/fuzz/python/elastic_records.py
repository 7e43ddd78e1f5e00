"""The records of calls that a newcomer of an elastic job leaves out.

Input: a byte for the form, then a record, a file of values, the text of one, or states of random
generators; or how right ones are altered. Each is read, or refused with a ValueError; variables and
generators then stay as they were.
"""

import io
import json
import random

import numpy as np
import tensorflow as tf
from altered_json import altered

from tfdist.elastic.plain_values import decode, encode
from tfdist.elastic.records import CallRecords, Record, Value
from tfdist.keras import random_state
from tfdist.keras.drawing import go_to
from tfdist.keras.elastic_records import restored

_VALUES = {"history": {"loss": [0.5, 1.0]}, "epochs": [0, 1], "draws": [2], "a": np.ones(3)}
_VARIABLE = tf.Variable(tf.zeros([2]))
_LIMIT = 1 << 24


def run(data: bytes) -> None:
    form, content = data[0] if data else 0, data[1:]
    is_altered, form = form >= 128, form % 4
    if form == 0:
        _record(altered(_right_record()[1].to_bytes(), content) if is_altered else content)
    elif form == 1:
        _values(content)
    elif form == 2:
        text = _text(encode(_VALUES, "fuzz"))
        _values(_file(altered(text, content) if is_altered else content))
    else:
        text = _text(random_state.packed())
        _random(_file(altered(text, content) if is_altered else content))


def _right_record() -> tuple[CallRecords, Record]:
    records = CallRecords(_LIMIT)
    value = Value(records.keep(np.ones(2, np.float32).tobytes()), "float32", (2,))
    return records, Record("fit", {"rows": "3"}, records.keep(encode(_VALUES, "fuzz")), (value,))


def _record(content: bytes) -> None:
    records, _ = _right_record()
    try:
        record = Record.from_bytes(content)
        assert Record.from_bytes(record.to_bytes()) == record
        # Parts that are missing are refused before.
        if any(records.size(part) is None for part in record.parts):
            return
        restored(records, record, [_VARIABLE.handle])
    except ValueError:
        assert not _VARIABLE.numpy().any()
        return
    _VARIABLE.assign(tf.zeros([2]))


def _values(content: bytes) -> None:
    try:
        values = decode(content)
        go_to([], values.get("draws", []))
    except ValueError:
        return
    assert all(isinstance(name, str) for name in values)


def _random(content: bytes) -> None:
    before = random_state.packed()
    try:
        random_state.restore(content)
    except ValueError:
        assert random_state.packed() == before
        return
    random.random()
    np.random.random()
    random_state.restore(before)


def _text(content: bytes) -> bytes:
    with np.load(io.BytesIO(content)) as found:
        return found["json"].tobytes()


def _file(text: bytes) -> bytes:
    """A file of values with a text, and right arrays."""
    buffer = io.BytesIO()
    state = np.random.get_state(legacy=True)[1]
    np.savez(buffer, json=np.frombuffer(text, np.uint8), array_0=np.asarray(state))
    return buffer.getvalue()


def seeds() -> list[bytes]:
    """Inputs to begin with."""
    _, record = _right_record()
    return [
        b"\0" + record.to_bytes(),
        b"\1" + encode({"draws": [1], "a": np.ones(2)}, "fuzz"),
        b"\2" + _text(encode(_VALUES, "fuzz")),
        b"\2" + json.dumps({"a": {"dict": [["k", {"number": 0}]]}}).encode(),
        b"\3" + _text(random_state.packed()),
        *(
            bytes([form, place, choice])
            for form in (128, 130, 131)
            for place in (0, 3, 6)
            for choice in (0, 4, 9)
        ),
    ]
