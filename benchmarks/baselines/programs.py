"""Implementations that are separate programs, which read commands and answer in lines.

`begin` and `end` are the same as in `Remote`, so that a job may use either.
"""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from baselines.processes import PATIENCE

FOLDER = Path(__file__).resolve().parent
COMPILED_WITH = ("-std=c++17", "-O3", "-march=native")


class Program:
    """A program that answers each line with one line.

    Args:
      name: in error messages.
      command: that starts it.
      environment: variables besides this process's.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._name = name
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | dict(environment or {}),
        )
        self._unread = b""

    def begin(self, *words: Any) -> None:
        """Sends a line of these words."""
        try:
            self._process.stdin.write(" ".join(map(str, words)).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError(f"{self._name} has ended") from None

    def end(self) -> str:
        """Returns the answer."""
        output = self._process.stdout
        while b"\n" not in self._unread:
            if not select.select([output], [], [], PATIENCE)[0]:
                raise TimeoutError(f"{self._name}: no answer within {PATIENCE:g} s")
            part = os.read(output.fileno(), 4096)
            if not part:
                raise RuntimeError(f"{self._name} has ended, with exit code {self._process.wait()}")
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def stop(self) -> None:
        """Ends the program."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


def build_bare_ring(folder: str | os.PathLike) -> str:
    """Compiles bare_ring.cc into a folder and returns the program's path.

    Raises:
      RuntimeError: there is no compiler, or it fails.
    """
    program = str(Path(folder) / "bare_ring")
    compiler = os.environ.get("CXX", "g++").split()
    command = [*compiler, *COMPILED_WITH, str(FOLDER / "bare_ring.cc"), "-o", program]
    try:
        finished = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise RuntimeError(f"the bare ring needs a compiler: no {compiler[0]}") from None
    if finished.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}:\n{finished.stderr}")
    return program


def connect_ring(ranks: Sequence[Program], hosts: Sequence[str]) -> None:
    """Connects newly started bare_ring programs at these addresses to a ring."""
    ports = [rank.end().split()[1] for rank in ranks]
    for i, rank in enumerate(ranks):
        right = (i + 1) % len(ranks)
        rank.begin("connect", hosts[right], ports[right])
    for rank in ranks:
        rank.end()


def why_no_torch(python: str) -> str | None:
    """The reason why this Python cannot run PyTorch's Gloo; `None` if it can."""
    if not Path(python).exists():
        return "not installed; scripts/bench installs it"
    test = "import torch.distributed as d, sys; sys.exit(not d.is_gloo_available())"
    finished = subprocess.run([python, "-c", test], capture_output=True, text=True)
    if finished.returncode == 0:
        return None
    return (finished.stderr.strip() or "built without Gloo").splitlines()[-1]


def start_gloo(python: str, ranks: int, folder: str | os.PathLike) -> list[Program]:
    """Starts ranks of PyTorch's Gloo on this machine, which find each other through the folder."""
    store = tempfile.mktemp(dir=folder)
    script = str(FOLDER / "gloo_rank.py")
    return [
        Program(f"Gloo rank {rank}", [python, script, str(rank), str(ranks), store])
        for rank in range(ranks)
    ]
