"""Examples and the documentation's first program for several devices, each in its own process."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from support.launching import PACKAGE
from support.warm_python import interpreter

pytestmark = pytest.mark.long(covered_by="devices/test_parity.py, devices/test_memory.py")

ROOT = Path(__file__).parents[2]


def run(command: list[str], directory: Path = ROOT) -> str:
    """Runs a command whose first word is `python`; returns what it printed."""
    assert command[0] == "python"
    path = os.pathsep.join(filter(None, [PACKAGE, os.environ.get("PYTHONPATH")]))
    finished = subprocess.run(
        [interpreter(), *command[1:]],
        cwd=directory,
        env=dict(os.environ, PYTHONPATH=path, TF_CPP_MIN_LOG_LEVEL="3"),
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]
    return finished.stdout


def documented_command(example: str) -> list[str]:
    """Returns the command in an example's docstring."""
    text = (ROOT / "keras_examples" / example).read_text()
    return re.search(r"^    (python .*)$", text, re.MULTILINE)[1].split()


def test_mirrored_trains_and_saves(tmp_path):
    command = documented_command("mirrored.py")
    command[command.index("--output") + 1] = str(tmp_path / "model.keras")
    printed = run([*command, "--epochs", "4", "--limit", "1280"])
    assert "2 devices (CPU:0, CPU:1), 10 steps of 128 images an epoch, 64 on each" in printed
    assert [float(a) > 0.7 for a in re.findall(r"test accuracy: ([\d.]+)", printed)] == [True]
    assert (tmp_path / "model.keras").stat().st_size > 10_000
    # The saved model has the mean of the replicas' statistics, so it need not agree everywhere.
    assert float(re.search(r"it agrees on ([\d.]+)%", printed)[1]) > 90


def test_central_storage_keeps_one_copy():
    command = [*documented_command("central_storage.py"), "--epochs", "4", "--limit", "1280"]
    width, devices = 4, 3
    command += ["--batch-size", "60", "--width", str(width), "--devices", str(devices)]
    printed = run(command)
    # A table of 2**16 words, two dense layers with biases, Adagrad's slot for each weight; 49
    # patches; the step count is int64, the learning rate float32.
    weights = 2**16 * width + (49 * width + 1) * 64 + (64 + 1) * 10
    size = (2 * 4 * weights + 8 + 4) / 1e6
    assert f"variables and optimizer slots take {size:.1f} MB: CPU:0 {size:.1f} MB\n" in printed
    each = ", ".join(f"CPU:{i} {size:.1f} MB" for i in range(devices))
    assert f"mirrored they would take {devices * size:.1f} MB: {each}\n" in printed
    assert [float(a) > 0.5 for a in re.findall(r"test accuracy: ([\d.]+)", printed)] == [True]


def test_the_program_of_the_page_on_parity(tmp_path):
    page = (ROOT / "docs/reference/parity.md").read_text()
    (tmp_path / "compare.py").write_text(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1])
    printed = run(["python", "compare.py"], tmp_path)
    assert float(re.search(r"largest difference: ([\d.e-]+)", printed)[1]) < 1e-6


def test_the_first_program_of_the_page_runs_on_two_devices(tmp_path):
    page = (ROOT / "docs/guides/mirrored.md").read_text()
    program = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    (tmp_path / "train.py").write_text(
        program + "print(strategy.num_replicas_in_sync, 'replicas')\n"
    )
    printed = run(["python", "train.py"], tmp_path)
    assert "loss" in printed and "2 replicas" in printed
