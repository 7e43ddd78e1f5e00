"""Uses a SavedModel where there is nothing but TensorFlow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf


def serve(ctx: Any, directory: Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Loads the newest model of a directory; returns its outputs. The body of a rank."""
    path = max(directory.iterdir(), key=lambda p: int(p.name))
    signature = tf.saved_model.load(str(path)).signatures["serving_default"]
    outputs = signature(**{name: tf.constant(value) for name, value in inputs.items()})
    strangers = {name.partition(".")[0] for name in sys.modules} & {
        "tfdist",
        "tensorflow_estimator",
    }
    assert not strangers, strangers
    return {name: value.numpy() for name, value in outputs.items()}
