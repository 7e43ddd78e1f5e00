"""Refuses TensorFlow versions that tfdist does not support."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tfdist._version import MAX_TENSORFLOW, MIN_TENSORFLOW
from tfdist.errors import UnsupportedTensorFlowError

# The names of TensorFlow's and Keras's distributions on PyPI. Reading metadata takes a millisecond,
# importing TensorFlow seconds.
TENSORFLOW = (
    *("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-aarch64"),
    *("tf-nightly", "tf-nightly-cpu"),
)
KERAS = ("keras", "keras-nightly")


def version_of(distributions: Sequence[str]) -> str | None:
    """Returns the version of the first distribution that is installed; `None` without any."""
    for distribution in distributions:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def installed_tensorflow() -> str:
    """Returns the version of the installed TensorFlow.

    Raises:
      UnsupportedTensorFlowError: none is installed.
    """
    version = version_of(TENSORFLOW)
    if version is not None:
        return version
    try:
        import tensorflow  # built from source, or another distribution
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise _broken(error) from error
    except ImportError as error:
        raise _broken(error) from error
    else:
        # A folder that an uninstalled TensorFlow has left behind is a module without a version.
        version = getattr(tensorflow, "__version__", None)
        if version is not None:
            return str(version)
    raise UnsupportedTensorFlowError(
        f"tfdist needs TensorFlow {_range()}, but no TensorFlow is installed. Install it with "
        f"`pip install '{_requirement()}'`."
    )


def check_tensorflow(version: str | None = None) -> None:
    """Checks that tfdist supports TensorFlow `version`, by default the installed one.

    Raises:
      UnsupportedTensorFlowError: the version is not supported.
    """
    version = installed_tensorflow() if version is None else version
    match = re.match(r"(\d+)\.(\d+)", version)
    series = (int(match[1]), int(match[2])) if match else None
    if series is None or not MIN_TENSORFLOW <= series <= MAX_TENSORFLOW:
        raise UnsupportedTensorFlowError(
            f"tfdist works with TensorFlow {_range()}, but TensorFlow {version} is installed. "
            f"Install a supported one with `pip install '{_requirement()}'`, "
            "or a tfdist release that supports yours."
        )


def require_tensorflow() -> None:
    """Checks the installed TensorFlow, when tfdist is imported.

    Raises:
      UnsupportedTensorFlowError: the version is not supported, or there is none.
      SystemExit: the same for the command `tfdist`, where a traceback shows nothing of the user's.
    """
    try:
        check_tensorflow()
    except UnsupportedTensorFlowError as error:
        if _is_command(sys.argv[0] if sys.argv else "", sys.orig_argv):
            sys.exit(f"tfdist: error: {error}")
        raise


def _is_command(program: str, words: Sequence[str]) -> bool:
    """Whether this process is the command `tfdist`, or `python -m tfdist`.

    Args:
      program: `sys.argv[0]`, which is "-m" as long as Python looks for the module.
      words: all of Python's command line.
    """
    if program == "-m":
        return "tfdist" in words
    return Path(program).name == "tfdist"


def _broken(error: ImportError) -> UnsupportedTensorFlowError:
    return UnsupportedTensorFlowError(
        f"tfdist needs TensorFlow {_range()}, but the TensorFlow that is installed cannot be "
        f"imported: {error}"
    )


def _name(series: tuple[int, int]) -> str:
    return f"{series[0]}.{series[1]}"


def _requirement() -> str:
    major, minor = MAX_TENSORFLOW
    return f"tensorflow>={_name(MIN_TENSORFLOW)},<{_name((major, minor + 1))}"


def _range() -> str:
    return f"{_name(MIN_TENSORFLOW)} to {_name(MAX_TENSORFLOW)}"
