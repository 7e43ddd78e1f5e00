"""Requests that a version answers before clients' requests, as TensorFlow Serving's warmup.

TensorFlow optimizes a function when it is first called, which takes longer than all later calls.
The writer of a SavedModel can put requests beside it, a TFRecord file of `PredictionLog`s:

    FOLDER/7/assets.extra/tf_serving_warmup_requests
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

from tfdist.serving.model_server.examples import serialized
from tfdist.serving.model_server.requests import DEFAULT_SIGNATURE
from tfdist.serving.model_server.saved_model import LoadedModel
from tfdist.serving.model_server.tensors import decoded

FILE = Path("assets.extra", "tf_serving_warmup_requests")
# As many as TensorFlow Serving takes.
_MAX_REQUESTS = 1000


def warm_up(model: LoadedModel, folder: Path) -> int:
    """Lets a version answer the requests beside its SavedModel; returns their number.

    Args:
      model: the version.
      folder: of the SavedModel.

    Raises:
      ValueError: the file has too many requests, or one of a kind that is not known.
      Exception: of any kind: the file is damaged, or a request does not fit.
    """
    if not (folder / FILE).is_file():
        return 0
    count = 0
    for record in tf.data.TFRecordDataset(str(folder / FILE)):
        count += 1
        if count > _MAX_REQUESTS:
            raise ValueError(f"{folder / FILE}: expected at most {_MAX_REQUESTS} requests")
        name, inputs = _request_in(model, PredictionLog.FromString(record.numpy()))
        model.signature(name).check(inputs)
        model.run(name, inputs)
    return count


def _request_in(model: LoadedModel, log: PredictionLog) -> tuple[str, Mapping[str, np.ndarray]]:
    """Returns the name of the signature, and its inputs."""
    kind = log.WhichOneof("log_type")
    if kind not in ("predict_log", "classify_log", "regress_log"):
        raise ValueError(
            f"{FILE}: expected logs of Predict, Classify or Regress, received {kind or 'none'}"
        )
    request = getattr(log, kind).request
    name = request.model_spec.signature_name or DEFAULT_SIGNATURE
    if kind == "predict_log":
        return name, {key: decoded(key, proto) for key, proto in request.inputs.items()}
    column = np.array(serialized(request.input), object)
    return name, {key: column for key in model.signature(name).inputs}
