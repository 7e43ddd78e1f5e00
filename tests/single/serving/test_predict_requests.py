"""Predict, by gRPC with TensorFlow Serving's own stubs and by REST."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from support.serving.clients import TIMEOUT, predict_request, rest, serving, stub_of
from support.serving.saved_models import write_affine

X = np.array([[1.0, 2.0, 3.0], [0.5, 0.25, -1.0]], np.float32)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "affine"
    write_affine(folder, 7)
    with serving({"affine": folder}) as server:
        yield server


def test_predict_by_grpc(server):
    with stub_of(server) as stub:
        response = stub.Predict(predict_request("affine", x=X), timeout=TIMEOUT)
    np.testing.assert_array_equal(tf.make_ndarray(response.outputs["y"]), 2 * X + 7)
    # Clients read the field of the type by its name.
    assert list(response.outputs["total"].float_val) == (2 * X + 7).sum(1).tolist()
    assert response.model_spec.version.value == 7
    assert response.model_spec.signature_name == "serving_default"


def test_predict_by_rest(server):
    rows = (2 * X + 7).tolist()
    status, answer = rest(server, "/v1/models/affine:predict", {"instances": X.tolist()})
    assert status == 200
    assert answer == {"predictions": [{"y": row, "total": sum(row)} for row in rows]}
    status, answer = rest(
        server, "/v1/models/affine/versions/7:predict", {"inputs": {"x": X.tolist()}}
    )
    assert status == 200
    assert answer == {"outputs": {"y": rows, "total": [sum(row) for row in rows]}}
