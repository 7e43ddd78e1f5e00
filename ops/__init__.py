"""tfdist's C++ ops, and what Python holds of what is behind them.

Collectives with their communicator, what replicas of one process share, and both sides of the
parameter servers.
"""

from tfdist.ops.autograph import leave_tfdist_alone
from tfdist.ops.collectives import gradients as _gradients  # noqa: F401, registers them
from tfdist.ops.collectives.communicator import CommunicationStats, Communicator
from tfdist.ops.collectives.compressed import (
    cast16_all_reduce,
    multiply_transposed,
    orthonormalize,
    scatter_add_top_k,
    top_k,
)
from tfdist.ops.collectives.fused import fused_all_reduce
from tfdist.ops.collectives.gathers import all_gather, all_to_all, gather, reduce_scatter, scatter
from tfdist.ops.collectives.reductions import all_reduce, barrier, broadcast, join, reduce
from tfdist.ops.local.copy_to_devices import copy_to_devices
from tfdist.ops.local.local_reduce import local_reduce
from tfdist.ops.ps.optimizer_config import OptimizerConfig, OptimizerKind
from tfdist.ops.ps.parameter_client import ParameterClient, ParameterClientStats
from tfdist.ops.ps.parameter_server import ParameterServer
from tfdist.ops.ps.prefetched import before_asking, prefetched
from tfdist.ops.ps.row_transfer import import_rows, scan_rows
from tfdist.ops.ps.saved_rows import SavedRows, SavedTable
from tfdist.ops.ps.server_records import (
    ServerEvent,
    ServerSnapshot,
    ServerStats,
    TableStats,
    TraceEvent,
)
from tfdist.ops.ps.table_calls import EditKind
from tfdist.ops.ps.table_config import (
    EvictionPolicy,
    InitializerKind,
    RowInitializer,
    RowRule,
    TableConfig,
)
from tfdist.ops.ps.table_rows import sum_rows


def __getattr__(name: str):
    # They stand on the strategies, which stand on this package.
    if name in ("embedding_lookup", "prefetch_rows", "safe_embedding_lookup_sparse"):
        from tfdist import embedding

        return getattr(embedding, name)
    raise AttributeError(f"module 'tfdist.ops' has no attribute {name!r}")


leave_tfdist_alone()

__all__ = [
    "CommunicationStats",
    "Communicator",
    "EditKind",
    "EvictionPolicy",
    "InitializerKind",
    "OptimizerConfig",
    "OptimizerKind",
    "ParameterClient",
    "ParameterClientStats",
    "ParameterServer",
    "RowInitializer",
    "RowRule",
    "SavedRows",
    "SavedTable",
    "ServerEvent",
    "ServerSnapshot",
    "ServerStats",
    "TableConfig",
    "TableStats",
    "TraceEvent",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "import_rows",
    "barrier",
    "before_asking",
    "broadcast",
    "scan_rows",
    "embedding_lookup",
    "fused_all_reduce",
    "gather",
    "copy_to_devices",
    "join",
    "local_reduce",
    "multiply_transposed",
    "cast16_all_reduce",
    "orthonormalize",
    "prefetch_rows",
    "prefetched",
    "reduce",
    "reduce_scatter",
    "safe_embedding_lookup_sparse",
    "scatter",
    "sum_rows",
    "scatter_add_top_k",
    "top_k",
]
