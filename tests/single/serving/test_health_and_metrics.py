"""Health by both protocols, the metrics, and TLS."""

from __future__ import annotations

import shutil
import ssl
import threading
import urllib.error
import urllib.request
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf.wrappers_pb2 import Int32Value, StringValue
from prometheus_client.parser import text_string_to_metric_families
from tensorflow_serving.apis import prediction_service_pb2_grpc

from support.authority import Authority
from support.serving.clients import TIMEOUT, predict_request, rest, serving, stub_of
from support.serving.saved_models import write_affine
from tfdist.serving.model_server.server import Listening

X = np.ones([1, 3], np.float32)
SERVICES = ("", "tensorflow.serving.PredictionService", "tensorflow.serving.ModelService")
LABELS = ("model", "method", "code", "version")
SERVING, NOT_SERVING, UNKNOWN = 1, 2, 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "affine"
    write_affine(folder, 7)
    return folder


def text_of(server, path):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{server.rest_port}{path}", timeout=TIMEOUT) as answer:
        return answer.read().decode()


def health(channel, service):
    call = channel.unary_unary("/grpc.health.v1.Health/Check")
    return Int32Value.FromString(
        call(StringValue(value=service).SerializeToString(), timeout=TIMEOUT)
    ).value


def watched(channel, service):
    call = channel.unary_stream("/grpc.health.v1.Health/Watch")
    for body in call(StringValue(value=service).SerializeToString(), timeout=TIMEOUT):
        yield Int32Value.FromString(body).value


def test_health(folder):
    with (
        serving({"affine": folder}) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        assert [health(channel, name) for name in SERVICES] == [SERVING] * 3
        with pytest.raises(grpc.RpcError) as raised:
            health(channel, "other")
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND
        assert next(watched(channel, "other")) == UNKNOWN
        assert text_of(server, "/healthz") == "ok\n"
        assert text_of(server, "/readyz") == "ready\n"
        states = watched(channel, "")
        assert next(states) == SERVING
        # As `close` does first: a load balancer then sends its requests elsewhere.
        server._is_ending.set()
        assert next(states) == NOT_SERVING
        with pytest.raises(urllib.error.HTTPError, match="503"):
            text_of(server, "/readyz")
        assert text_of(server, "/healthz") == "ok\n"


def test_metrics(folder):
    with serving({"affine": folder}, max_batch=8) as server:
        with stub_of(server) as stub:
            stub.Predict(predict_request("affine", x=X), timeout=TIMEOUT)
            with pytest.raises(grpc.RpcError):
                stub.Predict(predict_request("affine", z=X), timeout=TIMEOUT)
        rest(server, "/v1/models/affine:predict", {"instances": X.tolist()})
        rest(server, "/v1/models/strange:predict", {"instances": X.tolist()})
        text = text_of(server, "/monitoring/prometheus/metrics")
        assert {f.name for f in text_string_to_metric_families(text_of(server, "/metrics"))} == {
            f.name for f in text_string_to_metric_families(text)
        }
    samples = {
        (sample.name, *map(sample.labels.get, LABELS)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    requests = {
        key[1:4]: v for key, v in samples.items() if key[0] == "tfdist_serving_requests_total"
    }
    assert requests == {
        ("affine", "predict", "OK"): 2,
        ("affine", "predict", "INVALID_ARGUMENT"): 1,
        # Names of strangers are no labels.
        ("", "predict", "NOT_FOUND"): 1,
    }
    assert samples["tfdist_serving_seconds_count", "affine", "predict", None, None] == 3
    assert samples["tfdist_serving_batch_rows_sum", "affine", None, None, None] == 2
    assert samples["tfdist_serving_version", "affine", None, None, "7"] == 1


def secure_stub(server, authority, *pair):
    credentials = grpc.ssl_channel_credentials(authority.file.read_bytes(), *pair)
    channel = grpc.secure_channel(f"127.0.0.1:{server.port}", credentials)
    return channel, prediction_service_pb2_grpc.PredictionServiceStub(channel)


def over_tls(server, authority, *pair):
    context = ssl.create_default_context(cafile=str(authority.file))
    if pair:
        context.load_cert_chain(*pair)
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    with opener.open(f"https://127.0.0.1:{server.rest_port}/readyz", timeout=TIMEOUT) as answer:
        return answer.read()


@pytest.mark.parametrize("wants_certificates", [False, True])
def test_tls(folder, tmp_path, wants_certificates):
    authority = Authority(tmp_path)
    tls, own = authority.issue("server"), authority.issue("client", ("client",))
    pair = [Path(path).read_bytes() for path in (own.key, own.certificate)]
    listening = Listening(tls=tls, wants_certificates=wants_certificates)
    with serving({"affine": folder}, listening) as server:
        channel, stub = secure_stub(server, authority, *pair)
        with channel:
            assert stub.Predict(predict_request("affine", x=X), timeout=TIMEOUT).outputs
        assert over_tls(server, authority, own.certificate, own.key) == b"ready\n"
        channel, stub = secure_stub(server, authority)
        with channel:
            if wants_certificates:
                with pytest.raises(grpc.RpcError):
                    stub.Predict(predict_request("affine", x=X), timeout=TIMEOUT)
                with pytest.raises(OSError):
                    over_tls(server, authority)
            else:
                assert stub.Predict(predict_request("affine", x=X), timeout=TIMEOUT).outputs
                assert over_tls(server, authority) == b"ready\n"
        with stub_of(server) as plain, pytest.raises(grpc.RpcError):
            plain.Predict(predict_request("affine", x=X), timeout=TIMEOUT)


def test_requests_in_progress_are_answered_at_the_end(folder):
    """The server closes while clients ask: each request is answered, or refused as a whole."""
    answers, errors = [], []
    begun = threading.Event()

    def ask():
        with stub_of(server) as stub:
            while True:
                try:
                    response = stub.Predict(predict_request("affine", x=X), timeout=TIMEOUT)
                except grpc.RpcError as error:
                    errors.append(error.code())
                    return
                answers.append(response.model_spec.version.value)
                begun.set()

    with serving({"affine": folder}) as server:
        client = threading.Thread(target=ask, daemon=True)
        client.start()
        assert begun.wait(TIMEOUT)
    client.join(TIMEOUT)
    assert set(answers) == {7}
    assert errors == [grpc.StatusCode.UNAVAILABLE]


def test_two_models(folder, tmp_path):
    other = tmp_path / "other"
    write_affine(other, 2)
    with serving({"affine": folder, "b": other}) as server:
        for name, version in (("affine", 7), ("b", 2)):
            body = {"inputs": [[0, 0, 0]]}
            answer = rest(server, f"/v1/models/{name}:predict", body)[1]["outputs"]
            assert answer["y"] == [[version] * 3]
        shutil.rmtree(other)
        assert text_of(server, "/readyz") == "ready\n"
