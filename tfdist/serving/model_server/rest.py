"""TensorFlow Serving's REST paths below /v1/models, whichever server has received the request."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import urllib.parse
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import json_format

from tfdist.serving.model_server.call_error import CallError, invalid
from tfdist.serving.model_server.examples import classes_of, joined, values_of
from tfdist.serving.model_server.json_values import (
    Constant,
    array_of,
    bytes_of,
    encoded,
    is_bytes,
    is_too_large,
    json_of,
    rows_of,
    utf8_of,
)
from tfdist.serving.model_server.messages import signatures_of, status_of
from tfdist.serving.model_server.models import Models
from tfdist.serving.model_server.requests import Answer, Asked
from tfdist.serving.model_server.signature import CLASSIFY, REGRESS, Signature
from tfdist.serving.model_server.versions import MAX_VERSION

# Without a version: the newest one.
_MODEL = (
    r"/v1/models/(?P<model>[^/:]+)(?:/versions/(?P<version>[0-9]{1,19})|/labels/(?P<label>[^/:]+))?"
)
_CALL = re.compile(_MODEL + r":(?P<method>predict|classify|regress)", re.IGNORECASE)
_METADATA = re.compile(_MODEL + "/metadata", re.IGNORECASE)
_STATUS = re.compile(_MODEL, re.IGNORECASE)
# The argument for fields with default values, which protobuf 5 has given another name.
_WITH_DEFAULTS = next(
    name
    for name in ("always_print_fields_with_no_presence", "including_default_value_fields")
    if name in inspect.signature(json_format.MessageToJson).parameters
)


@dataclasses.dataclass(frozen=True)
class Reply:
    """The answer to a request.

    Args:
      status: of HTTP.
      body: the answer.
      kind: the body's media type.
    """

    status: HTTPStatus
    body: bytes
    kind: str = "application/json"


def error_reply(status: HTTPStatus, text: str) -> Reply:
    """Returns the reply to a request that cannot be answered."""
    return Reply(status, json.dumps({"error": text}).encode())


class Rest:
    """Answers requests.

    Args:
      models: compute the answers.
    """

    def __init__(self, models: Models) -> None:
        self._models = models

    def reply(self, method: str, path: str, body: bytes) -> Reply:
        """Answers a request.

        Args:
          method: "GET" or "POST".
          path: without a query.
          body: of a POST.
        """
        try:
            return Reply(HTTPStatus.OK, encoded(self._answer(method, path, body)))
        except CallError as error:
            return error_reply(error.status, str(error))

    def _answer(self, method: str, path: str, body: bytes) -> object:
        if method == "POST" and (found := _CALL.fullmatch(path)):
            request = _parsed(body)
            asked = _asked(found, _text_in(request, "signature_name"))
            method = found["method"].lower()
            if method == "predict":
                return self._predict(asked, request)
            return self._infer(asked, method, request)
        if method == "GET" and (found := _METADATA.fullmatch(path)):
            return self._metadata(_asked(found))
        if method == "GET" and (found := _STATUS.fullmatch(path)):
            return self._status(_asked(found))
        raise invalid(f"Malformed request: {method} {path}")

    def _predict(self, asked: Asked, request: Mapping[str, object]) -> object:
        has_rows = "instances" in request
        if has_rows == ("inputs" in request):
            raise invalid(
                'expected either "instances" or "inputs" in the request, received '
                f"{'both' if has_rows else 'none'}"
            )

        def read(signature: Signature) -> dict[str, np.ndarray]:
            if has_rows:
                return _of_rows(signature, request["instances"])
            return _of_columns(signature, request["inputs"])

        answer = self._models.predict(asked, read)
        return _rows(answer) if has_rows else _columns(answer)

    def _infer(self, asked: Asked, method: str, request: Mapping[str, object]) -> object:
        examples = [example.SerializeToString() for example in _examples(request)]
        kind = CLASSIFY if method == "classify" else REGRESS
        answer = self._models.infer(asked, kind, examples)
        if kind == REGRESS:
            return {"results": values_of(answer)}
        return {"results": [[list(pair) for pair in row] for row in classes_of(answer)]}

    def _metadata(self, asked: Asked) -> object:
        with self._models.lease(asked) as model:
            signatures = _object(signatures_of(model))
            spec = {"name": asked.model, "signature_name": "", "version": str(model.version)}
        return {"model_spec": spec, "metadata": {"signature_def": signatures}}

    def _status(self, asked: Asked) -> object:
        if asked.label:
            raise invalid(f"Unrecognized servable version label: {asked.label}")
        states = status_of(self._models.states(asked.model, asked.version))
        return {
            "model_version_status": [
                {
                    "version": str(state.version),
                    "state": type(state).State.Name(state.state),
                    "status": {
                        "error_code": "UNKNOWN" if state.status.error_code else "OK",
                        "error_message": state.status.error_message,
                    },
                }
                for state in states.model_version_status
            ]
        }


def _parsed(body: bytes) -> Mapping[str, object]:
    try:
        request = json.loads(body, parse_constant=Constant)
    except (ValueError, RecursionError) as error:
        raise invalid(f"JSON Parse error: expected an object in JSON: {error}") from None
    if not isinstance(request, dict):
        raise invalid(f"expected an object in JSON, received a {type(request).__name__}")
    return request


def _asked(found: re.Match[str], signature: str = "") -> Asked:
    version = None if found["version"] is None else int(found["version"])
    if version is not None and version > MAX_VERSION:
        raise invalid(f"expected a version of at most {MAX_VERSION}, received {version}")
    model, label = (urllib.parse.unquote(found[part] or "") for part in ("model", "label"))
    return Asked(model, version, label, signature)


def _text_in(request: Mapping[str, object], key: str) -> str:
    value = request.get(key, "")
    if not isinstance(value, str):
        raise invalid(f"{key!r}: expected a text, received a {type(value).__name__}")
    return value


def _of_columns(signature: Signature, columns: object) -> dict[str, np.ndarray]:
    if not isinstance(columns, dict) or is_bytes(columns):
        columns = {_only_input(signature, "inputs"): columns}
    return _arrays(signature, columns)


def _of_rows(signature: Signature, rows: object) -> dict[str, np.ndarray]:
    if not isinstance(rows, list) or not rows:
        raise invalid('"instances": expected a list of at least one instance')
    named = [isinstance(row, dict) and not is_bytes(row) for row in rows]
    if not any(named):
        return _arrays(signature, {_only_input(signature, "instances"): rows})
    names = rows[0].keys() if named[0] else set()
    for row, is_named in zip(rows, named, strict=True):
        if not is_named or row.keys() != names:
            raise invalid(
                f'"instances": expected the inputs {sorted(signature.inputs)} in each instance, '
                f"received instances with different inputs"
            )
    return _arrays(signature, {name: [row[name] for row in rows] for name in names})


def _arrays(signature: Signature, columns: Mapping[str, object]) -> dict[str, np.ndarray]:
    signature.check_names(columns)
    return {n: array_of(n, values, signature.inputs[n]) for n, values in columns.items()}


def _only_input(signature: Signature, key: str) -> str:
    if len(signature.inputs) != 1:
        raise invalid(
            f"{key!r}: expected the inputs {sorted(signature.inputs)} by name, received values "
            "without names"
        )
    (name,) = signature.inputs
    return name


def _rows(answer: Answer) -> object:
    count = rows_of(answer.outputs, answer.outputs)
    values = {name: json_of(name, output) for name, output in answer.outputs.items()}
    if len(values) == 1:
        (only,) = values.values()
        return {"predictions": only}
    rows = [{name: column[i] for name, column in values.items()} for i in range(count)]
    return {"predictions": rows}


def _columns(answer: Answer) -> object:
    values = {name: json_of(name, output) for name, output in answer.outputs.items()}
    return {"outputs": next(iter(values.values())) if len(values) == 1 else values}


def _examples(request: Mapping[str, object]) -> list[tf.train.Example]:
    given = request.get("examples")
    if not isinstance(given, list) or not given:
        raise invalid('"examples": expected a list of at least one example')
    context = _example("context", request.get("context", {}))
    return [joined(context, _example("examples", one)) for one in given]


def _example(where: str, features: object) -> tf.train.Example:
    if not isinstance(features, dict):
        raise invalid(f"{where!r}: expected objects with a value for each feature")
    example = tf.train.Example()
    for name, value in features.items():
        utf8_of(name, name)
        values = value if isinstance(value, list) else [value]
        _fill(example.features.feature[name], name, values)
    return example


def _fill(feature: tf.train.Feature, name: str, values: list[Any]) -> None:
    kinds = {float if kind is Constant else kind for kind in map(type, values)}
    if kinds and all(isinstance(value, str) or is_bytes(value) for value in values):
        feature.bytes_list.value.extend(
            utf8_of(name, v) if isinstance(v, str) else bytes_of(name, v) for v in values
        )
    elif kinds and kinds <= {int, bool}:
        try:
            feature.int64_list.value.extend(map(int, values))
        except ValueError as error:
            raise invalid(f"feature {name!r}: expected int64: {error}") from None
    elif kinds and kinds <= {int, float}:
        if any(is_too_large(value) for value in values):
            raise invalid(f"feature {name!r}: expected numbers of float32, received a larger one")
        feature.float_list.value.extend(values)
    elif kinds:
        names = sorted(kind.__name__ for kind in kinds)
        raise invalid(f"feature {name!r}: expected numbers or texts, received {names}")


def _object(message: object) -> object:
    """Returns a message for JSON with all of its fields, by the names of the protocol."""
    text = json_format.MessageToJson(
        message, preserving_proto_field_name=True, **{_WITH_DEFAULTS: True}
    )
    return json.loads(text)
