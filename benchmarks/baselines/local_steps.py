"""Training steps of a dense network on one rank of several hosts, with any of tfdist's strategies.

An object is made, and its methods are called, in the process of one rank.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable
from typing import Any

INPUTS, WIDTH, CLASSES, ROWS = 784, 512, 10, 32


class LocalSteps:
    """Steps of a network of 669,706 weights on random rows.

    Args:
      rank: of this process.
      tf_config: of its task.
    """

    def __init__(self, rank: int, tf_config: str) -> None:
        os.environ["TF_CONFIG"] = tf_config
        self._rank = rank

    def run(self, strategy_of: Callable[[], Any], steps: int) -> dict[str, float]:
        """Trains, and then measures.

        Args:
          strategy_of: makes the strategy.
          steps: as many before the measurement, and in it; whole rounds.

        Returns:
          The seconds and the bytes that this rank sent of a step, and a checksum of the weights,
          which must equal the other ranks' checksums.
        """
        import keras
        import numpy as np
        import tensorflow as tf

        keras.utils.set_random_seed(0)
        strategy = strategy_of()
        with strategy.scope():
            model = keras.Sequential(
                [
                    keras.Input((INPUTS,)),
                    keras.layers.Dense(WIDTH, activation="relu"),
                    keras.layers.Dense(WIDTH, activation="relu"),
                    keras.layers.Dense(CLASSES),
                ]
            )
            optimizer = keras.optimizers.SGD(0.01)
            optimizer.build(model.trainable_variables)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        random = np.random.default_rng(self._rank)
        x = tf.constant(random.normal(size=(ROWS, INPUTS)), tf.float32)
        y = tf.constant(random.integers(0, CLASSES, ROWS))
        workers = strategy.num_replicas_in_sync

        @tf.function
        def step():
            def of_replica(x, y):
                with tf.GradientTape() as tape:
                    loss = loss_of(y, model(x)) / workers
                variables = model.trainable_variables
                gradients = tape.gradient(loss, [v.value for v in variables])
                optimizer.apply(gradients, variables)

            strategy.run(of_replica, args=(x, y))

        def train() -> float:
            began = time.perf_counter()
            for _ in range(steps):
                step()
            np.asarray(model.get_weights()[-1])
            return time.perf_counter() - began

        train()
        before = strategy.communication_stats().bytes_sent
        seconds = train()
        sent = strategy.communication_stats().bytes_sent - before
        if hasattr(strategy, "synchronize"):
            strategy.synchronize()
        checksum = zlib.crc32(b"".join(w.tobytes() for w in model.get_weights()))
        return {"seconds": seconds / steps, "bytes": sent / steps, "checksum": checksum}
