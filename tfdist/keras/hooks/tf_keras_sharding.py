"""`Sharding` is for optimizers of Keras 3."""

from __future__ import annotations

import tensorflow as tf

from tfdist.internals.tf_keras import Optimizer
from tfdist.keras.registry import hooks
from tfdist.keras.strategies import shards_of
from tfdist.keras.workers import is_ours


@hooks(Optimizer, "build")
def refuse_sharding(original, self, var_list):
    """With `Sharding` an optimizer of tf_keras is refused: each worker would keep all its slots."""
    strategy = tf.distribute.get_strategy()
    shards = shards_of(strategy.extended) if is_ours(strategy) else None
    if shards is not None:
        raise ValueError(
            f"optimizer {self.name!r}: expected an optimizer of Keras 3 with {shards.sharding}, "
            f"received tf_keras.optimizers.{type(self).__name__}"
        )
    return original(self, var_list)
