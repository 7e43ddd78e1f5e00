"""`tfdist serve` as a user types it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import signal
import subprocess
import time

import grpc
import numpy as np
import pytest

from support.example_runs import ROOT, alone, documented_program, shell
from support.launching import PACKAGE
from support.patience import PATIENCE, wait_until
from support.serving.clients import rest
from support.serving.saved_models import write_affine
from support.warm_python import interpreter
from tfdist.cli.main import main
from tfdist.launch.ports import free_ports

pytestmark = pytest.mark.timeout(180)
PAGE = (ROOT / "docs/guides/model_server.md").read_text()
TIMEOUT = 60 * PATIENCE  # s
X = np.zeros([1, 3], np.float32)


class Command:
    """A running `tfdist serve`."""

    def __init__(self, *arguments: str) -> None:
        path = os.pathsep.join(filter(None, [PACKAGE, os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [interpreter(), "-m", "tfdist", "serve", "--port", "0", "--rest-port", "0", *arguments],
            env=dict(os.environ, PYTHONPATH=path, TF_CPP_MIN_LOG_LEVEL="3"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ports(self) -> None:
        """Waits for the line with the ports."""
        assert self.process.stdout is not None
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            found = re.search(
                r"gRPC at 127\.0\.0\.1:(\d+), REST at http://127\.0\.0\.1:(\d+)", line
            )
            if found:
                self.port, self.rest_port = map(int, found.groups())
                return
        raise AssertionError(self.process.communicate(timeout=TIMEOUT)[1][-3000:])

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        try:
            return self.process.wait(TIMEOUT)
        finally:
            self.process.communicate()


@pytest.fixture
def command():
    started = []

    def start(*arguments: str) -> Command:
        started.append(Command(*arguments))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate(timeout=TIMEOUT)


def refused(command, *arguments: str) -> str:
    process = command(*arguments).process
    _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 2
    return errors


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_it_serves_until_a_signal(command, tmp_path, number, code):
    write_affine(tmp_path / "affine", 4)
    running = command(f"m={tmp_path / 'affine'}", "--max-batch", "8")
    running.ports()
    assert running.lines[0] == "tfdist serve: model m, version 4"
    status, answer = rest(running, "/v1/models/m:predict", {"inputs": X.tolist()})
    assert (status, answer["outputs"]["y"]) == (200, [[4, 4, 4]])
    assert running.end(number) == code


def test_it_drains(command, tmp_path):
    write_affine(tmp_path / "affine", 4)
    running = command(str(tmp_path / "affine"), "--drain", "600")
    running.ports()
    running.process.send_signal(signal.SIGTERM)

    def health() -> bytes:
        with grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel:
            return channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=TIMEOUT)

    wait_until(lambda: health() == b"\x08\x02", "that it is not ready")
    assert rest(running, "/v1/models/affine:predict", {"inputs": X.tolist()})[0] == 200
    begun = time.monotonic()
    assert running.end() == 0
    assert time.monotonic() - begun < 500


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["{folder}/none"], "expected a folder, received none"),
        (["{folder}"], "expected a folder for each version with a SavedModel"),
        (["a={folder}", "a={folder}"], "expected a name for each model"),
        (["--host", "localhost", "{folder}"], "expected a numeric address"),
        (["--max-batch", "-1", "{folder}"], "expected a whole number"),
        (["--client-certificates", "{folder}"], "expected TFDIST_TLS_CERT"),
        (["{folder}/a:b"], "without '/' and ':'"),
    ],
)
def test_a_wrong_command_line(command, tmp_path, arguments, text):
    (tmp_path / "m").mkdir()
    errors = refused(command, *(a.format(folder=tmp_path / "m") for a in arguments))
    assert text in errors
    assert "Traceback" not in errors


def test_the_package_is_missing(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.18.1")
    assert main(["serve", str(tmp_path)]) == 2
    # Without its version pip could replace TensorFlow by a newer one.
    command = "pip install 'tensorflow-serving-api>=2.16,<3' tensorflow==2.18.1"
    assert command in capsys.readouterr().err


def test_ports_that_are_taken(command, tmp_path):
    write_affine(tmp_path / "affine", 4)
    first = command(str(tmp_path / "affine"))
    first.ports()
    for option, port in (("--port", first.port), ("--rest-port", first.rest_port)):
        errors = refused(command, option, str(port), str(tmp_path / "affine"))
        assert f"cannot listen on 127.0.0.1:{port}" in errors
        assert "Traceback" not in errors


def test_the_first_commands_of_the_page(tmp_path):
    program = re.search(r"```python\n(# export.py\n.*?)```", PAGE, re.DOTALL)[1]
    commands = re.search(r"```sh\n(python export.py\n.*?)```", PAGE, re.DOTALL)[1]
    (tmp_path / "export.py").write_text(program)
    ports = [str(port) for port in free_ports(2)]
    commands = commands.replace("python ", f"{interpreter()} ").replace("8501", ports[1])
    options = f"--port {ports[0]} --rest-port {ports[1]}"
    shell(commands.replace("tfdist serve", f"tfdist serve {options}"), tmp_path)
    assert json.loads((tmp_path / "answer.json").read_text()) == {"predictions": [[2.5], [4.5]]}


@pytest.mark.long(covered_by="single/serving/test_model_server_of_tables.py")
def test_the_example(tmp_path):
    script, *words = documented_program("keras_examples/model_server.py")
    words[words.index("--output") + 1] = str(tmp_path / "served")
    lines = alone(ROOT / script, *words).splitlines()
    assert "version 1: both halves together agree with model.predict, by gRPC and by REST" in lines
    last = re.fullmatch(r"version 2 answers; (\d+) requests, (\d+) failed", lines[-1])
    assert int(last[1]) > 1 and last[2] == "0"
