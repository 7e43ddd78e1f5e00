"""Distributed training for TensorFlow and Keras 3: change `tf.distribute.X` to `tfdist.X`.

Importing this package is quick and changes nothing: TensorFlow is imported, and Keras repaired,
when a strategy is made.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tfdist import _compatibility
from tfdist._version import __version__

_compatibility.check_tensorflow()

if TYPE_CHECKING:
    from tfdist import callbacks, compression, embedding, errors, layers, ops
    from tfdist.cluster import Cluster
    from tfdist.compression.casts import Compression
    from tfdist.data_parallel.batch_normalization import SyncBatchNormalization
    from tfdist.data_parallel.optimizer import DistributedOptimizer, load_model
    from tfdist.data_parallel.partial import (
        PartialDistributedGradientTape,
        PartialDistributedOptimizer,
    )
    from tfdist.data_parallel.tape import DistributedGradientTape
    from tfdist.embedding import EmbeddingTable
    from tfdist.embedding.export import export_for_serving
    from tfdist.groups import new_group
    from tfdist.objects import all_gather_object, broadcast_object
    from tfdist.ops import join
    from tfdist.rank_ops import local_rank_op, local_size_op, rank_op, size_op
    from tfdist.resolver import ClusterResolver
    from tfdist.strategies import (
        CentralStorageStrategy,
        CollectiveAllReduceStrategy,
        CommunicationOptions,
        MirroredStrategy,
        MultiWorkerMirroredStrategy,
        OneDeviceStrategy,
        ParameterServerStrategy,
        TPUStrategy,
    )
    from tfdist.tasks import init
    from tfdist.variables import broadcast_variables
    from tfdist.world import is_initialized, local_rank, local_size, rank, size

# Where each public name lives; looked up on first use, because the modules behind most of them
# import TensorFlow.
_HOMES = {
    "CentralStorageStrategy": "tfdist.strategies",
    "Cluster": "tfdist.cluster",
    "ClusterResolver": "tfdist.resolver",
    "CollectiveAllReduceStrategy": "tfdist.strategies",
    "Compression": "tfdist.compression.casts",
    "DistributedGradientTape": "tfdist.data_parallel.tape",
    "DistributedOptimizer": "tfdist.data_parallel.optimizer",
    "EmbeddingTable": "tfdist.embedding",
    "CommunicationOptions": "tfdist.strategies",
    "MirroredStrategy": "tfdist.strategies",
    "MultiWorkerMirroredStrategy": "tfdist.strategies",
    "OneDeviceStrategy": "tfdist.strategies",
    "ParameterServerStrategy": "tfdist.strategies",
    "PartialDistributedGradientTape": "tfdist.data_parallel.partial",
    "PartialDistributedOptimizer": "tfdist.data_parallel.partial",
    "SyncBatchNormalization": "tfdist.data_parallel.batch_normalization",
    "TPUStrategy": "tfdist.strategies",
    "all_gather_object": "tfdist.objects",
    "broadcast_object": "tfdist.objects",
    "broadcast_variables": "tfdist.variables",
    "export_for_serving": "tfdist.embedding.export",
    "init": "tfdist.tasks",
    "is_initialized": "tfdist.world",
    "join": "tfdist.ops",
    "load_model": "tfdist.data_parallel.optimizer",
    "local_rank": "tfdist.world",
    "local_rank_op": "tfdist.rank_ops",
    "local_size": "tfdist.world",
    "local_size_op": "tfdist.rank_ops",
    "new_group": "tfdist.groups",
    "rank": "tfdist.world",
    "rank_op": "tfdist.rank_ops",
    "size": "tfdist.world",
    "size_op": "tfdist.rank_ops",
}
_MODULES = ("callbacks", "compression", "embedding", "errors", "layers", "ops")

__all__ = [
    "CentralStorageStrategy",
    "Cluster",
    "ClusterResolver",
    "CollectiveAllReduceStrategy",
    "CommunicationOptions",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "EmbeddingTable",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "SyncBatchNormalization",
    "TPUStrategy",
    "__version__",
    "all_gather_object",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "compression",
    "embedding",
    "errors",
    "export_for_serving",
    "init",
    "is_initialized",
    "join",
    "layers",
    "load_model",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "new_group",
    "ops",
    "rank",
    "rank_op",
    "size",
    "size_op",
]


def __getattr__(name: str):
    if name in _MODULES:
        return importlib.import_module(f"tfdist.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tfdist' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
