"""Small data, inputs and helpers for the tests of Estimator."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from support.launching import PACKAGE
from support.patience import PATIENCE

ROWS = 64
# Warnings of TensorFlow and tf_keras when the package calls them.
ignore_warnings = pytest.mark.filterwarnings(
    "ignore:.*`tf.(layers|nn)\\..* is deprecated:UserWarning",
    "ignore:.*`layer.add_variable` is deprecated:UserWarning",
    "ignore:.*`Model.state_updates` will be removed:UserWarning",
    "ignore:.*set_learning_phase` is deprecated:UserWarning",
    "ignore:To make it possible to preserve tf.data options:UserWarning",
    "ignore:You are saving your model as an HDF5 file:UserWarning",
)


def features() -> dict[str, np.ndarray]:
    """Makes features of `ROWS` rows: "x" float32[3], "age", "city" (a to d), "job" below 5."""
    random = np.random.default_rng(5)
    return {
        "x": random.normal(size=(ROWS, 3)).astype("float32"),
        "age": random.integers(10, 80, ROWS).astype("float32"),
        "city": np.array(["a", "b", "c", "d"])[random.integers(0, 4, ROWS)],
        "job": random.integers(0, 5, ROWS),
    }


def labels() -> dict[str, np.ndarray]:
    """Makes labels for the features.

    "two" or "three" classes; the two as a float32 "column"; "several" at once; a "number", a
    "count".
    """
    given = features()
    number = given["x"].sum(axis=1)
    two = (number > 0).astype("int32")
    return {
        "two": two,
        "column": two[:, None].astype("float32"),
        "three": given["job"] % 3,
        "number": number,
        "count": np.abs(number).round(),
        "several": np.stack([two, 1 - two], axis=1),
    }


def input_fn(label: str | None = "two", *, batch: int = 16, only: Sequence[str] = ()) -> Callable:
    """Makes an input_fn that repeats the rows in batches for ever.

    Args:
      label: which of `labels`; `None` for features alone, once.
      batch: how many rows.
      only: the names of the features; all if empty.
    """

    def make() -> tf.data.Dataset:
        chosen = {k: v for k, v in features().items() if not only or k in only}
        if label is None:
            return tf.data.Dataset.from_tensor_slices(chosen).batch(batch)
        return tf.data.Dataset.from_tensor_slices((chosen, labels()[label])).repeat().batch(batch)

    return make


def predictions(estimator: Any, key: str, **options: Any) -> np.ndarray:
    """Returns an `Estimator`'s predictions under `key` for all rows."""
    predicted = list(estimator.predict(input_fn(None, **options)))
    return np.stack([row[key] for row in predicted])


def values(estimator: Any) -> dict[str, np.ndarray]:
    """Returns the variables in the latest checkpoint by name."""
    return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}


def run_python(program: str, *arguments: str, **environment: str) -> str:
    """Runs a program in a fresh interpreter; returns what it printed."""
    path = os.pathsep.join(filter(None, [PACKAGE, os.environ.get("PYTHONPATH")]))
    finished = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        capture_output=True,
        text=True,
        timeout=55 * PATIENCE,
    )
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]
    return finished.stdout
