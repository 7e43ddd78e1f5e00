"""Workers of an elastic job and of an ordinary one, for benchmarks/elastic.py."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from baselines.fit_workers import TfdistWorker

RATE = 1e-4  # of AdamW
IDS, ROWS, WIDTH = 26, 100_000, 64  # ids of an example; of the table and its rows
TABLE = "table, Adagrad"


class PairWorker(TfdistWorker):
    """A worker with each model and optimizer; both kinds of job read whole batches.

    Args:
      rank: as for `Worker`.
      scale: as for `Worker`.
      batch: as for `Worker`.
      tf_config: of this worker.
      elastic: the limits of an elastic job; empty in another one.
      secret: of the job.
    """

    sharding = "AUTO"

    def __init__(
        self, rank: int, scale: float, batch: int, tf_config: str, elastic: str, secret: str
    ) -> None:
        os.environ["TFDIST_SECRET"] = secret
        if elastic:
            os.environ["TFDIST_ELASTIC"] = elastic
        super().__init__(rank, scale, batch, tf_config)

    def _prepare(self, strategy: Any, keras: ModuleType) -> None:
        self._strategy, self._keras = strategy, keras
        self._models, self._began = {}, {}
        with strategy.scope():
            for name, make, optimizer in (
                ("dense, SGD", self._dense, "sgd"),
                ("cnn, SGD", self._cnn, "sgd"),
                ("dense, AdamW", self._dense, keras.optimizers.AdamW(RATE)),
            ):
                keras.utils.set_random_seed(1)
                model = self._models[name] = make()
                loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
                model.compile(optimizer, loss)
                self._began[name] = model.get_weights()


class TableWorker(PairWorker):
    """A worker whose model has a table on a parameter server, as in recommendation."""

    def _prepare(self, strategy: Any, keras: ModuleType) -> None:
        import tfdist

        self._strategy, self._keras = strategy, keras
        layers, width = keras.layers, self._width
        with strategy.scope():
            keras.utils.set_random_seed(1)
            # Rows begin as zeros: their values are the distance they went.
            self._table = tfdist.layers.Embedding(None, WIDTH, "adagrad", "zeros")
            model = keras.Sequential(
                [
                    layers.Input((IDS,), dtype="int64"),
                    self._table,
                    layers.Flatten(),
                    layers.Dense(width(256), "relu"),
                    layers.Dense(10),
                ]
            )
            model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        self._models = {TABLE: model}
        self._began = {TABLE: model.get_weights()}

    def _inputs(self, random: Any, shape: tuple[int, ...]) -> Any:
        return random.integers(ROWS, size=shape)

    def progress(self, name: str) -> list[float]:
        """As of other models; then the absolute change of all rows."""
        import tensorflow as tf

        import tfdist

        ids = tf.range(ROWS, dtype=tf.int64)
        rows = tfdist.ops.embedding_lookup(self._table.table, ids, training=False)
        return [*super().progress(name), float(abs(rows.numpy()).sum())]


class PairServer:
    """The parameter server of a job with tables; serves until its process ends.

    Args:
      tf_config: of this server.
      elastic: as for `PairWorker`.
      secret: as for `PairWorker`.
    """

    def __init__(self, tf_config: str, elastic: str, secret: str) -> None:
        os.environ["TF_CONFIG"] = tf_config
        os.environ["TFDIST_SECRET"] = secret
        if elastic:
            os.environ["TFDIST_ELASTIC"] = elastic
        import tfdist

        tfdist.init()
