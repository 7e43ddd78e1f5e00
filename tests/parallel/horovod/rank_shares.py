"""Training without a strategy, where every rank has its own rows; the oracle is one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from support.training import models
from tfdist.job import process

BATCH = 32  # rows of each rank in a step


def own_rows(array: np.ndarray, rank: int, ranks: int, batch: int = BATCH) -> np.ndarray:
    """Returns a rank's rows; each global batch has `batch` rows of every rank in turn."""
    parts = array.reshape(-1, ranks, batch, *array.shape[1:])
    return parts[:, rank].reshape(-1, *array.shape[1:])


def train_like_one_process(
    ctx: Any,
    build: Callable[[Callable[[Any], Any]], Any],
    steps: int,
    tolerance: float = models.EXACT,
    library: Any = keras,
) -> Any:
    """Fits a model on every rank and, before that, on rank 0 alone with all their rows.

    Every rank begins with weights of its own; rank 0's are given to all. Asserts that
    weights, slots and the metrics' means equal one process's.

    Args:
      ctx: the rank's context.
      build: makes a built and compiled model; takes a function that wraps its optimizer, or
        leaves it as it is.
      steps: how many, in each of two epochs.
      tolerance: the largest difference allowed.
      library: `keras` or `tf_keras`.

    Returns:
      The trained model.
    """
    features, labels = models.examples(steps * BATCH * ctx.size)
    options = {"epochs": 2, "shuffle": False, "verbose": 0}
    if ctx.rank == 0:
        library.utils.set_random_seed(0)
        alone = build(lambda optimizer: optimizer)
        expected = alone.fit(features, labels, batch_size=BATCH * ctx.size, **options).history
    library.utils.set_random_seed(ctx.rank)
    model = build(tfdist.DistributedOptimizer)
    history = model.fit(
        own_rows(features, ctx.rank, ctx.size),
        own_rows(labels, ctx.rank, ctx.size),
        batch_size=BATCH,
        callbacks=[
            tfdist.callbacks.BroadcastGlobalVariablesCallback(0),
            tfdist.callbacks.MetricAverageCallback(),
        ],
        **options,
    ).history
    if ctx.rank == 0:
        assert models.difference(model.get_weights(), alone.get_weights()) <= tolerance
        assert models.difference(models.slots(model), models.slots(alone)) <= tolerance
        assert history.keys() == expected.keys()
        for name in history:
            assert models.difference([history[name]], [expected[name]]) <= tolerance, name
    return model


def bytes_sent() -> int:
    """Returns the bytes that this rank has sent so far."""
    return process.communicator("a test").stats().bytes_sent


def values_of(gradients: list) -> list[np.ndarray]:
    """Gradients as dense arrays."""
    return [tf.convert_to_tensor(gradient).numpy() for gradient in gradients]
