"""Distributed training for TensorFlow and Keras 3: change `tf.distribute.X` to `tfdist.X`.

Importing this package is quick and changes nothing. TensorFlow is imported and Keras repaired when
a strategy is made.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tfdist import _compatibility, _providers
from tfdist._version import __version__

_compatibility.require_tensorflow()

if TYPE_CHECKING:
    from tfdist import (
        callbacks,
        compression,
        data,
        elastic,
        embedding,
        errors,
        horovod,
        layers,
        ops,
        ray,
        rules,
        serving,
    )
    from tfdist.compression.casts import Compression
    from tfdist.config.cluster import Cluster
    from tfdist.config.elastic import Elastic
    from tfdist.config.resolver import ClusterResolver
    from tfdist.config.sharding import Sharding
    from tfdist.embedding import EmbeddingTable
    from tfdist.embedding.export import export_for_serving
    from tfdist.horovod.optimizer import DistributedOptimizer, load_model
    from tfdist.horovod.partial import (
        PartialDistributedGradientTape,
        PartialDistributedOptimizer,
    )
    from tfdist.horovod.sync_batch_normalization import SyncBatchNormalization
    from tfdist.horovod.tape import DistributedGradientTape
    from tfdist.job.groups import new_group
    from tfdist.job.objects import all_gather_object, broadcast_object
    from tfdist.job.process import is_initialized, local_rank, local_size, rank, size
    from tfdist.job.rank_ops import local_rank_op, local_size_op, rank_op, size_op
    from tfdist.job.variables import broadcast_variables
    from tfdist.observe.metrics.counters import count_samples
    from tfdist.ops import join
    from tfdist.prediction.predict import predict
    from tfdist.preemption.saved import mark_saved
    from tfdist.preemption.training import stop_requested
    from tfdist.startup import init
    from tfdist.strategies import (
        CentralStorageStrategy,
        CollectiveAllReduceStrategy,
        CommunicationOptions,
        LocalUpdateStrategy,
        MirroredStrategy,
        MultiWorkerMirroredStrategy,
        OneDeviceStrategy,
        ParameterServerStrategy,
        TPUStrategy,
    )

# The module of each public name; imported on first use, because most of them import TensorFlow.
_MODULE_OF = {
    "CentralStorageStrategy": "tfdist.strategies",
    "Cluster": "tfdist.config.cluster",
    "ClusterResolver": "tfdist.config.resolver",
    "CollectiveAllReduceStrategy": "tfdist.strategies",
    "Compression": "tfdist.compression.casts",
    "DistributedGradientTape": "tfdist.horovod.tape",
    "DistributedOptimizer": "tfdist.horovod.optimizer",
    "Elastic": "tfdist.config.elastic",
    "EmbeddingTable": "tfdist.embedding",
    "CommunicationOptions": "tfdist.strategies",
    "LocalUpdateStrategy": "tfdist.strategies",
    "MirroredStrategy": "tfdist.strategies",
    "MultiWorkerMirroredStrategy": "tfdist.strategies",
    "OneDeviceStrategy": "tfdist.strategies",
    "ParameterServerStrategy": "tfdist.strategies",
    "PartialDistributedGradientTape": "tfdist.horovod.partial",
    "PartialDistributedOptimizer": "tfdist.horovod.partial",
    "Sharding": "tfdist.config.sharding",
    "SyncBatchNormalization": "tfdist.horovod.sync_batch_normalization",
    "TPUStrategy": "tfdist.strategies",
    "all_gather_object": "tfdist.job.objects",
    "broadcast_object": "tfdist.job.objects",
    "broadcast_variables": "tfdist.job.variables",
    "count_samples": "tfdist.observe.metrics.counters",
    "export_for_serving": "tfdist.embedding.export",
    "init": "tfdist.startup",
    "is_initialized": "tfdist.job.process",
    "join": "tfdist.ops",
    "load_model": "tfdist.horovod.optimizer",
    "local_rank": "tfdist.job.process",
    "local_rank_op": "tfdist.job.rank_ops",
    "local_size": "tfdist.job.process",
    "local_size_op": "tfdist.job.rank_ops",
    "mark_saved": "tfdist.preemption.saved",
    "new_group": "tfdist.job.groups",
    "predict": "tfdist.prediction.predict",
    "rank": "tfdist.job.process",
    "rank_op": "tfdist.job.rank_ops",
    "size": "tfdist.job.process",
    "size_op": "tfdist.job.rank_ops",
    "stop_requested": "tfdist.preemption.training",
}
# The functions of the packages above it that `tfdist.ops` calls.
_providers.register("default_communicator", "tfdist.job.process", "communicator")
# The functions of packages above them that `tfdist.job` and the servers call.
_providers.register("serve_metrics", "tfdist.observe.metrics.exporter", "serve")
_providers.register("free_ports", "tfdist.launch.ports")
# The functions of a package above it that `tfdist.config` calls.
_providers.register("exchange_addresses", "tfdist.job.address_exchange")
# The functions of a package above it that `tfdist.data` calls.
_providers.register("follow_data_tasks", "tfdist.keras")
for _name in ("embedding_lookup", "prefetch_rows", "safe_embedding_lookup_sparse"):
    _providers.register(_name, "tfdist.embedding")
_MODULES = (
    "callbacks",
    "compression",
    "data",
    "elastic",
    "embedding",
    "errors",
    "horovod",
    "layers",
    "ops",
    "ray",
    "rules",
    "serving",
)

__all__ = [
    "CentralStorageStrategy",
    "Cluster",
    "ClusterResolver",
    "CollectiveAllReduceStrategy",
    "CommunicationOptions",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Elastic",
    "EmbeddingTable",
    "LocalUpdateStrategy",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "Sharding",
    "SyncBatchNormalization",
    "TPUStrategy",
    "__version__",
    "all_gather_object",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "compression",
    "count_samples",
    "data",
    "elastic",
    "embedding",
    "errors",
    "export_for_serving",
    "horovod",
    "init",
    "is_initialized",
    "join",
    "layers",
    "load_model",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mark_saved",
    "new_group",
    "ops",
    "predict",
    "rank",
    "rank_op",
    "ray",
    "rules",
    "serving",
    "size",
    "size_op",
    "stop_requested",
]


# Type checkers take the names from the imports above; with this function they would accept any.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f"tfdist.{name}")
        if name in _MODULE_OF:
            return getattr(importlib.import_module(_MODULE_OF[name]), name)
        raise AttributeError(f"module 'tfdist' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
