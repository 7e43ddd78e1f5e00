"""Services and their methods: names, versions, and the requests of all of them."""

from __future__ import annotations

import pytest

from support.every_method import METHODS, made_up
from tfdist.control import encoding
from tfdist.control.service import CHALLENGE, CallPath, Method

VALUES = {int: 7, float: 0.5, str: "text", bool: True, bytes: b"\0"}


def test_each_method_has_a_path_of_its_own() -> None:
    paths = [CHALLENGE, *(method.path for method in METHODS)]
    assert len(set(paths)) == len(paths)


def test_each_service_has_one_version() -> None:
    services = {method.service for method in METHODS}
    assert len({service.name for service in services}) == len(services)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_request_and_its_path_come_back(method: Method) -> None:
    called = CallPath.parse(method.path)
    assert called == CallPath(method.service.name, method.service.version, method.name)
    assert method.request.__name__ == f"{method.name}Request"
    body = encoding.encode(made_up(method.request, VALUES.__getitem__))
    request = encoding.decode(method.request, body)
    assert encoding.decode(method.request, encoding.encode(request)) == request


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/x/y",
        "tfdist.Tasks.1/TaskOpen",
        "/tfdist.Tasks.1/",
        "/tfdist..1/TaskOpen",
        "/tfdist.Tasks.-1/TaskOpen",
        "/tfdist.Tasks.1/TaskOpen\n",
        "/tfdist.Tasks.1/Task/Open",
        "/tfdist.Tasks.1234567/TaskOpen",
        f"/tfdist.{'x' * 41}.1/TaskOpen",
        "/tfdist.Tasks.\u0661/TaskOpen",
    ],
)
def test_what_is_no_path_of_tfdist(path: str) -> None:
    assert CallPath.parse(path) is None


def test_a_path_of_releases_before_services_had_versions() -> None:
    assert CallPath.parse("/tfdist.Control/Join") == CallPath("Control", 0, "Join")
