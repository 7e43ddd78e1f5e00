"""Runs SavedModels in a process with TensorFlow only, which cannot import tfdist.

python -I plain_tensorflow.py FOLDER    reads requests from FOLDER, writes answers into it
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np


def serve(
    directories: Sequence[Path], inputs: Mapping[str, np.ndarray]
) -> list[dict[str, np.ndarray]]:
    """Returns the outputs, by name, of the newest SavedModel of each directory for `inputs`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "directories.json").write_text(json.dumps([str(path) for path in directories]))
        np.savez(folder / "inputs.npz", **inputs)
        command = [sys.executable, "-I", __file__, name]
        subprocess.run(command, check=True, timeout=60)
        answers = [np.load(folder / f"answers-{i}.npz") for i in range(len(directories))]
        return [dict(answer) for answer in answers]


def main(folder: Path) -> None:
    """The process without tfdist."""
    import tensorflow as tf

    inputs = {key: tf.constant(value) for key, value in np.load(folder / "inputs.npz").items()}
    for i, directory in enumerate(json.loads((folder / "directories.json").read_text())):
        newest = max(Path(directory).iterdir(), key=lambda path: int(path.name))
        outputs = tf.saved_model.load(str(newest)).signatures["serving_default"](**inputs)
        answers = {key: value.numpy() for key, value in outputs.items()}
        np.savez(folder / f"answers-{i}.npz", **answers)
    found = {name.partition(".")[0] for name in sys.modules}
    strangers = found & {"tfdist", "tensorflow_estimator"}
    assert not strangers, strangers


if __name__ == "__main__":
    main(Path(sys.argv[1]))
