"""Measures the computing of a training script: it runs alone, and some of its steps are timed."""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tfdist.config.own_program import own_module
from tfdist.config.settings import environment_without_job
from tfdist.errors import TfdistError
from tfdist.plan.costs import GradientBucket, Table
from tfdist.plan.memory import ModelMemory

# Seconds that a process which is killed has to end.
_END = 10.0


class MeasurementError(TfdistError, RuntimeError):
    """A script could not be measured; the message names it and says why."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """The training of a script.

    Attributes:
      compute: median seconds of a step.
      steps: the number of steps that were timed.
      dense: trainable parameters with dense gradients.
      tables: variables with gradients of rows.
      uncounted: names of variables with gradients of rows whose rows could not be counted. All of
        their rows are taken.
      profile: when the dense gradients' buckets were complete; empty if that is not known.
      memory: of the process.
    """

    compute: float
    steps: int
    dense: int
    tables: tuple[Table, ...]
    uncounted: tuple[str, ...]
    profile: tuple[GradientBucket, ...]
    memory: ModelMemory


def measure(script: Path, arguments: Sequence[str], steps: int, timeout: float) -> Measured:
    """Runs a script without a cluster, and ends it after some training steps.

    Its output goes to stderr.

    Args:
      script: trains with `fit` of Keras 3, or with an optimizer of Keras 3 in a loop.
      arguments: of the script.
      steps: to time.
      timeout: seconds until the last of them.

    Raises:
      MeasurementError: the script failed, made too few steps, or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="tfdist-plan-") as folder:
        result = Path(folder, "result.json")
        module = own_module("tfdist.plan.alone")
        command = [sys.executable, *module, str(result), str(steps)]
        with subprocess.Popen(
            [*command, str(script), *arguments],
            env=environment_without_job(),
            stdin=subprocess.PIPE,
            # The standard output has the tables, or the JSON.
            stdout=sys.stderr,
        ) as process:
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                raise MeasurementError(
                    f"{script}: expected {steps} training steps within {timeout:g} s, but it still "
                    "runs; see its output above, and --model-timeout"
                ) from None
            finally:
                process.kill()
                process.wait(_END)
        if not result.exists():
            raise MeasurementError(
                f"{script}: expected training steps, but it ended with exit code {code}; see its "
                "output above"
            )
        return _read(script, json.loads(result.read_text()), code)


def _read(script: Path, found: dict, code: int) -> Measured:
    if not found["seconds"]:
        how = f", and exit code {code}," if code else ""
        raise MeasurementError(
            f"{script}: expected more than 3 training steps of Keras 3, by fit or by an optimizer "
            f"in a loop, received {found['steps']}{how} before its end"
        )
    tables = found["tables"]
    return Measured(
        compute=statistics.median(found["seconds"]),
        steps=len(found["seconds"]),
        dense=found["dense"],
        tables=tuple(
            Table(t["name"], t["rows"], t["width"], t["rows_per_step"] or t["rows"]) for t in tables
        ),
        uncounted=tuple(t["name"] for t in tables if t["rows_per_step"] is None),
        profile=tuple(GradientBucket(b["parameters"], b["ready"]) for b in found["buckets"]),
        memory=ModelMemory(**found["memory"]),
    )
