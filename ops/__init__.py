"""tfdist's C++ ops, and what Python holds of what is behind them.

Collectives with their communicator, what replicas of one process share, and both sides of the
parameter servers.
"""

from tfdist.ops import gradients as _gradients  # noqa: F401, registers them
from tfdist.ops.autograph import leave_tfdist_alone
from tfdist.ops.collectives import all_reduce, barrier, broadcast, join, reduce
from tfdist.ops.communicator import CommunicationStats, Communicator
from tfdist.ops.compressed import (
    multiply_transposed,
    narrow_all_reduce,
    orthonormalize,
    sum_taken,
    take_largest,
)
from tfdist.ops.fused import fused_all_reduce
from tfdist.ops.gathers import all_gather, all_to_all, gather, reduce_scatter, scatter
from tfdist.ops.hand_over import hand_over
from tfdist.ops.local_reduce import local_reduce
from tfdist.ops.optimizer_config import OptimizerConfig, OptimizerKind
from tfdist.ops.parameter_client import ParameterClient, ParameterClientStats
from tfdist.ops.parameter_server import ParameterServer
from tfdist.ops.prefetched import before_asking, prefetched
from tfdist.ops.row_transfer import assign_rows, dump_rows
from tfdist.ops.saved_rows import SavedRows, SavedTable
from tfdist.ops.server_records import (
    ServerEvent,
    ServerImage,
    ServerStats,
    TableStats,
    TraceEvent,
)
from tfdist.ops.table_calls import EditKind
from tfdist.ops.table_config import (
    EvictionPolicy,
    InitializerKind,
    RowInitializer,
    RowRule,
    TableConfig,
)
from tfdist.ops.table_rows import sum_rows


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
    "ServerImage",
    "ServerStats",
    "TableConfig",
    "TableStats",
    "TraceEvent",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "assign_rows",
    "barrier",
    "before_asking",
    "broadcast",
    "dump_rows",
    "embedding_lookup",
    "fused_all_reduce",
    "gather",
    "hand_over",
    "join",
    "local_reduce",
    "multiply_transposed",
    "narrow_all_reduce",
    "orthonormalize",
    "prefetch_rows",
    "prefetched",
    "reduce",
    "reduce_scatter",
    "safe_embedding_lookup_sparse",
    "scatter",
    "sum_rows",
    "sum_taken",
    "take_largest",
]
