"""Refuses TensorFlow versions that tfdist does not support."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Sequence

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
    except ImportError:
        raise UnsupportedTensorFlowError(
            f"tfdist needs TensorFlow {_range()}, but no TensorFlow is installed. Install it with "
            f"`pip install '{_requirement()}'`."
        ) from None
    return tensorflow.__version__


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


def _name(series: tuple[int, int]) -> str:
    return f"{series[0]}.{series[1]}"


def _requirement() -> str:
    major, minor = MAX_TENSORFLOW
    return f"tensorflow>={_name(MIN_TENSORFLOW)},<{_name((major, minor + 1))}"


def _range() -> str:
    return f"{_name(MIN_TENSORFLOW)} to {_name(MAX_TENSORFLOW)}"
