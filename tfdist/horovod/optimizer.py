"""Makes an optimizer apply the gradients of all ranks."""

from __future__ import annotations

import os
import types
from typing import TYPE_CHECKING, Any

from tfdist._types import KerasOptimizer
from tfdist.compression import Compression
from tfdist.horovod.optimizer_options import API_NAME, Options
from tfdist.horovod.reduction import refuse_strategy
from tfdist.job import process

if TYPE_CHECKING:
    import keras


def DistributedOptimizer(  # noqa: N802, a class to its users
    optimizer: KerasOptimizer,
    gradient_reduction: str = "mean",
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    compression: str | Compression | type | None = None,
    name: str | None = None,
    scale_local_gradients: bool = True,
) -> KerasOptimizer:
    """Makes an optimizer apply the mean, or the sum, of the gradients of all ranks.

    For Keras's `fit` and for custom loops, without a strategy: every rank calls `apply_gradients`
    with gradients of its own batch, and all apply the same. Clipping, weight decay and everything
    else that the optimizer does come after the reduction. With a `LossScaleOptimizer` all ranks
    skip a step if one of them has to.

    With `backward_passes_per_step=n` gradients are accumulated on each rank, and reduced and
    applied in every n-th call; nothing is sent in between. `optimizer.iterations` counts steps, not
    calls. Accumulated gradients are not saved with a model.

    Args:
      optimizer: of Keras 3 or tf_keras. It becomes distributed itself, keeps its state, and stays
        an instance of its class.
      gradient_reduction: "mean" or "sum" over the ranks. The mean fits losses that are means over a
        rank's batch.
      backward_passes_per_step: the number of calls per step.
      average_aggregated_gradients: average the gradients of these calls instead of adding them.
      compression: how gradients travel: "fp16", "bf16", "topk", "onebit", "powersgd", a
        method of `tfdist.compression` or one of `tfdist.Compression`; `None` means uncompressed.
      name: the optimizer's new name.
      scale_local_gradients: divide gradients of local variables by the number of ranks, as for
        averaged gradients.

    Returns:
      The optimizer. Its method `register_local_var(variable)` makes a variable local to each rank:
      its gradients are not reduced.

    Raises:
      ValueError: it is distributed already; it is used with a strategy, which reduces gradients
        itself; or an argument is none of the above.
      TypeError: it is no optimizer; or `scale_local_gradients` is no bool.
      tfdist.errors.NotInitializedError: called before `tfdist.init()`.

    Example:

    ```python
    tfdist.init()
    optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1 * tfdist.size()))
    model.compile(optimizer, "mse")
    ```
    """
    options = Options(
        gradient_reduction,
        backward_passes_per_step,
        average_aggregated_gradients,
        compression,
        scale_local_gradients,
    )
    process.cluster(API_NAME)
    refuse_strategy(API_NAME)
    return wrapped(optimizer, options, name)


def wrapped(optimizer: KerasOptimizer, options: Options, name: str | None = None) -> KerasOptimizer:
    """As `DistributedOptimizer`, and also before this process knows its job."""
    # Each Keras takes seconds to import, and a script uses one of them.
    front_end: types.ModuleType
    package = _keras_of(optimizer)
    if package == "keras":
        from tfdist.horovod import keras_optimizer

        front_end = keras_optimizer
    elif package == "tf_keras":
        from tfdist.horovod import legacy_optimizer

        front_end = legacy_optimizer
    else:
        raise TypeError(
            f"{API_NAME}: expected an optimizer of Keras 3 or tf_keras, received {optimizer!r}"
        )
    return front_end.distribute(optimizer, options, name)


def load_model(
    filepath: str | os.PathLike,
    custom_objects: dict[str, object] | None = None,
    **options: Any,
) -> keras.Model:
    """Loads a model of Keras 3 to continue its training on all ranks.

    Give all ranks the file, or broadcast the variables of the rank that has it. A model that was
    compiled with a `DistributedOptimizer` keeps it; any other gets one.

    Args:
      filepath: a ".keras" file.
      custom_objects: as for `keras.models.load_model`.
      **options: as for `DistributedOptimizer`, for an optimizer that is not distributed yet.

    Returns:
      The model, compiled if it was.

    Raises:
      ValueError: the file is no model, or needs further `custom_objects`.
      Exception: as `DistributedOptimizer`.
    """
    import keras

    from tfdist.horovod import keras_optimizer

    model = keras.models.load_model(filepath, custom_objects)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not keras_optimizer.is_distributed(optimizer):
        DistributedOptimizer(optimizer, **options)
    return model


def _keras_of(optimizer: KerasOptimizer) -> str | None:
    """The package of the optimizer's base class: "keras", "tf_keras" or None."""
    for base in type(optimizer).__mro__:
        package = base.__module__.partition(".")[0]
        if base.__name__ in ("BaseOptimizer", "_BaseOptimizer", "OptimizerV2"):
            return package if package in ("keras", "tf_keras") else None
    return None
