"""Requests beside a SavedModel, which a version answers before it is available."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow_serving.apis import prediction_log_pb2

from support.serving.clients import predict_request
from support.serving.saved_models import write_affine, write_classifier
from tfdist.serving.model_server.call_error import CallError
from tfdist.serving.model_server.meters import Meters
from tfdist.serving.model_server.models import Models, ServedModel, Serving
from tfdist.serving.model_server.versions import NoModelError
from tfdist.serving.model_server.warmup import FILE, warm_up


def predict_log(**inputs):
    log = prediction_log_pb2.PredictionLog()
    log.predict_log.request.CopyFrom(predict_request("any", **inputs))
    return log


def classify_log(value, signature=""):
    log = prediction_log_pb2.PredictionLog()
    request = log.regress_log.request if signature else log.classify_log.request
    request.model_spec.signature_name = signature
    example = request.input.example_list.examples.add()
    example.features.feature["x"].float_list.value.append(value)
    return log


def write(folder, *logs):
    (folder / FILE).parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(folder / FILE)) as writer:
        for log in logs:
            writer.write(log if isinstance(log, bytes) else log.SerializeToString())


def loaded(folder, loader=lambda folder, tables: tf.saved_model.load(folder)):
    return ServedModel(folder, 1, loader, Serving(), lambda rows: None)


def test_every_request_is_answered(tmp_path, monkeypatch):
    calls = []
    run = ServedModel.run

    def counted(self, name, inputs):
        outputs = run(self, name, inputs)
        calls.append((name, sorted(outputs)))
        return outputs

    monkeypatch.setattr(ServedModel, "run", counted)
    folder = write_affine(tmp_path / "affine")
    assert warm_up(loaded(folder), folder) == 0
    write(folder, *[predict_log(x=np.ones([rows, 3], np.float32)) for rows in (1, 2)])
    assert warm_up(loaded(folder), folder) == 2
    assert calls == [("serving_default", ["total", "y"])] * 2
    write_classifier(tmp_path / "levels")
    folder = tmp_path / "levels" / "1"
    write(folder, classify_log(0.5), classify_log(0.5, "value"))
    assert warm_up(loaded(folder), folder) == 2
    assert calls[2:] == [("serving_default", ["classes", "scores"]), ("value", ["outputs"])]


def test_a_request_does_not_fit(tmp_path):
    folder = write_affine(tmp_path / "affine")
    for log, error, text in [
        (predict_log(x=np.ones([1, 2], np.float32)), CallError, "received float32"),
        (prediction_log_pb2.PredictionLog(), ValueError, "received none"),
        (b"no log", DecodeError, "parsing"),
    ]:
        write(folder, log)
        with pytest.raises(error, match=text):
            warm_up(loaded(folder), folder)
    (folder / FILE).write_bytes(b"no record" * 9)
    with pytest.raises(tf.errors.DataLossError):
        warm_up(loaded(folder), folder)
    write(folder, *[predict_log(x=np.ones([1, 3], np.float32))] * 1001)
    with pytest.raises(ValueError, match="at most 1000"):
        warm_up(loaded(folder), folder)


def test_a_version_that_cannot_be_warmed_up_is_left_out_and_freed(tmp_path):
    folder = write_affine(tmp_path / "affine")
    write(folder, prediction_log_pb2.PredictionLog())
    closed = []

    def loader(path, tables):
        model = tf.saved_model.load(path)
        model.close = lambda: closed.append(path)
        return model

    with pytest.raises(NoModelError, match="expected logs of Predict"):
        Models({"affine": tmp_path / "affine"}, loader, Serving(), Meters()).begin()
    assert closed == [str(folder)]
