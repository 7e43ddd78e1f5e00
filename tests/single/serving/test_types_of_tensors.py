"""Values of every type pass through both protocols unchanged."""

from __future__ import annotations

import base64

import numpy as np
import pytest
import tensorflow as tf

from support.serving.clients import TIMEOUT, predict_request, rest, serving, stub_of
from support.serving.saved_models import EveryType, write_every_type

TEXTS = [["ä", ""], ["b", "c d"]]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "types"
    write_every_type(folder)
    with serving({"types": folder}) as server:
        yield server


def values_of(dtype: tf.DType) -> np.ndarray:
    """Two rows, with the extreme values of the type."""
    if dtype == tf.string:
        return np.array([[text.encode() for text in row] for row in TEXTS], object)
    if dtype == tf.bool:
        return np.array([[True, False], [False, True]])
    if dtype.is_floating:
        return np.array([[0.1, -2.5], [float(dtype.max), 0.0]]).astype(dtype.as_numpy_dtype)
    return np.array([[dtype.min, dtype.max], [1, 2]], dtype.as_numpy_dtype)


INPUTS = {dtype.name: values_of(dtype) for dtype in EveryType.TYPES}


@pytest.mark.parametrize("in_fields", [False, True])
def test_by_grpc(server, in_fields):
    request = predict_request("types", **INPUTS)
    if in_fields:
        for name, values in INPUTS.items():
            if name in ("uint32", "uint64"):
                continue
            proto = tf.compat.v1.make_tensor_proto(values.ravel()[:1], shape=[2, 2])
            assert not proto.tensor_content
            request.inputs[name].CopyFrom(proto)
    with stub_of(server) as stub:
        response = stub.Predict(request, timeout=TIMEOUT)
    for name, values in INPUTS.items():
        received = tf.make_ndarray(response.outputs[f"{name}_out"])
        sent = tf.make_ndarray(request.inputs[name])
        assert received.dtype == values.dtype
        assert received.tolist() == sent.tolist()
        assert not response.outputs[f"{name}_out"].tensor_content


def test_by_rest(server):
    columns = {n: v.astype(float if n == "bfloat16" else v.dtype) for n, v in INPUTS.items()}
    columns = {n: v.tolist() for n, v in columns.items() if n != "string"} | {"string": TEXTS}
    status, answer = rest(server, "/v1/models/types:predict", {"inputs": columns})
    assert status == 200, answer
    for name, values in INPUTS.items():
        received = answer["outputs"][f"{name}_out"]
        if name == "string":
            assert received == TEXTS
        else:
            assert np.array(received, values.dtype).tolist() == values.tolist()
    # Numbers are written as they are known to that type.
    assert answer["outputs"]["float32_out"][0] == [0.1, -2.5]
    encoded = [[base64.b64encode(t.encode()).decode() for t in row] for row in TEXTS]
    assert answer["outputs"]["raw_bytes"] == [[{"b64": text} for text in row] for row in encoded]
    # Bytes may be sent so, too.
    columns["string"] = [[{"b64": text} for text in row] for row in encoded]
    assert rest(server, "/v1/models/types:predict", {"inputs": columns}) == (200, answer)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("int8", 128),
        ("uint8", -1),
        ("int32", 1.5),
        ("int64", 1 << 63),
        ("bool", 1),
        ("float16", 7e4),
    ],
)
def test_values_that_no_type_holds(server, name, value):
    columns = {n: v.astype(float).tolist() for n, v in INPUTS.items() if "float" in n}
    columns |= {n: v.tolist() for n, v in INPUTS.items() if "float" not in n and n != "string"}
    columns |= {"string": TEXTS, name: [[value, value], [value, value]]}
    status, answer = rest(server, "/v1/models/types:predict", {"inputs": columns})
    assert status == 400
    assert name in answer["error"]
