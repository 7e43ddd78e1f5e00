"""`tfdist serve --tables`: models whose tables are on servers."""

from __future__ import annotations

import contextlib

import pytest

from single.serving.test_serve_command import command, refused  # noqa: F401
from support.served_tables import Training, addresses, serving, write_model
from support.serving.clients import rest

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
