"""The first program of docs/guides/callbacks.md runs as written, and leaves what the page says."""

from __future__ import annotations

import re
import sys
import types

import keras
import pytest

import tfdist
from support.elastic.file_callbacks import arguments, model_of
from support.example_runs import ROOT, shell

pytestmark = pytest.mark.timeout(180)
PAGE = (ROOT / "docs/guides/callbacks.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_first_program(tmp_path):
    (commands,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    (shown,) = re.findall(r"```\n(\[worker 0\].*?)```", PAGE, re.DOTALL)
    (tmp_path / "train.py").write_text(PROGRAMS[0])
    done = shell(commands, tmp_path)
    lines = [line for line in done.stdout.splitlines() if line in shown.splitlines()]
    assert lines == shown.splitlines()
    assert "[worker 1] epoch" not in done.stdout


class Calls(keras.callbacks.Callback):
    """Notes the calls of a logger of others."""

    noted: list = []

    def on_epoch_end(self, epoch, logs=None):
        self.noted.append((epoch, sorted(logs)))


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_loggers_of_others(name, monkeypatch, tmp_path):
    """Their interfaces as the page uses them; they need not be installed."""
    monkeypatch.chdir(tmp_path)
    begun = []
    package = types.ModuleType(name)
    if name == "wandb":
        integration = types.ModuleType("wandb.integration.keras")
        integration.WandbMetricsLogger = Calls
        package.init = lambda **options: begun.append(options)
        monkeypatch.setitem(sys.modules, "wandb.integration", types.ModuleType("integration"))
        monkeypatch.setitem(sys.modules, "wandb.integration.keras", integration)
    else:
        package.keras = types.SimpleNamespace(MlflowCallback=Calls)
        package.start_run = lambda run_id: (
            begun.append(run_id) or types.SimpleNamespace(info=types.SimpleNamespace(run_id="7"))
        )
    monkeypatch.setitem(sys.modules, name, package)
    monkeypatch.setattr(Calls, "noted", [])
    (program,) = (text for text in PROGRAMS if f"import {name}" in text)
    known = arguments(5)
    exec(program, {"tfdist": tfdist, "model": model_of("keras"), "x": known["x"], "y": known["y"]})
    assert [epoch for epoch, _ in Calls.noted] == list(range(5))
    assert begun == [{"project": "digits", "id": "run-7", "resume": "allow"}] * (
        name == "wandb"
    ) + [None] * (name == "mlflow")
