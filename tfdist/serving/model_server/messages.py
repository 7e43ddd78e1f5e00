"""TensorFlow Serving's requests and answers in protocol buffers.

Each method takes the bytes of a request and returns the bytes of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import grpc
import numpy as np
from google.protobuf.message import DecodeError, Message
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_pb2,
    predict_pb2,
    regression_pb2,
)

from tfdist.serving.model_server.call_error import CallError, invalid
from tfdist.serving.model_server.examples import classes_of, serialized, values_of
from tfdist.serving.model_server.models import Models
from tfdist.serving.model_server.requests import Answer, Asked
from tfdist.serving.model_server.saved_model import LoadedModel
from tfdist.serving.model_server.signature import CLASSIFY, REGRESS, Signature
from tfdist.serving.model_server.tensors import decoded, encoded
from tfdist.serving.model_server.versions import VersionState

PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
MODEL_SERVICE = "tensorflow.serving.ModelService"
# Takes a request's bytes and the time until which its client waits.
Method = Callable[[bytes, float], bytes]
_Message = TypeVar("_Message", bound=Message)


class Services:
    """The methods of both services.

    Args:
      models: answer the requests.
    """

    def __init__(self, models: Models) -> None:
        self._models = models

    def methods(self) -> dict[str, dict[str, Method]]:
        """Returns the methods by service and name."""
        return {
            PREDICTION_SERVICE: {
                "Predict": self.predict,
                "Classify": self.classify,
                "Regress": self.regress,
                "MultiInference": self.multi_inference,
                "GetModelMetadata": self.metadata,
            },
            MODEL_SERVICE: {
                "GetModelStatus": self.status,
                "HandleReloadConfigRequest": self.reload,
            },
        }

    def predict(self, body: bytes, deadline: float) -> bytes:
        """Answers Predict."""
        request = _parsed(predict_pb2.PredictRequest, body)
        asked = _asked(request.model_spec)

        def inputs(signature: Signature) -> dict[str, np.ndarray]:
            # First: each tensor may be larger than its message.
            signature.check_names(request.inputs)
            return {name: decoded(name, proto) for name, proto in request.inputs.items()}

        answer = self._models.predict(asked, inputs, request.output_filter, deadline)
        response = predict_pb2.PredictResponse(model_spec=_spec(asked, answer))
        for name, values in answer.outputs.items():
            spec = answer.signature.outputs[name]
            response.outputs[name].CopyFrom(encoded(values, spec.dtype))
        return response.SerializeToString()

    def classify(self, body: bytes, deadline: float) -> bytes:
        """Answers Classify."""
        request = _parsed(classification_pb2.ClassificationRequest, body)
        asked, answer = self._infer(request, CLASSIFY, deadline)
        response = classification_pb2.ClassificationResponse(model_spec=_spec(asked, answer))
        _add_classes(response.result, answer)
        return response.SerializeToString()

    def regress(self, body: bytes, deadline: float) -> bytes:
        """Answers Regress."""
        request = _parsed(regression_pb2.RegressionRequest, body)
        asked, answer = self._infer(request, REGRESS, deadline)
        response = regression_pb2.RegressionResponse(model_spec=_spec(asked, answer))
        _add_values(response.result, answer)
        return response.SerializeToString()

    def multi_inference(self, body: bytes, deadline: float) -> bytes:
        """Answers MultiInference: several signatures of one model for the same examples."""
        request = _parsed(inference_pb2.MultiInferenceRequest, body)
        response = inference_pb2.MultiInferenceResponse()
        if not request.tasks:
            raise invalid("Inference request must have at least one task")
        if len({task.model_spec.name for task in request.tasks}) > 1:
            raise invalid(
                "All ModelSpecs in a MultiInferenceRequest must access the same model name"
            )
        tasks: dict[str, tuple[Asked, str]] = {}
        for task in request.tasks:
            asked = _asked(task.model_spec)
            if task.method_name not in (CLASSIFY, REGRESS):
                raise CallError(
                    grpc.StatusCode.UNIMPLEMENTED,
                    f"Unsupported signature method_name: expected {CLASSIFY} or {REGRESS}, "
                    f"received {task.method_name!r}",
                )
            if asked.signature_name in tasks:
                # Else a small request could make any number of calls.
                raise invalid(
                    "expected each signature at most once in a MultiInferenceRequest, received "
                    f"{asked.signature_name!r} again"
                )
            tasks[asked.signature_name] = asked, task.method_name
        examples = serialized(request.input)
        for asked, method in tasks.values():
            answer = self._models.infer(asked, method, examples, deadline)
            result = response.results.add(model_spec=_spec(asked, answer))
            if method == CLASSIFY:
                _add_classes(result.classification_result, answer)
            else:
                _add_values(result.regression_result, answer)
        return response.SerializeToString()

    def metadata(self, body: bytes, deadline: float) -> bytes:
        """Answers GetModelMetadata."""
        request = _parsed(get_model_metadata_pb2.GetModelMetadataRequest, body)
        asked = _asked(request.model_spec)
        fields = list(request.metadata_field)
        if not fields:
            raise invalid("GetModelMetadataRequest must specify at least one metadata_field")
        unknown = [field for field in fields if field != "signature_def"]
        if unknown:
            raise invalid(f"Metadata field {unknown[0]} is not supported; expected signature_def")
        with self._models.lease(asked) as model:
            response = get_model_metadata_pb2.GetModelMetadataResponse()
            response.model_spec.name = asked.model
            response.model_spec.version.value = model.version
            response.metadata["signature_def"].Pack(signatures_of(model))
        return response.SerializeToString()

    def status(self, body: bytes, deadline: float) -> bytes:
        """Answers GetModelStatus."""
        request = _parsed(get_model_status_pb2.GetModelStatusRequest, body)
        asked = _asked(request.model_spec)
        if asked.label:
            raise invalid(f"Unrecognized servable version label: {asked.label}")
        return status_of(self._models.states(asked.model, asked.version)).SerializeToString()

    def reload(self, body: bytes, deadline: float) -> bytes:
        """Refuses HandleReloadConfigRequest: the command names the models."""
        raise CallError(
            grpc.StatusCode.UNIMPLEMENTED,
            "expected the models as arguments of 'tfdist serve', received a request to change "
            "them; new versions are found in the models' folders",
        )

    def _infer(self, request: Message, method: str, deadline: float) -> tuple[Asked, Answer]:
        asked = _asked(request.model_spec)
        return asked, self._models.infer(asked, method, serialized(request.input), deadline)


def signatures_of(model: LoadedModel) -> get_model_metadata_pb2.SignatureDefMap:
    """Returns the signatures of a version."""
    return get_model_metadata_pb2.SignatureDefMap(signature_def=model.definitions)


def status_of(
    states: Iterable[VersionState],
) -> get_model_status_pb2.GetModelStatusResponse:
    """Returns the states of a model's versions."""
    response = get_model_status_pb2.GetModelStatusResponse()
    for state in states:
        code = grpc.StatusCode.UNKNOWN if state.problem else grpc.StatusCode.OK
        status = response.model_version_status.add(version=state.version, state=state.state.value)
        status.status.error_code = code.value[0]
        status.status.error_message = state.problem
    return response


def _parsed(kind: type[_Message], body: bytes) -> _Message:
    try:
        return kind.FromString(body)
    except DecodeError as error:
        raise invalid(
            f"expected a {kind.DESCRIPTOR.full_name}, received other bytes: {error}"
        ) from None


def _asked(spec: model_pb2.ModelSpec) -> Asked:
    if not spec.name:
        raise invalid("Missing ModelSpec: expected the name of a model")
    version = spec.version.value if spec.HasField("version") else None
    return Asked(spec.name, version, spec.version_label, spec.signature_name)


def _spec(asked: Asked, answer: Answer) -> model_pb2.ModelSpec:
    spec = model_pb2.ModelSpec(name=asked.model, signature_name=asked.signature_name)
    spec.version.value = answer.version
    return spec


def _add_classes(result: classification_pb2.ClassificationResult, answer: Answer) -> None:
    for labels in classes_of(answer):
        classification = result.classifications.add()
        for label, score in labels:
            classification.classes.add(label=label, score=score)


def _add_values(result: regression_pb2.RegressionResult, answer: Answer) -> None:
    for value in values_of(answer):
        result.regressions.add(value=value)
