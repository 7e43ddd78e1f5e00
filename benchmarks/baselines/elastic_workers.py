"""Workers of an elastic job and of an ordinary one, for benchmarks/elastic.py."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from baselines.fit_workers import TfdistWorker

RATE = 1e-4  # of AdamW


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
