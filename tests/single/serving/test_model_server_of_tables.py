"""`tfdist serve --tables`: models whose tables are on servers."""

from __future__ import annotations

import contextlib
import signal
import urllib.error

import grpc
import pytest

from single.serving.test_health_and_metrics import NOT_SERVING, health, text_of
from single.serving.test_serve_command import command, refused  # noqa: F401
from support.served_tables import Training, addresses, serving, write_model
from support.serving.clients import rest
from tfdist.launch.ports import free_ports

pytestmark = pytest.mark.timeout(180)


def test_rows_come_from_servers_of_which_one_dies(command, tmp_path):  # noqa: F811
    training = Training(tmp_path / "snapshots")
    training.set({1: 0.5, 2: 1.5})
    training.save()
    write_model(tmp_path / "users" / "1")
    group = addresses(2)

    def ask() -> list[float]:
        status, answer = rest(running, "/v1/models/users:predict", {"instances": [1, 2]})
        assert status == 200, answer
        return [row[0] for row in answer["predictions"]]

    with contextlib.ExitStack() as first, serving(tmp_path / "snapshots", group, 1, replicas=2):
        first.enter_context(serving(tmp_path / "snapshots", group, 0, replicas=2))
        running = command("--tables", ",".join(group), str(tmp_path / "users"))
        running.ports()
        assert ask() == [0.5, 1.5]
        first.close()
        assert [ask() for _ in range(3)] == [[0.5, 1.5]] * 3
        assert running.end() == 0


def test_without_servers_the_option_is_named(command, tmp_path):  # noqa: F811
    write_model(tmp_path / "users" / "1")
    errors = refused(command, str(tmp_path / "users"))
    assert "the model's tables are on servers; expected --tables" in errors
    errors = refused(command, "--tables", "nowhere", str(tmp_path / "users"))
    assert "--tables" in errors and "nowhere" in errors


def test_it_waits_for_servers_that_start_later(command, tmp_path):  # noqa: F811
    training = Training(tmp_path / "snapshots")
    training.set({1: 0.5})
    training.save()
    write_model(tmp_path / "users" / "1")
    group = addresses(1)
    ports = free_ports(2)
    running = command(
        *("--port", str(ports[0]), "--rest-port", str(ports[1])),
        *("--tables", group[0], str(tmp_path / "users")),
    )
    running.rest_port = ports[1]
    line = running.process.stderr.readline()
    assert "waiting up to" in line and f"table server 0 at {group[0]}" in line
    assert text_of(running, "/healthz") == "ok\n"
    with pytest.raises(urllib.error.HTTPError, match="503"):
        text_of(running, "/readyz")
    status, answer = rest(running, "/v1/models/users:predict", {"instances": [1]})
    assert (status, answer) == (503, {"error": "model users is still being loaded"})
    with grpc.insecure_channel(f"127.0.0.1:{ports[0]}") as channel:
        assert health(channel, "") == NOT_SERVING
    with serving(tmp_path / "snapshots", group, 0):
        running.ports()
        assert text_of(running, "/readyz") == "ready\n"
        status, answer = rest(running, "/v1/models/users:predict", {"instances": [1]})
        assert (status, answer["predictions"][0][0]) == (200, 0.5)
        assert running.end() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_wait(command, tmp_path, number, code):  # noqa: F811
    write_model(tmp_path / "users" / "1")
    running = command("--tables", addresses(1)[0], str(tmp_path / "users"))
    assert "waiting up to 60 s for servers of tables" in running.process.stderr.readline()
    assert running.end(number) == code


def test_the_wait_has_an_end(command, tmp_path):  # noqa: F811
    write_model(tmp_path / "users" / "1")
    (address,) = addresses(1)
    errors = refused(command, "--tables", address, "--tables-wait", "1", str(tmp_path / "users"))
    assert "no version can be loaded; 1: UnavailableError: no server of tables: " in errors
    assert f"table server 0 at {address}" in errors
