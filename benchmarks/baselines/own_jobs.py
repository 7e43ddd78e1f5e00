"""A benchmark that is the program of its own workers: a job of `tfdist run`, and what it found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def run(script: str, workers: int, task: Mapping[str, Any]) -> Any:
    """Starts `tfdist run` on a script with `--task`, and returns what its chief has written.

    Args:
      script: the path of the program.
      workers: their number.
      task: the value of the option --task, as JSON, with "result": the file for the result, in
        JSON.

    Raises:
      SystemExit: the job has failed; with the end of its output.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        command = [sys.executable, "-m", "tfdist", "run", "--workers", str(workers)]
        command += [str(Path(script).resolve())]
        command += ["--task", json.dumps({**task, "result": str(result)})]
        environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3")
        # Outside the sources, where -m would find tfdist without its op library.
        finished = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True
        )
        if finished.returncode != 0:
            sys.exit(finished.stdout[-3000:] + finished.stderr[-3000:])
        return json.loads(result.read_text())
