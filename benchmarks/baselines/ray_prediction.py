"""The prediction of benchmarks/prediction.py with Ray Data.

    python ray_prediction.py FOLDER OUTPUT BATCH

It runs in an environment with TensorFlow and `ray[data]`, without tfdist.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import ray

FEATURES = 32


class Predict:
    """The model, in an actor."""

    def __init__(self, path: str) -> None:
        import keras

        self._model = keras.models.load_model(path)

    def __call__(self, batch: dict) -> dict:
        """Parses the records of a batch, and predicts."""
        values = np.stack([np.frombuffer(record, np.float32) for record in batch["record"]])
        rows = self._model.predict_on_batch(values[:, 1:])
        return {"id": values[:, 0].astype(np.int64), "prediction": rows}


def records_of(batch: dict) -> dict:
    """Reads the records of files."""
    import tensorflow as tf

    paths = [str(path) for path in batch["path"]]
    return {"record": np.array(list(tf.data.TFRecordDataset(paths).as_numpy_iterator()), object)}


def main() -> None:
    """Runs the prediction."""
    folder, output, batch = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    # Not the cluster that a killed run has left.
    ray.init("local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    paths = sorted(str(path) for path in (folder / "in").iterdir())
    data = ray.data.from_items([{"path": path} for path in paths], override_num_blocks=len(paths))
    data = data.map_batches(records_of, batch_size=1)
    data = data.map_batches(
        Predict,
        fn_constructor_args=[str(folder / "model.keras")],
        batch_size=batch,
        compute=ray.data.ActorPoolStrategy(size=2),
        num_cpus=1,
    )
    data.write_parquet(output)


if __name__ == "__main__":
    main()
