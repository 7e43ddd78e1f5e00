"""Exchange of bytes between the workers that train a model together."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfdist import ops
from tfdist._types import KerasModel
from tfdist.keras.workers import communicator_of, trains_on_servers
from tfdist.ops.collectives.alone import expect_all
from tfdist.ps.config import PsConfig


def workers_of(model: KerasModel) -> int:
    """The number of workers whose batches belong together; 1 where each trains on its own."""
    strategy = model.distribute_strategy
    if trains_on_servers(strategy):
        config = strategy.extended.config
        # With fewer, a step does not wait for all.
        return config.workers if config.mode == "sync" and _waits_for_all(config) else 1
    communicator = communicator_of(model)
    return 1 if communicator is None else communicator.size


def gather(model: KerasModel, content: bytes) -> list[bytes]:
    """Returns what each worker has, by rank.

    Args:
      model: which the workers train.
      content: as many bytes on each worker.
    """
    workers = workers_of(model)
    if workers == 1 or not content:
        return [content] * workers
    own = np.frombuffer(content, np.uint8)
    communicator = communicator_of(model)
    if communicator is not None:
        rows = ops.all_gather(
            tf.constant(own), communicator, label="each worker's own state, to be saved"
        ).numpy()
    else:
        rank = model.distribute_strategy.extended.rank
        rows = np.zeros([workers, len(own)], np.int32)
        rows[rank] = own
        rows = _sum_over_workers(model, rows).astype(np.uint8)
    return [row.tobytes() for row in rows.reshape(workers, -1)]


def broadcast(model: KerasModel, content: bytes | None) -> bytes | None:
    """Returns what the chief has.

    Args:
      model: which the workers train.
      content: of the chief; other workers' is ignored.
    """
    if workers_of(model) == 1:
        return content
    communicator = communicator_of(model)
    if communicator is not None:
        is_chief = communicator.rank == 0
    else:
        is_chief = model.distribute_strategy.extended.rank == 0
    own = content if is_chief and content is not None else b""
    size = int(_of_chief(model, np.array([len(own)], np.int64))[0])
    if not size:
        return None
    values = np.zeros([size], np.int32)
    values[: len(own)] = np.frombuffer(own, np.uint8)
    return _of_chief(model, values).astype(np.uint8).tobytes()


def _of_chief(model: KerasModel, values: np.ndarray) -> np.ndarray:
    """The chief's values; other workers' values are zero."""
    communicator = communicator_of(model)
    if communicator is not None:
        return ops.broadcast(values, communicator, label="state of the training").numpy()
    return _sum_over_workers(model, values)


def _sum_over_workers(model: KerasModel, values: np.ndarray) -> np.ndarray:
    expect_all(None, "the exchange of the training's state")
    parameters = model.distribute_strategy.extended.parameters
    return parameters.all_reduce(tf.constant(values), None).numpy()


def _waits_for_all(config: PsConfig) -> bool:
    return config.num_aggregate >= config.workers
