"""Classify, Regress and MultiInference, and what a model says about itself."""

from __future__ import annotations

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    input_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    regression_pb2,
)

from support.serving.clients import TIMEOUT, predict_request, rest, serving, stub_of
from support.serving.saved_models import write_classifier

VALUES = [0.25, 0.75]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "levels"
    write_classifier(folder, 3)
    with serving({"levels": folder}) as server:
        yield server


def example(**features: float) -> tf.train.Example:
    whole = tf.train.Example()
    for name, value in features.items():
        whole.features.feature[name].float_list.value.append(value)
    return whole


def examples() -> input_pb2.Input:
    return input_pb2.Input(
        example_list=input_pb2.ExampleList(examples=[example(x=v) for v in VALUES])
    )


def test_classify(server):
    request = classification_pb2.ClassificationRequest(input=examples())
    request.model_spec.name = "levels"
    with stub_of(server) as stub:
        result = stub.Classify(request, timeout=TIMEOUT).result
    received = [[(c.label, c.score) for c in row.classes] for row in result.classifications]
    assert received == [[("low", 1 - v), ("high", v)] for v in VALUES]
    body = {"examples": [{"x": v} for v in VALUES]}
    assert rest(server, "/v1/models/levels:classify", body) == (
        200,
        {"results": [[["low", 1 - v], ["high", v]] for v in VALUES]},
    )


def test_regress_with_a_context(server):
    context = input_pb2.ExampleListWithContext(
        context=example(x=0.5), examples=[example(), example(x=0.25)]
    )
    request = regression_pb2.RegressionRequest(
        input=input_pb2.Input(example_list_with_context=context)
    )
    request.model_spec.name, request.model_spec.signature_name = "levels", "value"
    with stub_of(server) as stub:
        response = stub.Regress(request, timeout=TIMEOUT)
    assert [r.value for r in response.result.regressions] == [5.0, 2.5]
    assert response.model_spec.version.value == 3
    body = {"signature_name": "value", "context": {"x": 0.5}, "examples": [{"y": "a"}, {"x": 0.25}]}
    assert rest(server, "/v1/models/levels/versions/3:regress", body) == (
        200,
        {"results": [5.0, 2.5]},
    )


def test_multi_inference(server):
    request = inference_pb2.MultiInferenceRequest(input=examples())
    for name, method in (("serving_default", "classify"), ("value", "regress")):
        task = request.tasks.add(method_name=f"tensorflow/serving/{method}")
        task.model_spec.name, task.model_spec.signature_name = "levels", name
    with stub_of(server) as stub:
        classes, values = stub.MultiInference(request, timeout=TIMEOUT).results
        request.tasks[0].method_name = "tensorflow/serving/predict"
        with pytest.raises(grpc.RpcError) as raised:
            stub.MultiInference(request, timeout=TIMEOUT)
    assert [r.classes[1].score for r in classes.classification_result.classifications] == VALUES
    assert [r.value for r in values.regression_result.regressions] == [2.5, 7.5]
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("name", ["", "serving_default"])
def test_multi_inference_calls_each_signature_once(server, name, monkeypatch):
    """Else a small request would make any number of calls of the model."""
    request = inference_pb2.MultiInferenceRequest(input=examples())
    for signature in ("value", "serving_default", name):
        method = "regress" if signature == "value" else "classify"
        task = request.tasks.add(method_name=f"tensorflow/serving/{method}")
        task.model_spec.name, task.model_spec.signature_name = "levels", signature
    monkeypatch.setattr(server._models, "infer", lambda *_: pytest.fail("the model is called"))
    with stub_of(server) as stub, pytest.raises(grpc.RpcError) as raised:
        stub.MultiInference(request, timeout=TIMEOUT)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert raised.value.details() == (
        "expected each signature at most once in a MultiInferenceRequest, received "
        "'serving_default' again"
    )


def test_predict_with_serialized_examples(server):
    inputs = np.array([example(x=v).SerializeToString() for v in VALUES], object)
    with stub_of(server) as stub:
        response = stub.Predict(predict_request("levels", inputs=inputs), timeout=TIMEOUT)
    assert list(response.outputs["classes"].string_val) == [b"low", b"high"] * 2


def test_a_model_refuses_its_input(server):
    """An error of the model's own operations has their code, and is no error of the server."""
    inputs = np.array([b"no example"], object)
    with stub_of(server) as stub, pytest.raises(grpc.RpcError) as raised:
        stub.Predict(predict_request("levels", inputs=inputs), timeout=TIMEOUT)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    status, answer = rest(server, "/v1/models/levels:classify", {"examples": [{"x": "text"}]})
    assert status == 400
    assert "x" in answer["error"]
    assert rest(server, "/v1/models/levels:regress", {"examples": [{"x": 1.0}]})[0] == 400


def test_an_unknown_signature_has_another_code_than_for_predict(server):
    request = regression_pb2.RegressionRequest(input=examples())
    request.model_spec.name, request.model_spec.signature_name = "levels", "none"
    with stub_of(server) as stub, pytest.raises(grpc.RpcError) as raised:
        stub.Regress(request, timeout=TIMEOUT)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_values_of_examples(server):
    """Truth values are whole numbers, as in TensorFlow Serving; none is rounded to infinity."""
    path = "/v1/models/levels:regress"
    for value, status, text in (
        (True, 400, "x"),  # the model's own refusal of int64
        ([True, 1], 400, "x"),
        (None, 400, "received ['NoneType']"),
        (1e39, 400, "float32"),
    ):
        body = {"signature_name": "value", "examples": [{"x": value}]}
        received, answer = rest(server, path, body)
        assert received == status and text in answer["error"], answer
    body = {"signature_name": "value", "examples": [{"x": float("inf")}]}
    assert rest(server, path, body) == (200, {"results": [float("inf")]})


def test_metadata(server):
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "levels"
    with stub_of(server) as stub:
        response = stub.GetModelMetadata(request, timeout=TIMEOUT)
        request.metadata_field.append("other")
        with pytest.raises(grpc.RpcError) as raised:
            stub.GetModelMetadata(request, timeout=TIMEOUT)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(signatures)
    assert set(signatures.signature_def) == {"serving_default", "value"}
    assert response.model_spec.version.value == 3
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    status, answer = rest(server, "/v1/models/levels/metadata")
    assert status == 200
    assert answer["model_spec"] == {"name": "levels", "signature_name": "", "version": "3"}
    value = answer["metadata"]["signature_def"]["signature_def"]["value"]
    assert value["method_name"] == "tensorflow/serving/regress"
    assert value["inputs"]["inputs"]["tensor_shape"] == {
        "dim": [{"size": "-1", "name": ""}],
        "unknown_rank": False,
    }


def test_status(server):
    available = {
        "version": "3",
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    for path in ("/v1/models/levels", "/v1/models/levels/versions/3"):
        assert rest(server, path) == (200, {"model_version_status": [available]})
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "levels"
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = model_service_pb2_grpc.ModelServiceStub(channel)
        (status,) = stub.GetModelStatus(request, timeout=TIMEOUT).model_version_status
        with pytest.raises(grpc.RpcError) as raised:
            stub.HandleReloadConfigRequest(
                model_management_pb2.ReloadConfigRequest(), timeout=TIMEOUT
            )
    assert (status.version, status.state) == (3, get_model_status_pb2.ModelVersionStatus.AVAILABLE)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
