"""Workers that share batches continue with the same orders, whatever each has read ahead."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tfdist import ops
from tfdist.data.draws import SeedGenerator
from tfdist.data.strategies import workers_of

# Seconds: between two looks at generators, and until a dropped iterator has surely ended.
_PAUSE, _PATIENCE = 0.02, 1.0
Agree = Callable[[Sequence[SeedGenerator]], None]


def agreement_of(strategy: tf.distribute.Strategy) -> Agree | None:
    """Returns what workers of a strategy call when all of them open data; `None` if one is alone.

    Members of an elastic job, and workers that train alone, open data at different times.
    """
    communicator, extended = workers_of(strategy), strategy.extended
    is_elastic = getattr(extended, "elastic_job", None) is not None
    are_apart = getattr(getattr(extended, "local_updates", None), "is_asynchronous", False)
    if communicator is None or communicator.size == 1 or is_elastic or are_apart:
        return None
    return functools.partial(go_to_draws_of_first, communicator)


def go_to_draws_of_first(
    communicator: ops.Communicator, generators: Sequence[SeedGenerator]
) -> None:
    """Sets how often generators have drawn to rank 0's numbers; all ranks call it together.

    Args:
      communicator: the workers.
      generators: as many on each worker; nothing is sent without any.

    Raises:
      tf.errors.OpError: a worker was lost.
    """
    if not generators:
        return
    own = _draws_at_rest(generators)
    with tf.device("/device:CPU:0"):
        drawn = ops.broadcast(
            np.array(own, np.int64), communicator, label="the orders that shuffles have drawn"
        ).numpy()
    for generator, before, draws in zip(generators, own, drawn.tolist(), strict=True):
        if before != draws:
            generator.go_to(draws)


def _draws_at_rest(generators: Sequence[SeedGenerator]) -> list[int]:
    """Returns how often generators have drawn, once they draw no more.

    An iterator that was dropped just now still reads ahead until another thread destroys it.
    """
    end = time.monotonic() + _PATIENCE
    before: list[int] = []
    while (now := [generator.draws for generator in generators]) != before:
        if not any(now) or time.monotonic() > end:
            break
        before = now
        time.sleep(_PAUSE)
    return now
