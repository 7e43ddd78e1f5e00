"""Training of a model some of whose layers belong to one rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdist._types import KerasLayer, KerasOptimizer
from tfdist.horovod.local_variables import check_layers
from tfdist.horovod.optimizer import DistributedOptimizer
from tfdist.horovod.tape import DistributedGradientTape


def PartialDistributedOptimizer(  # noqa: N802, a class to its users
    optimizer: KerasOptimizer,
    *,
    local_layers: KerasLayer | Iterable[KerasLayer] | None = None,
    **options: Any,
) -> KerasOptimizer:
    """Makes an optimizer apply the gradients of all ranks, except to some layers.

    For models in which each rank holds a part of its own, such as an embedding table. Gradients of
    these layers stay on their rank, divided by the number of ranks unless
    `scale_local_gradients=False`.

    Args:
      optimizer: as for `tfdist.DistributedOptimizer`.
      local_layers: a layer of Keras 3 or tf_keras, or several, built or not, whose trainable
        weights are local to each rank. `None` means none.
      **options: as for `tfdist.DistributedOptimizer`.

    Returns:
      The optimizer.

    Raises:
      TypeError: something in `local_layers` is no layer.
      Others: as `tfdist.DistributedOptimizer`.

    Example:

    ```python
    tfdist.init()
    own = keras.layers.Dense(8)
    model = keras.Sequential([keras.Input((4,)), own, keras.layers.Dense(1)])
    optimizer = tfdist.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=own)
    model.compile(optimizer, "mse")
    ```
    """
    layers = check_layers(local_layers, "tfdist.PartialDistributedOptimizer")
    distributed = DistributedOptimizer(optimizer, **options)
    inner = getattr(distributed, "inner_optimizer", distributed)  # of a LossScaleOptimizer
    inner._reduction.local.register_layers(layers)
    return distributed


def PartialDistributedGradientTape(  # noqa: N802, a class to its users
    tape: tf.GradientTape,
    *,
    local_layers: KerasLayer | Iterable[KerasLayer] | None = None,
    **options: Any,
) -> DistributedGradientTape:
    """Wraps a `tf.GradientTape`: gradients are all ranks' mean, except in some layers.

    Args:
      tape: as for `tfdist.DistributedGradientTape`.
      local_layers: as for `tfdist.PartialDistributedOptimizer`.
      **options: as for `tfdist.DistributedGradientTape`.

    Returns:
      The tape.

    Raises:
      TypeError: something in `local_layers` is no layer.
      Others: as `tfdist.DistributedGradientTape`.
    """
    layers = check_layers(local_layers, "tfdist.PartialDistributedGradientTape")
    distributed = DistributedGradientTape(tape, **options)
    distributed._reduction.local.register_layers(layers)
    return distributed
