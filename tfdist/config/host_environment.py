"""The environment of tasks on another host than the launcher's.

Such a task has the variables of its user's login there, and the launcher's variables that concern
the training. The others, such as `PATH` and `HOME`, are about the launcher's machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from tfdist.errors import ClusterConfigError

# Variables with these beginnings are passed on.
PASSED = ("TFDIST_", "TF_", "TF2_", "KERAS_", "XLA_", "CUDA_", "NVIDIA_", "OMP_", "PYTHON")
# Each task has its own; a file of the launcher's machine need not exist elsewhere.
_NOT_PASSED = ("TF_CONFIG", "TFDIST_SECRET_FILE")


def passed_environment(
    environ: Mapping[str, str], secret: bytes, names: Iterable[str] = ()
) -> dict[str, str]:
    """Returns the variables that travel to other hosts.

    Args:
      environ: the job's variables on the launcher's machine.
      secret: the job's secret, which is passed by value.
      names: further variables.

    Raises:
      ClusterConfigError: one of `names` is not set.
    """
    passed = {
        name: value
        for name, value in environ.items()
        if name.startswith(PASSED) and name not in _NOT_PASSED
    }
    for name in names:
        if name not in environ:
            raise ClusterConfigError(f"--env {name}: expected a variable that is set, it is not")
        passed[name] = environ[name]
    passed["TFDIST_SECRET"] = os.fsdecode(secret)
    return passed


def login_environment() -> dict[str, str]:
    """Returns this process's environment without any job's settings."""
    return {
        name: value
        for name, value in os.environ.items()
        if name != "TF_CONFIG" and not name.startswith("TFDIST_")
    }


def python_path() -> list[str]:
    """Returns the folders of `PYTHONPATH`."""
    return [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
