"""The one error of a request, with the codes that TensorFlow Serving answers with."""

from __future__ import annotations

from http import HTTPStatus

import grpc
import tensorflow as tf

from tfdist.reasons import one_line

# The text of the error of requests to a server that is about to end: another one may answer.
ENDING = "the server is ending"
_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}
# The codes that no entry names are errors of this server: 500.
_HTTP = {
    grpc.StatusCode.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
    grpc.StatusCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS: HTTPStatus.CONFLICT,
    grpc.StatusCode.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    grpc.StatusCode.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    grpc.StatusCode.RESOURCE_EXHAUSTED: HTTPStatus.TOO_MANY_REQUESTS,
    grpc.StatusCode.FAILED_PRECONDITION: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.ABORTED: HTTPStatus.CONFLICT,
    grpc.StatusCode.OUT_OF_RANGE: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.UNIMPLEMENTED: HTTPStatus.NOT_IMPLEMENTED,
    grpc.StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
}


class CallError(Exception):
    """A request cannot be answered; the server continues.

    Args:
      code: of gRPC.
      text: says the expected and the received value.
    """

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code

    @property
    def status(self) -> HTTPStatus:
        """The status of HTTP that TensorFlow Serving has for the code."""
        return _HTTP.get(self.code, HTTPStatus.INTERNAL_SERVER_ERROR)


def invalid(text: str) -> CallError:
    """Returns the error of a request that no version of a model could answer."""
    return CallError(grpc.StatusCode.INVALID_ARGUMENT, text)


def not_found(text: str) -> CallError:
    """Returns the error of a request for something that the server does not have."""
    return CallError(grpc.StatusCode.NOT_FOUND, text)


def error_of(error: Exception) -> CallError:
    """Returns the error of a request whose model has raised an exception."""
    if isinstance(error, CallError):
        return error
    if isinstance(error, tf.errors.OpError):
        code = _BY_NUMBER.get(error.error_code, grpc.StatusCode.INTERNAL)
        return CallError(code, one_line(error))
    return CallError(grpc.StatusCode.INTERNAL, one_line(error))
