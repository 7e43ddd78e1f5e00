"""Requests of clients to the model server: `tfdist/serving/model_server`.

Input: a byte that selects the method, and the body, a message in protocol buffers or JSON. It is
answered, or refused with a CallError whose code is no error of the server; a body of REST brings
JSON. The arrays that a model gets fit its signature, and are not much larger than the body.
"""

import contextlib
import json
from types import SimpleNamespace

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    predict_pb2,
)

from tfdist.serving.model_server.call_error import CallError
from tfdist.serving.model_server.messages import MODEL_SERVICE, PREDICTION_SERVICE, Services
from tfdist.serving.model_server.meters import Meters
from tfdist.serving.model_server.models import Models, ServedModel
from tfdist.serving.model_server.rest import Rest
from tfdist.serving.model_server.signature import CLASSIFY, PREDICT, REGRESS, Signature
from tfdist.serving.model_server.versions import State, VersionState

_MAX_ELEMENTS = 1 << 20  # of an array whose values the message leaves out
_OF_THE_SERVER = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNAVAILABLE}


def _spec(dtype: tf.DType, *shape: int | None) -> tf.TensorSpec:
    return tf.TensorSpec(shape, dtype)


_EXAMPLES = {"inputs": _spec(tf.string, None)}
_SIGNATURES = [
    Signature(
        "serving_default",
        PREDICT,
        {
            "x": _spec(tf.float32, None, 2),
            "text": _spec(tf.string, None),
            "small": _spec(tf.int8, None),
            "half": _spec(tf.bfloat16, None),
        },
        {"y": _spec(tf.float32, None)},
    ),
    Signature("any", PREDICT, {"x": _spec(tf.float64, *())}, {"y": _spec(tf.float32, None)}),
    Signature(
        "classes",
        CLASSIFY,
        _EXAMPLES,
        {"classes": _spec(tf.string, None, 2), "scores": _spec(tf.float32, None, 2)},
    ),
    Signature("value", REGRESS, _EXAMPLES, {"outputs": _spec(tf.float32, None)}),
]


class _Model(ServedModel):
    """Checks its inputs, and returns zeros."""

    def __init__(self) -> None:
        self.version = 1
        self.definitions = {}
        self.signatures = {signature.name: signature for signature in _SIGNATURES}
        self._functions = self.signatures
        self.max_elements = 0

    def answer(self, signature: Signature, inputs: dict, deadline: float) -> dict:
        for name, spec in signature.inputs.items():
            assert spec.shape.is_compatible_with(inputs[name].shape)
            assert inputs[name].size <= self.max_elements, (name, inputs[name].shape)
            tf.constant(inputs[name], spec.dtype)
        rows = max((v.shape[0] for v in inputs.values() if v.ndim), default=1)
        return {
            name: np.full(
                [rows if size is None else size for size in spec.shape],
                b"" if spec.dtype == tf.string else 0,
                object if spec.dtype == tf.string else spec.dtype.as_numpy_dtype,
            )
            for name, spec in signature.outputs.items()
        }


_MODEL = _Model()
_MODELS = Models({}, lambda folder, tables: None, None, Meters())
_MODELS._versions["m"] = SimpleNamespace(
    lease=lambda version: contextlib.nullcontext(_MODEL),
    states=lambda: [VersionState(1, State.AVAILABLE)],
)
_SERVICES = Services(_MODELS).methods()
_METHODS = [*_SERVICES[PREDICTION_SERVICE].values(), *_SERVICES[MODEL_SERVICE].values()]
_PATHS = ["predict", "classify", "regress"]
_REST = Rest(_MODELS)


def run(data: bytes) -> None:
    method, body = (data[0] if data else 0) % (len(_METHODS) + len(_PATHS)), data[1:]
    _MODEL.max_elements = max(_MAX_ELEMENTS, len(body))
    if method < len(_METHODS):
        try:
            assert isinstance(_METHODS[method](body, float("inf")), bytes)
        except CallError as error:
            assert error.code not in _OF_THE_SERVER, error
        return
    path = f"/v1/models/m:{_PATHS[method - len(_METHODS)]}"
    reply = _REST.reply("POST", path, body)
    assert reply.status < 500 or reply.status == 501, reply
    answer = json.loads(reply.body)
    assert ("error" in answer) == (reply.status != 200)


def _predict() -> bytes:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "m"
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(np.ones([2, 2], np.float32)))
    request.inputs["text"].CopyFrom(tf.make_tensor_proto([b"a", b"bc"]))
    request.inputs["small"].CopyFrom(tf.make_tensor_proto([1, 2], tf.int8))
    half = request.inputs["half"]
    half.dtype = tf.bfloat16.as_datatype_enum
    half.half_val.append(16000)
    half.tensor_shape.dim.add(size=2)
    request.output_filter.append("y")
    return request.SerializeToString()


def _classify(signature: str) -> bytes:
    request = classification_pb2.ClassificationRequest()
    request.model_spec.name, request.model_spec.signature_name = "m", signature
    part = request.input.example_list_with_context
    part.context.features.feature["a"].int64_list.value.append(3)
    part.examples.add().features.feature["b"].float_list.value.append(0.5)
    return request.SerializeToString()


def _multi() -> bytes:
    request = inference_pb2.MultiInferenceRequest()
    for name, method in (("classes", CLASSIFY), ("value", REGRESS)):
        task = request.tasks.add(method_name=method)
        task.model_spec.name, task.model_spec.signature_name = "m", name
    request.input.example_list.examples.add()
    return request.SerializeToString()


def seeds() -> list[bytes]:
    metadata = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    metadata.model_spec.name = "m"
    status = get_model_status_pb2.GetModelStatusRequest()
    status.model_spec.name = "m"
    status.model_spec.version.value = 1
    row = {"x": [1, 2.5], "text": {"b64": "YQ=="}, "small": -128, "half": 0.5}
    columns = {"x": [[1, 2]], "text": ["a"], "small": [3], "half": [1e5]}
    examples = {"context": {"a": 1}, "examples": [{"b": [1.5, 2]}, {"c": "text"}]}
    bodies = [
        *(_predict(), _classify("classes"), _classify("value"), _multi()),
        *(metadata.SerializeToString(), status.SerializeToString(), b""),
        json.dumps({"instances": [row, row]}).encode(),
        json.dumps({"signature_name": "classes", **examples}).encode(),
        json.dumps({"signature_name": "value", **examples}).encode(),
    ]
    assert len(bodies) == len(_METHODS) + len(_PATHS)
    more = [
        json.dumps({"inputs": columns}).encode(),
        json.dumps({"signature_name": "any", "inputs": float("inf")}).encode(),
        b'{"instances": [[1, "a", {"b64": "%"}, null, true]]}',
    ]
    return [
        *(bytes([number]) + body for number, body in enumerate(bodies)),
        *(bytes([len(_METHODS)]) + body for body in more),
    ]
