"""Requests that do not fit: the codes of TensorFlow Serving, and the server continues."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import threading

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework.tensor_pb2 import TensorProto

from support.serving.clients import TIMEOUT, predict_request, rest, serving, stub_of
from support.serving.saved_models import write_affine
from tfdist.serving.model_server import grpc_server, http_server, messages
from tfdist.serving.model_server.server import Listening

X = np.ones([2, 3], np.float32)
PATH = "/v1/models/affine:predict"
INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "affine"
    write_affine(folder, 7)
    with serving(
        {"affine": folder}, Listening(max_bytes=1 << 20, threads=2, max_calls=4)
    ) as server:
        yield server


@pytest.fixture(autouse=True)
def still_answers(server):
    yield
    assert rest(server, PATH, {"instances": X.tolist()})[0] == 200


def refused(server, request, method="Predict"):
    with stub_of(server) as stub, pytest.raises(grpc.RpcError) as raised:
        getattr(stub, method)(request, timeout=TIMEOUT)
    return raised.value.code(), raised.value.details()


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        (predict_request("", x=X), INVALID, "Missing ModelSpec"),
        (predict_request("other", x=X), grpc.StatusCode.NOT_FOUND, "Latest(other); available"),
        (predict_request("affine", 8, x=X), grpc.StatusCode.NOT_FOUND, "Specific(affine, 8)"),
        (
            predict_request("affine", signature="none", x=X),
            grpc.StatusCode.FAILED_PRECONDITION,
            "'serving_default'",
        ),
        (predict_request("affine"), INVALID, "missing: ['x']"),
        (predict_request("affine", x=X, z=X), INVALID, "unknown: ['z']"),
        (
            predict_request("affine", x=X.astype(int)),
            INVALID,
            "float32[?, 3], received int64[2, 3]",
        ),
        (predict_request("affine", x=X[:, :2]), INVALID, "float32[?, 3], received float32[2, 2]"),
        (predict_request("affine", x=np.float32(3)), INVALID, "received float32[]"),
    ],
)
def test_requests_that_do_not_fit_by_grpc(server, request_, code, text):
    assert refused(server, request_)[0] is code
    assert text in refused(server, request_)[1]


def test_a_label_is_unknown(server):
    request = predict_request("affine", x=X)
    request.model_spec.version_label = "stable"
    assert refused(server, request)[0] is INVALID
    assert rest(server, "/v1/models/affine/labels/stable:predict", {"instances": [[1, 2, 3]]}) == (
        400,
        {"error": "Unrecognized servable version label: 'stable'; expected a version number"},
    )


def test_an_unknown_output_is_asked_for(server):
    request = predict_request("affine", x=X)
    request.output_filter.append("z")
    code, text = refused(server, request)
    assert code is INVALID and "['total', 'y']" in text


def test_an_output_filter_selects(server):
    request = predict_request("affine", x=X)
    request.output_filter.append("total")
    with stub_of(server) as stub:
        assert list(stub.Predict(request, timeout=TIMEOUT).outputs) == ["total"]


def tensor(**fields):
    sizes = fields.pop("shape")
    proto = TensorProto(dtype=fields.pop("dtype", 1), **fields)
    for size in sizes:
        proto.tensor_shape.dim.add(size=size)
    return proto


@pytest.mark.parametrize(
    "proto",
    [
        tensor(shape=[1, 3], tensor_content=b"1234"),
        tensor(shape=[1, -3], float_val=[1.0]),
        tensor(shape=[1 << 40, 3], float_val=[1.0]),
        tensor(shape=[1, 3], float_val=[1.0, 2.0, 3.0, 4.0]),
        tensor(shape=[1 << 21, 3]),
        tensor(shape=[1 << 62, 1 << 62], float_val=[1.0]),
        tensor(shape=[1, 3], dtype=20, float_val=[1.0]),
        tensor(shape=[1, 3], dtype=99, float_val=[1.0]),
        tensor(shape=[1, 3], dtype=7, tensor_content=b"1234"),
        tensor(shape=[1, 3], dtype=6, int_val=[300, 1, 2]),
    ],
)
def test_a_tensor_is_crafted(server, proto):
    request = predict_request("affine")
    request.inputs["x"].CopyFrom(proto)
    assert refused(server, request)[0] is INVALID


def test_tensors_without_an_input_take_no_memory(server, monkeypatch):
    """Each of them could be a million times as large as its message."""
    monkeypatch.setattr(messages, "decoded", lambda name, proto: pytest.fail(name))
    request = predict_request("affine")
    for i in range(10_000):
        request.inputs[f"z{i:05}"].CopyFrom(tensor(shape=[1 << 20], dtype=2))
    code, text = refused(server, request)
    assert code is INVALID
    assert "missing: ['x']" in text and text.endswith("'z00009'] and 9990 more")


@pytest.mark.parametrize(
    ("values", "completed"),
    [([], [0, 0, 0]), ([4], [4, 4, 4]), ([1, 2], [1, 2, 2]), ([1, 2, 3], [1, 2, 3])],
)
def test_values_that_are_left_out(server, values, completed):
    request = predict_request("affine")
    request.inputs["x"].CopyFrom(tensor(shape=[1, 3], float_val=values))
    with stub_of(server) as stub:
        response = stub.Predict(request, timeout=TIMEOUT)
    np.testing.assert_array_equal(
        tf.make_ndarray(response.outputs["y"]), 2 * np.array([completed]) + 7
    )


def test_bytes_that_are_no_message(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        with pytest.raises(grpc.RpcError) as raised:
            call(b"\xff\xff\xff", timeout=TIMEOUT)
        assert raised.value.code() is INVALID
        with pytest.raises(grpc.RpcError) as raised:
            channel.unary_unary("/tensorflow.serving.PredictionService/Other")(b"", timeout=TIMEOUT)
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/v1/models/other:predict", {"instances": [[1, 2, 3]]}, 404, "Latest(other)"),
        ("/v1/models/affine/versions/8:predict", {"instances": [[1, 2, 3]]}, 404, "affine, 8"),
        (PATH, {"instances": [[1, 2, 3]], "signature_name": "none"}, 400, '"none" not found'),
        (PATH, {"instances": [[1, 2, 3]], "signature_name": 4}, 400, "signature_name"),
        (PATH, {"instances": [[1, 2]]}, 400, "received float32[1, 2]"),
        (PATH, {"instances": [[1, 2, 3], [4]]}, 400, "expected float32[?, 3]"),
        (PATH, {"instances": [["1", 2, 3]]}, 400, "text"),
        (PATH, {"instances": [[True, 2, 3]]}, 400, "true or false"),
        (PATH, {"instances": [[1e40, 2, 3]]}, 400, "too large"),
        (PATH, {"instances": [[None, 2, 3]]}, 400, "null"),
        (PATH, {"instances": [{"x": [1, 2, 3]}, {"z": [1, 2, 3]}]}, 400, "different inputs"),
        (PATH, {"instances": [{"x": [1, 2, 3]}, [1, 2, 3]]}, 400, "different inputs"),
        (PATH, {"instances": []}, 400, "at least one instance"),
        (PATH, {"inputs": {"z": [[1, 2, 3]]}}, 400, "missing: ['x']"),
        (PATH, {"instances": [[1, 2, 3]], "inputs": [[1, 2, 3]]}, 400, "both"),
        (PATH, {}, 400, "none"),
        (PATH, [1], 400, "received a list"),
        ("/v1/models/affine:classify", {"examples": [{"x": 1.0}]}, 400, "method_name"),
        ("/v1/models/affine:classify", {"examples": []}, 400, "at least one example"),
        ("/v1/models/affine:other", {}, 400, "Malformed request: POST"),
        ("/v1/models/other", None, 404, "any versions of model other"),
        ("/v1/models/affine/versions/8", None, 404, "version 8 of model affine"),
        (f"/v1/models/affine/versions/{(1 << 63) - 1}", None, 404, "version 9223372036854775807"),
        (f"/v1/models/affine/versions/{1 << 63}", None, 400, "a version of at most 92233720368"),
        ("/v1/models/affine:predict", None, 400, "Malformed request: GET"),
        ("/v1/models", None, 400, "Malformed request"),
        ("/other", None, 404, "Not Found"),
    ],
)
def test_requests_that_do_not_fit_by_rest(server, path, body, status, text):
    received, answer = rest(server, path, body)
    assert received == status
    assert text in answer["error"]


def post(server, body, path=PATH, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.rest_port, timeout=TIMEOUT)
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[" * 100_000, b'{"instances": ' + b"9" * 5000 + b"}"]
)
def test_a_body_that_is_no_json(server, body):
    status, answer = post(server, body)
    assert status == 400
    assert "expected" in answer["error"]


@pytest.mark.parametrize("depth", [32, 100, 900, 10_000])
@pytest.mark.parametrize("value", ["1", '"a"'])
def test_a_body_that_is_deep(server, depth, value):
    body = f'{{"instances": [1, {"[" * depth}{value}{"]" * depth}]}}'
    for path in (PATH, "/v1/models/affine:classify"):
        status, answer = post(server, body.encode(), path)
        assert (status, "expected" in answer["error"]) == (400, True)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 400 + ".5", "1e40", "9" * 400])
def test_a_number_that_is_too_large_is_not_infinite(server, number):
    assert post(server, f'{{"instances": [[1, {number}, 2]]}}'.encode())[0] == 400


def test_a_whole_number_is_not_rounded(server):
    """As by TensorFlow Serving: it may be an id, and the answer would be for another id."""
    for number, status in (("16777215", 200), ("16777217", 400), ("16777217.0", 200)):
        received, answer = post(server, f'{{"instances": [[1, 0.5, {number}]]}}'.encode())
        assert received == status, answer
    assert post(server, b'{"instances": [[1, 2, -16777217]]}')[0] == 400


def test_infinite_numbers_are_values(server):
    status, answer = post(server, b'{"instances": [[1, Infinity, 2]]}')
    assert status == 200
    assert answer["predictions"][0]["y"] == [9.0, float("inf"), 11.0]


def test_a_body_that_is_compressed(server):
    body = json.dumps({"instances": X.tolist()}).encode()
    assert post(server, gzip.compress(body), **{"Content-Encoding": "gzip"})[0] == 200
    assert post(server, body, **{"Content-Encoding": "gzip"})[0] == 400
    assert post(server, gzip.compress(body)[:-4], **{"Content-Encoding": "gzip"})[0] == 400
    assert post(server, body, **{"Content-Encoding": "br"})[0] == 415
    huge = gzip.compress(b" " * (2 << 20))
    assert post(server, huge, **{"Content-Encoding": "gzip"})[0] == 413


def test_requests_that_are_too_large(server):
    large = np.ones([1 << 18, 3], np.float32)
    assert refused(server, predict_request("affine", x=large))[0] is (
        grpc.StatusCode.RESOURCE_EXHAUSTED
    )
    # The size alone: a client that waits for the answer before it sends the body.
    with socket.create_connection(("127.0.0.1", server.rest_port), TIMEOUT) as connection:
        head = f"POST {PATH} HTTP/1.1\r\nContent-Length: 2000000\r\nExpect: 100-continue\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_a_body_without_a_length(server):
    with socket.create_connection(("127.0.0.1", server.rest_port), TIMEOUT) as connection:
        connection.sendall(f"POST {PATH} HTTP/1.1\r\n\r\n".encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 411 ")


def test_clients_that_hang(server):
    """More of them than there are threads for gRPC: the fixture's request is answered meanwhile."""
    calls = []
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        ends = threading.Event()

        def never():
            ends.wait(TIMEOUT)
            yield from ()

        stream = channel.stream_unary("/tensorflow.serving.PredictionService/Predict")
        calls = [stream.future(never(), timeout=TIMEOUT) for _ in range(8)]
        half = [socket.create_connection(("127.0.0.1", server.rest_port)) for _ in range(8)]
        try:
            for connection in half:
                connection.sendall(
                    f"POST {PATH} HTTP/1.1\r\nContent-Length: 100\r\n\r\n{{".encode()
                )
            with stub_of(server) as stub:
                assert stub.Predict(predict_request("affine", x=X), timeout=TIMEOUT).outputs
            assert rest(server, PATH, {"instances": X.tolist()})[0] == 200
        finally:
            ends.set()
            for call in calls:
                call.cancel()
            for connection in half:
                connection.close()


def test_half_requests_end(server, monkeypatch):
    monkeypatch.setattr(grpc_server, "_BODY", 0.2)
    monkeypatch.setattr(http_server, "_HEAD", 0.2)
    monkeypatch.setattr(http_server, "_IDLE", 0.2)
    ends = threading.Event()

    def never():
        ends.wait(TIMEOUT)
        yield from ()

    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stream = channel.stream_unary("/tensorflow.serving.PredictionService/Predict")
        call = stream.future(never(), timeout=TIMEOUT)
        assert call.exception(TIMEOUT).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "incomplete after" in call.details()
        ends.set()
    for half in ("", "GET /he", f"POST {PATH} HTTP/1.1\r\nContent-Length: 100\r\n\r\n{{"):
        with socket.create_connection(("127.0.0.1", server.rest_port), TIMEOUT) as connection:
            connection.sendall(half.encode())
            assert connection.recv(4096) == b""
