"""Starting examples as a user does, each task in its own process."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from support.launching import PACKAGE
from support.warm_python import interpreter

ROOT = Path(__file__).parents[2]


def tfdist_run(script: Path, *arguments: str, tasks: str = "--workers 2") -> list[str]:
    """Runs `tfdist run --workers 2 script arguments`; returns what the tasks printed."""
    return _run("-m", "tfdist", "run", *tasks.split(), str(script), *arguments).splitlines()


def alone(script: Path, *arguments: str) -> str:
    """Runs `python script arguments`; returns what it printed."""
    return _run(str(script), *arguments)


def typed(command: list[str]) -> list[str]:
    """Runs a command that begins with `tfdist`; returns what it printed."""
    assert command[0] == "tfdist"
    return _run("-m", *command).splitlines()


def documented_command(example: str) -> list[str]:
    """The `tfdist run` command that the docstring of an example, folder/name, says to type."""
    text = (ROOT / example).read_text()
    command = re.search(r"^    (tfdist run (?:.*\\\n)*.*)$", text, re.MULTILINE)[1]
    words = command.replace("\\\n", " ").split()
    words[words.index(example)] = str(ROOT / example)
    return words


def documented_program(example: str) -> list[str]:
    """The words after `python` of the command that an example, folder/name, says to type."""
    text = (ROOT / example).read_text()
    words = re.search(r"^    python (.*)$", text, re.MULTILINE)[1].split()
    assert words[0] == example
    return words


def shell(commands: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the shell commands of a page in a folder, with `tfdist` in place of the installed one.

    Returns:
      The finished process, which was successful.
    """
    (folder / "bin").mkdir()
    command = folder / "bin" / "tfdist"
    command.write_text(f'#!/bin/sh\nexec {interpreter()} -m tfdist "$@"\n')
    command.chmod(0o700)
    return _finished(
        ["bash", "-ec", commands],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        env=dict(_environment(), PATH=f"{command.parent}:{os.environ['PATH']}"),
    )


def _run(*arguments: str) -> str:
    return _finished([interpreter(), *arguments], env=_environment()).stdout


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [PACKAGE, os.environ.get("PYTHONPATH")]))
    return dict(os.environ, PYTHONPATH=path, TF_CPP_MIN_LOG_LEVEL="3")


def _finished(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    finished = subprocess.run(command, capture_output=True, text=True, timeout=170, **options)
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]
    return finished
