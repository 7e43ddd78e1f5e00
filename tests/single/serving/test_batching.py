"""Requests that come together are one call, and each gets its own rows."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent import futures

import grpc
import numpy as np
import pytest
import tensorflow as tf

from support.patience import wait_until
from support.serving.clients import TIMEOUT, predict_request, rest, serving, stub_of
from support.serving.saved_models import write_affine
from tfdist.serving.model_server.batching import Batcher
from tfdist.serving.model_server.call_error import CallError

NEVER = float("inf")
LONG = 60.0  # s: of tests that do not wait for the delay


def until(condition) -> None:
    wait_until(condition, "the expected state", 20)


class Doubling:
    """A model whose calls are counted, and wait until they may continue."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.may_continue = threading.Event()

    def __call__(self, inputs):
        x = inputs["x"]
        self.calls.append(len(x))
        assert self.may_continue.wait(TIMEOUT)
        if (x < 0).any():
            raise tf.errors.InvalidArgumentError(None, None, "negative")
        return {"y": 2 * x}


@pytest.fixture
def model():
    return Doubling()


@contextlib.contextmanager
def clients():
    with futures.ThreadPoolExecutor(16) as pool:
        yield pool


def ask(batcher, model, *values, kind="s", deadline=NEVER):
    return batcher.run(kind, {"x": np.array(values)}, model, deadline)["y"].tolist()


def asked_while_one_runs(pool, batcher, model, requests, **options):
    """Asks for [1], and for the others while its call runs; returns the futures of the others."""
    first = pool.submit(ask, batcher, model, 1)
    until(lambda: model.calls == [1])
    later = []
    for values in requests:
        joined = waiting(batcher) + 1
        later.append(pool.submit(ask, batcher, model, *values, **options))
        until(lambda joined=joined: waiting(batcher) == joined or len(model.calls) > 1)
    return first, later


def waiting(batcher) -> int:
    """The requests that have joined a batch which has room."""
    lines = list(batcher._lines.values())
    return sum(len(line.waiting.requests) for line in lines if line.waiting is not None)


def test_a_request_alone_starts_at_once(model):
    model.may_continue.set()
    begun = time.monotonic()
    assert ask(Batcher(8, LONG), model, 3, 4) == [6, 8]
    assert time.monotonic() - begun < LONG / 2


def test_requests_that_wait_are_one_call(model):
    sizes = []
    batcher = Batcher(8, LONG, sizes.append)
    with clients() as pool:
        first, later = asked_while_one_runs(pool, batcher, model, [[2], [3, 4], [5]])
        model.may_continue.set()
        assert first.result(TIMEOUT) == [2]
        assert [f.result(TIMEOUT) for f in later] == [[4], [6, 8], [10]]
    assert model.calls == sizes == [1, 4]
    assert not batcher._lines


def test_a_full_batch_does_not_wait(model):
    batcher = Batcher(3, LONG)
    with clients() as pool:
        _, later = asked_while_one_runs(pool, batcher, model, [[2], [3]])
        # Has no room in that batch, which so is full.
        later.append(pool.submit(ask, batcher, model, 4, 5))
        until(lambda: model.calls == [1, 2])
        model.may_continue.set()
        assert [f.result(TIMEOUT) for f in later] == [[4], [6], [8, 10]]
    assert model.calls == [1, 2, 2]


def test_a_batch_waits_no_longer_than_its_delay(model):
    batcher = Batcher(8, 0.05)
    with clients() as pool:
        first, later = asked_while_one_runs(pool, batcher, model, [[2]])
        until(lambda: model.calls == [1, 1])
        assert not first.done()
        model.may_continue.set()
        assert later[0].result(TIMEOUT) == [4]


def test_large_requests_are_alone(model):
    batcher = Batcher(3, LONG)
    with clients() as pool:
        first = pool.submit(ask, batcher, model, 1)
        until(lambda: model.calls == [1])
        large = pool.submit(ask, batcher, model, 1, 2, 3, 4)
        until(lambda: model.calls == [1, 4])
        model.may_continue.set()
        assert large.result(TIMEOUT) == [2, 4, 6, 8]
        assert first.result(TIMEOUT) == [2]


