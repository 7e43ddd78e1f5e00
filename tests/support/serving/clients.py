"""Clients of a model server, made like the clients of TensorFlow Serving."""

from __future__ import annotations

import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from tfdist.serving.model_server.models import Serving
from tfdist.serving.model_server.server import Listening, ModelServer

TIMEOUT = 20.0  # s
# A proxy of the environment is not to be asked for the server.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@contextlib.contextmanager
def serving(folders: dict[str, Path], listening: Listening | None = None, **options: Any):
    """A server of models in this process."""
    server = ModelServer(
        folders,
        lambda folder, tables: tf.saved_model.load(folder),
        Serving(**{"period": 0.05, **options}),
        listening or Listening(),
    )
    try:
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def stub_of(server: ModelServer) -> Iterator[prediction_service_pb2_grpc.PredictionServiceStub]:
    """A stub of the package tensorflow-serving-api."""
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield prediction_service_pb2_grpc.PredictionServiceStub(channel)


def predict_request(
    model: str, version: int | None = None, signature: str = "", **inputs: np.ndarray
) -> predict_pb2.PredictRequest:
    """A request with the inputs by name."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    if version is not None:
        request.model_spec.version.value = version
    for name, values in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(values))
    return request


def rest(server: ModelServer, path: str, body: Any = None) -> tuple[int, Any]:
    """The status and the JSON of an answer; a body makes it a POST."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{server.rest_port}{path}", data)
    try:
        with _OPENER.open(request, timeout=TIMEOUT) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())
