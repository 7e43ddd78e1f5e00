"""The status of a TrainJob: its content, and a reporter that never harms the training."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import logging
import socket
import time
from pathlib import Path

import pytest

from support.patience import wait_until
from support.status_server import PATH, status_server
from tfdist.config.trainjob import StatusServer
from tfdist.observe.trainjob import Reporter, Status
from tfdist.observe.trainjob import reporter as reporter_module

pytestmark = pytest.mark.timeout(60)


def status(percent):
    return Status(percent / 100, None, {})


def posted(received):
    return [found["progressPercentage"] for found in received.statuses]


def test_the_body_is_what_kubeflow_trainer_takes():
    at = datetime.datetime(2026, 3, 19, 10, 30, 45, 600, datetime.timezone.utc)
    metrics = {"loss": 0.23474567, "val_loss": float("nan"), "n" * 70: 1e30, "": 1.0}
    assert json.loads(Status(0.457, 795.6, metrics, at).request()) == {
        "trainerStatus": {
            "progressPercentage": 45,
            "estimatedRemainingSeconds": 795,
            "metrics": [
                {"name": "loss", "value": "0.234746"},
                {"name": "val_loss", "value": "nan"},
                {"name": "n" * 64, "value": "1e+30"},
            ],
            "lastUpdatedTime": "2026-03-19T10:30:45Z",
        }
    }
    # Beyond the server's limits it would refuse the whole status.
    many = Status(1.5, 1e12, {f"m{n}": n for n in range(1000)}).request()
    found = json.loads(many)["trainerStatus"]
    assert (found["progressPercentage"], found["estimatedRemainingSeconds"]) == (100, 2**31 - 1)
    assert len(found["metrics"]) == 256
    assert "estimatedRemainingSeconds" not in json.loads(status(3).request())["trainerStatus"]


def test_a_status_is_posted_with_the_token(tmp_path):
    with status_server(tmp_path) as (server, received):
        reporter = Reporter(server, period=0.01)
        with contextlib.closing(reporter):
            reporter.report(status(1))
            wait_until(lambda: posted(received) == [1], "a post")
            Path(server.token_file).write_text("renewed")
            reporter.report(status(2))
        reporter.close()
    assert posted(received) == [1, 2] and received.paths == [PATH] * 2
    tokens = [headers["Authorization"] for headers in received.headers]
    assert tokens == ["Bearer ey.J0.k3n", "Bearer renewed"]
    assert received.headers[0]["Content-Type"] == "application/json"


def test_the_newest_status_is_posted_once_a_period_and_the_last_at_the_end(tmp_path):
    with status_server(tmp_path) as (server, received):
        reporter = Reporter(server, period=3600)
        assert reporter.is_due()
        reporter.report(status(1))
        wait_until(lambda: posted(received) == [1], "a post")
        assert not reporter.is_due()
        for percent in range(2, 100):
            reporter.report(status(percent))
        reporter.close()
        assert posted(received) == [1, 99]


def unusable(server, name, folder):
    """A server that cannot be used for a reason."""
    empty = folder / "empty"
    empty.write_text("")
    hostile = folder / "hostile"
    hostile.write_text("s3cret\r\nHost: elsewhere")
    return {
        "refused": dataclasses.replace(server, url="https://127.0.0.1:1/status"),
        "plain": dataclasses.replace(server, url=server.url.replace("https", "http")),
        "no url": dataclasses.replace(server, url="status"),
        "no port": dataclasses.replace(server, url="https://127.0.0.1:x/"),
        "no token": dataclasses.replace(server, token_file=str(folder / "absent")),
        "empty token": dataclasses.replace(server, token_file=str(empty)),
        "hostile token": dataclasses.replace(server, token_file=str(hostile)),
        "another name": dataclasses.replace(
            server, url=server.url.replace("127.0.0.1", "127.0.0.2")
        ),
        "no authority": dataclasses.replace(server, ca_file=str(empty)),
        "forbidden": server,
    }[name]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("refused", "ConnectionRefusedError"),
        ("plain", "expected an https URL, since the request carries a token"),
        ("no url", "expected an https URL"),
        ("no port", "ValueError"),
        ("no token", "FileNotFoundError"),
        ("empty token", "expected a token in"),
        ("hostile token", "expected a token in"),
        ("another name", "Error"),
        ("no authority", "Error"),
        ("forbidden", 'expected status 200, received 403: {"message": "Forbidden"}'),
    ],
)
def test_a_failure_is_logged_once(tmp_path, caplog, name, message):
    caplog.set_level(logging.WARNING, "tfdist")
    with status_server(tmp_path) as (server, received):
        received.answer = 403
        reporter = Reporter(unusable(server, name, tmp_path), period=0.01)
        for number in range(3):
            due = reporter._next_at
            reporter.report(status(number))
            wait_until(lambda: reporter._next_at > due, "a try")  # noqa: B023
        since = time.monotonic()
        reporter.report(status(100))
        reporter.close()
        assert time.monotonic() - since < 4
    (line,) = caplog.messages
    assert message in line and "The training continues" in line
    assert "s3cret" not in line and "J0" not in line


def test_a_server_that_does_not_answer_holds_the_end_for_some_seconds(monkeypatch):
    monkeypatch.setattr(reporter_module, "_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/"
        reporter = Reporter(StatusServer(url, __file__, __file__))
        reporter.report(status(1))
        since = time.monotonic()
        reporter.close()
        assert time.monotonic() - since < 4


def test_only_a_pod_of_a_trainjob_has_a_server():
    names = [f"KUBEFLOW_TRAINER_SERVER_{name}" for name in ("URL", "CA_CERT", "TOKEN")]
    environ = dict(zip(names, ("https://a/status", "/ca.crt", "/token"), strict=True))
    expected = StatusServer("https://a/status", "/ca.crt", "/token")
    assert StatusServer.from_environment(environ) == expected
    for name in names:
        assert StatusServer.from_environment(environ | {name: " "}) is None
    assert StatusServer.from_environment({}) is None