def test_other_shapes_types_and_signatures_are_not_mixed(model):
    batcher = Batcher(8, LONG)
    model.may_continue.set()
    inputs = [np.ones(1), np.ones([1, 2]), np.ones([1, 3]), np.ones(1, int)]
    calls = []

    def run(kind, x):
        def call(joined):
            calls.append((kind, joined["x"].dtype.kind, joined["x"].shape))
            hold.wait(TIMEOUT)
            return {"y": joined["x"]}

        return batcher.run(kind, {"x": x}, call, NEVER)["y"]

    hold = threading.Event()
    with clients() as pool:
        pending = [pool.submit(run, "s", x) for x in inputs] + [pool.submit(run, "t", inputs[0])]
        until(lambda: len(calls) == 5)
        hold.set()
        for future, x in zip(pending, [*inputs, inputs[0]], strict=True):
            np.testing.assert_array_equal(future.result(TIMEOUT), x)


def test_an_error_of_one_request_is_not_of_the_others(model):
    batcher = Batcher(8, LONG)
    with clients() as pool:
        _, later = asked_while_one_runs(pool, batcher, model, [[2], [-3], [5]])
        model.may_continue.set()
        assert later[0].result(TIMEOUT) == [4]
        with pytest.raises(tf.errors.InvalidArgumentError, match="negative"):
            later[1].result(TIMEOUT)
        assert later[2].result(TIMEOUT) == [10]
    assert model.calls == [1, 3, 1, 1, 1]


def test_an_error_of_no_request_is_told_to_all_at_once(model):
    batcher = Batcher(8, LONG)
    calls = []

    def gone(inputs):
        calls.append(len(inputs["x"]))
        raise tf.errors.UnavailableError(None, None, "ps 1 is gone")

    with clients() as pool:
        first = pool.submit(ask, batcher, model, 1)
        until(lambda: model.calls == [1])
        later = [pool.submit(ask, batcher, gone, 2)]
        until(lambda: waiting(batcher) == 1)
        later.append(pool.submit(ask, batcher, gone, 3))
        until(lambda: waiting(batcher) == 2)
        model.may_continue.set()
        first.result(TIMEOUT)
        for future in later:
            with pytest.raises(tf.errors.UnavailableError):
                future.result(TIMEOUT)
    assert calls == [2]


def test_outputs_that_are_no_rows_are_computed_alone(model):
    """A model that returns a sum over the batch must not see the rows of others."""
    batcher = Batcher(8, LONG)
    model.may_continue.set()
    hold = threading.Event()
    calls = []

    def total(inputs):
        calls.append(len(inputs["x"]))
        hold.wait(TIMEOUT)
        return {"y": inputs["x"].sum()}

    with clients() as pool:
        pending = [pool.submit(ask, batcher, total, 1)]
        until(lambda: calls == [1])
        for value in (2, 3):
            pending.append(pool.submit(ask, batcher, total, value))
            until(lambda value=value: waiting(batcher) == value - 1)
        hold.set()
        assert [f.result(TIMEOUT) for f in pending] == [1, 2, 3]
        assert calls == [1, 2, 1, 1]
        # It is known now.
        assert ask(batcher, total, 4) == 4


def test_a_deadline_ends_the_wait(model):
    batcher = Batcher(8, LONG)
    with clients() as pool:
        first, later = asked_while_one_runs(pool, batcher, model, [[2]])
        with pytest.raises(CallError) as raised:
            ask(batcher, model, 3, deadline=time.monotonic() + 0.05)
        assert raised.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
        model.may_continue.set()
        assert first.result(TIMEOUT) == [2] and later[0].result(TIMEOUT) == [4]


def test_clients_of_both_protocols_share_batches(tmp_path):
    folder = tmp_path / "affine"
    write_affine(folder, 5)

    def by_grpc(value):
        x = np.full([2, 3], value, np.float32)
        with stub_of(server) as stub:
            response = stub.Predict(predict_request("affine", x=x), timeout=TIMEOUT)
        return tf.make_ndarray(response.outputs["y"]).tolist()

    def by_rest(value):
        body = {"inputs": [[value] * 3] * 2}
        return rest(server, "/v1/models/affine:predict", body)[1]["outputs"]["y"]

    with serving({"affine": folder}, max_batch=16, batch_delay=0.05) as server, clients() as pool:
        asked = [(pool.submit(by, v), v) for v in range(20) for by in (by_grpc, by_rest)]
        for future, value in asked:
            assert future.result(TIMEOUT) == [[2 * value + 5] * 3] * 2
        # A model with a wrong input of one client.
        bad = pool.submit(rest, server, "/v1/models/affine:predict", {"inputs": [[1, 2]]})
        assert bad.result(TIMEOUT)[0] == 400
