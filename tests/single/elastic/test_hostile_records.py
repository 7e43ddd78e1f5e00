"""Records of a member that lies: a newcomer ends with an error that says so, and takes nothing."""

from __future__ import annotations

import io
import json
import random
import zipfile
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.control.client import UnreachableError
from tfdist.elastic import record_exchange
from tfdist.elastic.plain_values import decode, encode
from tfdist.elastic.record_exchange import MemberRecords
from tfdist.elastic.records import CallRecords, Record, RecordGoneError, Value, digest_of
from tfdist.errors import TfdistError
from tfdist.keras import random_state
from tfdist.keras.callback_state import CallbackStates
from tfdist.keras.drawing import go_to
from tfdist.keras.elastic_records import ends_if_wrong, restored

_RIGHT = {"kind": "fit", "subject": {}, "rest": "r", "values": [], "failure": ""}


def _file(text, compression=zipfile.ZIP_STORED, **arrays):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        arrays["json"] = np.frombuffer(text.encode(), np.uint8)
        for name, array in arrays.items():
            content = io.BytesIO()
            np.save(content, array, allow_pickle=True)
            archive.writestr(f"{name}.npy", content.getvalue())
    return buffer.getvalue()


def _claims(shape):
    """A file whose array claims to have a shape, and has no items."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        text = io.BytesIO()
        np.save(text, np.frombuffer(b'{"a": {"array": 0}}', np.uint8))
        archive.writestr("json.npy", text.getvalue())
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": "<f8", "fortran_order": False, "shape": shape}
        )
        archive.writestr("array_0.npy", header.getvalue())
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04",
        encode({"a": [1, np.ones(3)]}, "test")[:-30],
        _file("[]"),
        _file("{"),
        _file('{"a": {}}'),
        _file('{"a": {"array": 7}}'),
        _file('{"a": {"array": [1]}}'),
        _file('{"a": {"list": 1}}'),
        _file('{"a": {"list": {"x": 1}}}'),
        _file('{"a": [1]}'),
        _file('{"a": {"dict": [[{}, 1]]}}'),
        _file('{"a": {"dict": [[[], 1]]}}'),
        _file('{"a": {"set": []}}'),
        _file('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"),
        _file('{"a": ' + '{"list": [' * 5000 + "]}" * 5000 + "}"),
        _file('{"a": {"array": 0}}', array_0=np.array([{}], object)),
        _file('{"a": {"list": [{"array": 0}, {"array": 0}]}}', array_0=np.ones(3)),
        _file('{"a": {"array": 0}}', zipfile.ZIP_DEFLATED, array_0=np.zeros(10**6)),
        _claims((10**9,)),
        _claims((2**60,)),
        _claims((2**40, 2**40)),
        _claims((-1,)),
    ],
    ids=range(23),
)
def test_values_that_no_member_has_encoded_are_refused(content):
    with pytest.raises(ValueError, match="expected values of another member"):
        decode(content)


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": 3},
        {"kind": ["fit"]},
        {"subject": [1]},
        {"subject": {"rows": 3}},
        {"rest": 5},
        {"rest": ""},
        {"failure": 0},
        {"failure": None},
        {"values": {}},
        {"values": [{"digest": "d", "dtype": "float32", "shape": [-1]}]},
        {"values": [{"digest": "d", "dtype": "float32", "shape": [1.5]}]},
        {"values": [{"digest": "d", "dtype": "float32", "shape": [float("inf")]}]},
        {"values": [{"digest": "d", "dtype": "float32", "shape": "12"}]},
        {"values": [{"digest": "", "dtype": "float32", "shape": []}]},
        {"values": [{"digest": "d", "dtype": 1, "shape": []}]},
        {"another": 1},
    ],
)
def test_records_with_fields_of_other_kinds_are_refused(fields):
    assert Record.from_bytes(json.dumps(_RIGHT).encode()) == Record("fit", rest="r")
    with pytest.raises(ValueError, match="expected a record of a call"):
        Record.from_bytes(json.dumps(_RIGHT | fields).encode())


def test_a_record_that_nests_deeply_is_refused():
    for content in (b"[" * 100_000, b'{"values":' * 100_000):
        with pytest.raises(ValueError, match="expected a record of a call"):
            Record.from_bytes(content)


class _Members:
    """Members whose answers a test makes."""

    def __init__(self, *answers):
        self._answers = dict(zip("abc", answers, strict=False))
        self.calls = 0
        self.fingerprint = "f"
        self.names = {}
        self.me = SimpleNamespace(name="worker 1", process="p")
        self.timing = SimpleNamespace(check=0.01)
        self.probes = self

    def others(self):
        return list(self._answers)

    def ask(self, addresses, every):
        pass

    def under_way(self, addresses):
        return False

    def answer(self, address, since):
        return SimpleNamespace(is_member=True)

    def call(self, address, name, method, request):
        self.calls += 1
        assert self.calls < 100, "it reads for ever"
        return self._answers[address](request)


def _honest(records):
    server = record_exchange.RecordServer(records, lambda request: True)
    return lambda request: server.answer(request, None)


def _one_record():
    records = CallRecords(1 << 20)
    content = np.ones(4, np.float32).tobytes()
    value = Value(records.keep(content), "float32", (4,))
    record = Record("fit", {}, records.keep(b"rest"), (value,))
    records.add(record)
    return records, record


def _lies(records, **fields):
    def answer(request):
        found = _honest(records)(request)
        return found | fields if request.part else found

    return answer


def _grows(records):
    def answer(request):
        found = _honest(records)(request)
        if request.part:
            found |= {"bytes": b"x", "size": request.offset + 2}
        return found

    return answer


_LIES = [
    lambda records: _lies(records, size=2**60),
    lambda records: _lies(records, size=2**60, bytes=b"x"),
    lambda records: _lies(records, size=-1),
    lambda records: _lies(records, size=True),
    lambda records: _lies(records, size=1),
    lambda records: _lies(records, size="4"),
    lambda records: _lies(records, bytes="\x1b[2J"),
    lambda records: _lies(records, bytes=b"another", size=7),
    lambda records: _lies(records, bytes=b""),
    lambda records: _lies(records, bytes=[1, 2]),
    lambda records: _lies(records, status="gone"),
    _grows,
]


@pytest.mark.parametrize("lie", _LIES, ids=range(len(_LIES)))
def test_parts_that_are_not_as_said_are_read_from_another_member(lie):
    records, record = _one_record()
    own = CallRecords(1 << 20)
    with pytest.raises(RecordGoneError, match="no member has"):
        MemberRecords(_Members(lie(records)), own).read(1)
    assert own.bytes_in_memory == 0
    assert MemberRecords(_Members(lie(records), _honest(records)), own).read(1) == record


def test_a_member_that_dies_after_a_long_reading_was_heard_in_its_last_answer(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(record_exchange, "time", clock)
    records, _ = _one_record()

    def dies(request):
        clock.now += 30
        if clock.now > 170:
            raise UnreachableError("it has ended")
        return _honest(records)(request)

    reader = MemberRecords(_Members(dies), CallRecords(1 << 20))
    assert reader.read(1) is None
    assert clock.now == 190 and reader.heard == 160


def test_a_value_has_the_bytes_of_its_shape():
    records = CallRecords(1 << 20)
    digest = records.keep(b"x" * 5)
    records.add(Record("fit", {}, records.keep(b"rest"), (Value(digest, "float32", (4,)),)))
    with pytest.raises(ValueError, match=r"expected float32\[4\].*received 5 bytes"):
        restored(records, Record("fit", {}, "r", (Value(digest, "float32", (4,)),)), [_variable(4)])


def _variable(size):
    _variable.kept = tf.Variable(tf.zeros(size))
    return _variable.kept.handle


@pytest.mark.parametrize("dtype, shape", [("float32", (5,)), ("int32", (4,)), ("object", (4,))])
def test_variables_take_no_value_of_another_shape_or_type(dtype, shape):
    records = CallRecords(1 << 20)
    digest = records.keep(b"\1" * 4 * int(np.prod(shape)))
    rest = records.keep(encode({}, "test"))
    handle = _variable(4)
    record = Record("fit", {}, rest, (Value(digest, dtype, shape),))
    with pytest.raises(ValueError, match="expected .*float32"):
        restored(records, record, [handle])
    with pytest.raises(ValueError, match="expected the values of 2 variables, received 1"):
        restored(records, record, [handle, handle])
    assert not _variable.kept.numpy().any()


def test_variables_stay_as_they_are_if_the_rest_cannot_be_read():
    records = CallRecords(1 << 20)
    digest = records.keep(np.ones(4, np.float32).tobytes())
    record = Record("fit", {}, records.keep(b"no file"), (Value(digest, "float32", (4,)),))
    with pytest.raises(ValueError, match="expected values of another member"):
        restored(records, record, [_variable(4)])
    assert not _variable.kept.numpy().any()


@pytest.mark.parametrize(
    "fields",
    [
        {"python": None},
        {"python": (3, (1, 2), None)},
        {"python": (3, ("a",) * 625, None)},
        {"python": (3, (-1,) * 625, None)},
        {"numpy": ("MT19937", np.zeros(3, np.uint32), 1, 0, 0.0)},
        {"numpy": ("MT19937", np.array(["a"] * 624), 1, 0, 0.0)},
        {"numpy": ("MT19937", np.zeros(624, np.uint32), 10**30, 0, 0.0)},
        {"numpy": ("MT19937", np.zeros(624, np.uint32), 10**6, 0, 0.0)},
        {"numpy": ("MT19937", np.zeros(624, np.uint32), -5, 0, 0.0)},
        {"numpy": ("another", 1)},
        {"numpy": 7},
        {"tensorflow": 3},
    ],
)
def test_random_states_of_another_kind_change_no_generator(fields):
    tf.random.set_seed(6)
    before = random_state.packed()
    with pytest.raises(ValueError, match="expected the states of random generators"):
        random_state.restore(encode(decode(before) | fields, "test"))
    assert random_state.packed() == before
    random.random()
    np.random.random()


@pytest.mark.parametrize("counts", [None, 3, "12", [2**80, "a"], [-1], [1.5], [None], [True]])
def test_counts_of_draws_are_numbers(counts):
    with pytest.raises(ValueError, match="expected how often data has drawn orders"):
        go_to([], counts)


class _Batches(keras.utils.PyDataset):
    """Data that counts the calls around its epochs."""

    made = 0
    error = None

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return np.zeros(1)

    def on_epoch_end(self):
        if self.error is not None:
            raise self.error
        self.made += 1


def test_a_member_that_lies_about_epochs_keeps_no_newcomer_busy():
    data = _Batches()
    (reason,) = go_to([data], [(1 << 31) - 1])
    assert "on_epoch_end of its _Batches was called 0 times, and had been 2147483647" in reason
    assert not data.made
    assert go_to([data], [1000]) == [] and data.made == 1000


def test_an_error_of_the_data_is_not_taken_for_a_member_s():
    data = _Batches()
    data.error = ValueError("of the script")
    with pytest.raises(TfdistError, match="on_epoch_end of _Batches.*of the script") as caught:
        go_to([data], [1])
    assert caught.value.__cause__ is data.error


class _Job:
    """The job of a newcomer, as `ends_if_wrong` needs it."""

    cluster = SimpleNamespace(task_name="worker 1")
    calls = SimpleNamespace(number=3)
    ended = None

    def ended_by(self, error):
        self.ended = self.ended or str(error)
        return error


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        OverflowError("x"),
        zipfile.BadZipFile("x"),
        EOFError("x"),
        RuntimeError("x"),
        tf.errors.InvalidArgumentError(None, None, "x"),
        tf.errors.ResourceExhaustedError(None, None, "x"),
    ],
)
def test_each_error_of_a_record_ends_the_newcomer_by_name(error):
    job = _Job()
    told = "worker 1: expected the results of .* call number 3 .*, fit, received results .*: x"
    with pytest.raises(TfdistError, match=told) as caught, ends_if_wrong(job, Record("fit")):
        raise error
    assert job.ended == str(caught.value) and caught.value.__cause__ is error


@pytest.mark.parametrize(
    "error", [ValueError("of the script"), tf.errors.AbortedError(None, None, "of the script")]
)
def test_an_error_of_a_callback_is_not_taken_for_a_member_s(error):
    class Own(keras.callbacks.Callback):
        def get_state(self):
            return 1

        def set_state(self, state):
            raise error

    states = CallbackStates([Own()], (), 0)
    job = _Job()
    with pytest.raises(TfdistError) as caught, ends_if_wrong(job, Record("fit")):
        states.restore(states.describe())
    told = str(caught.value)
    assert "Own.set_state: expected" in told and "call number 3" in told and "script" in told
    assert "this process cannot take" not in told
    assert job.ended == told and caught.value.__cause__ is error


def test_the_digest_is_of_the_whole_part():
    assert digest_of(b"ab") != digest_of(b"a")
