"""The maps of benchmarks/prediction.py, which workers load from this file."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tensorflow as tf

FEATURES = 32


def parse(record: Any) -> dict[str, Any]:
    """The id and the features of a record."""
    values = tf.ensure_shape(tf.io.decode_raw(record, tf.float32), [1 + FEATURES])
    return {"id": tf.cast(values[0], tf.int64), "x": values[1:]}


def parse_slowly(record: Any) -> dict[str, Any]:
    """The same, after 2 ms."""

    def wait(values: np.ndarray) -> np.ndarray:
        time.sleep(0.002)
        return values

    found = parse(record)
    found["x"] = tf.ensure_shape(tf.numpy_function(wait, [found["x"]], tf.float32), [FEATURES])
    return found
