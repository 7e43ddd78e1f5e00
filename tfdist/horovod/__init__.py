"""Training without a strategy, with the API of Horovod.

Each rank runs an ordinary program on batches of its own. The wrapped optimizer or gradient tape
makes all ranks take the same steps. Sergeev and Del Balso, "Horovod: fast and easy distributed deep
learning in TensorFlow", 2018. docs/start/porting.md shows it.

`import tfdist.horovod as hvd` offers the names that `tfdist` has in common with Horovod.

| File | Holds |
|---|---|
| `reduction.py` | reduces gradients over the ranks |
| `tape.py` | the gradient tape, for custom loops |
| `optimizer.py`, `keras_optimizer.py`, `legacy_optimizer.py` | the optimizer, for both Kerases |
| `optimizer_options.py` | the arguments that all of them take |
| `local_variables.py`, `partial.py` | variables and layers that belong to one rank |
| `slots.py` | the slot variables of an optimizer |
| `accumulation.py` | several backward passes per step |
| `sync_batch_normalization.py` | batch normalization with the statistics of all ranks |
| `broadcast.py`, `metrics.py`, `learning_rate.py`, `elastic_callbacks.py` | callbacks |
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from tfdist import elastic
    from tfdist.compression.casts import Compression
    from tfdist.horovod.optimizer import DistributedOptimizer, load_model
    from tfdist.horovod.partial import PartialDistributedGradientTape, PartialDistributedOptimizer
    from tfdist.horovod.sync_batch_normalization import SyncBatchNormalization
    from tfdist.horovod.tape import DistributedGradientTape
    from tfdist.job.objects import broadcast_object
    from tfdist.job.process import is_initialized, local_rank, local_size, rank, size
    from tfdist.job.rank_ops import local_rank_op, local_size_op, rank_op, size_op
    from tfdist.job.variables import broadcast_variables
    from tfdist.ops import join

    # Defined by modules that import this package.
    callbacks: ModuleType
    init: Callable[..., None]

# The module of each name; imported on first use, because most of them import TensorFlow.
_MODULE_OF = {
    "Compression": "tfdist.compression.casts",
    "DistributedGradientTape": "tfdist.horovod.tape",
    "DistributedOptimizer": "tfdist.horovod.optimizer",
    "PartialDistributedGradientTape": "tfdist.horovod.partial",
    "PartialDistributedOptimizer": "tfdist.horovod.partial",
    "SyncBatchNormalization": "tfdist.horovod.sync_batch_normalization",
    "broadcast_object": "tfdist.job.objects",
    "broadcast_variables": "tfdist.job.variables",
    "init": "tfdist.startup",
    "is_initialized": "tfdist.job.process",
    "join": "tfdist.ops",
    "load_model": "tfdist.horovod.optimizer",
    "local_rank": "tfdist.job.process",
    "local_rank_op": "tfdist.job.rank_ops",
    "local_size": "tfdist.job.process",
    "local_size_op": "tfdist.job.rank_ops",
    "rank": "tfdist.job.process",
    "rank_op": "tfdist.job.rank_ops",
    "size": "tfdist.job.process",
    "size_op": "tfdist.job.rank_ops",
}
_MODULES = ("callbacks", "elastic")

__all__ = [
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "SyncBatchNormalization",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "elastic",
    "init",
    "is_initialized",
    "join",
    "load_model",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "rank",
    "rank_op",
    "size",
    "size_op",
]

# Type checkers take the names from the imports above; with this function they would accept any.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f"tfdist.{name}")
        if name in _MODULE_OF:
            return getattr(importlib.import_module(_MODULE_OF[name]), name)
        raise AttributeError(f"module 'tfdist.horovod' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
